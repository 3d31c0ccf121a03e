// Package h1 is an HTTP/1.1 engine for proxies.
//
// Each server connection has one goroutine, which parses a request, calls the handler and
// writes the response. The handler of a proxy forwards the request by a [ClientConn] on the
// same goroutine. A second goroutine runs only to send a request body that is not in
// memory, to copy a tunnel, or to read ahead. Reading ahead happens during a slow request,
// and detects that the client has closed the connection. A sweep.Sweeper checks the time
// limits, so that no deadline is set per request.
//
// The engine parses messages strictly (RFC 9112). It never forwards the received bytes of
// headers or chunk lines, but serializes each message again and checks it.
package h1
