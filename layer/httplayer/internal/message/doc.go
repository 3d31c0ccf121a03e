// Package message has the parts that the HTTP/1.1 and HTTP/2 engines share: errors, field
// syntax, the configuration of a server, the function type that serves a request of a
// proxy, and the response writer of an http.Handler.
package message
