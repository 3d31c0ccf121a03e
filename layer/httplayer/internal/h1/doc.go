// Package h1 is an HTTP/1.1 engine for proxying.
//
// One goroutine per server connection parses a request, calls the handler,
// which sends it on by a [ClientConn] in the same goroutine, and writes the
// response. A second goroutine exists only while a request body is sent that is
// not in memory, in tunnels, and to notice that the client of a slow request has
// left. Time limits are checked by a sweep.Sweeper, so that no deadline is set
// per request.
//
// Nothing is forwarded verbatim: messages are parsed strictly (RFC 9112),
// serialized again, and checked while they are serialized.
package h1
