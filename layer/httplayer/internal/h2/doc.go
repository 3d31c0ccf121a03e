// Package h2 is the HTTP/2 engine of a proxy: connections of servers and of
// clients (RFC 9113), with HPACK of its own (RFC 7541).
//
// A connection has one goroutine that reads. It handles all frames that one Read
// returned. Then it starts the new streams and wakes the waiting ones, once each.
// The first queued frame starts a goroutine that writes until nothing is queued.
// This writer yields once before it takes the queued frames, so that responses
// that are ready at the same time leave in one Write. Each stream of a server is
// served by a worker goroutine, which the connection keeps for the next stream.
//
// Two mutexes protect the state. That of the connection guards the sending side:
// the table of streams, the windows of the peer, the HPACK encoder and the
// output. That of a stream guards the received bytes. They are never held
// together, nor during I/O or a call of a handler.
//
// The flow-control window of a stream is given back when its body is read. That
// of the connection is given back when bytes arrive, so that an unread body
// cannot block other streams. A connection therefore buffers at most the windows
// of its open streams.
package h2
