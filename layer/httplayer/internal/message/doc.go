// Package message has the parts that the HTTP/1.1 and HTTP/2 engines share: errors, field
// syntax, the configuration of a server, and the calls of a proxy or an http.Handler for a
// request.
package message
