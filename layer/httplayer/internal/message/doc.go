// Package message contains what the HTTP/1.1 and HTTP/2 engines share: errors, field syntax, a
// server's configuration, and the calls of a proxy or an http.Handler for a request.
package message
