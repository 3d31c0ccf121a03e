// Package message has what the HTTP/1.1 and HTTP/2 engines share: the
// configuration of a server, the exchange of a request for a response, errors,
// field syntax, and the response writer of an http.Handler.
package message
