// Package h1 is an HTTP/1.1 engine for proxies.
//
// Each server connection has one goroutine, which parses a request, calls the exchange and writes the
// response. In a proxy, the exchange forwards the request with a [ClientConn] on the same goroutine.
// A second goroutine runs only to send a request body that is not in memory, to copy a tunnel, or to
// read ahead. Reading ahead happens during a slow request, and detects that the client has closed the
// connection. A sweep.Sweeper checks the time limits, so that no deadline is set per request.
//
// The engine accepts deviations from RFC 9112 that have only one meaning, such as a bare LF as a line
// end. It never forwards received headers or chunk lines as they are, but serializes each message
// again and checks it.
package h1
