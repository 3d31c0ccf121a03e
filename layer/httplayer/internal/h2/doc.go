// Package h2 is a proxy's HTTP/2 engine. It implements both the server and the client side of
// connections (RFC 9113), with its own HPACK codec (RFC 7541).
//
// Each connection is read by a single goroutine, the reader, which handles all frames that one
// Read returned. It then starts the new streams and wakes each waiting stream once. The first
// queued frame starts a goroutine that writes until nothing is queued, the writer. The writer
// yields once before it takes the queued frames, so that responses that are ready at the same
// time are sent in one Write. On a server, a worker goroutine serves each stream. Workers are
// reused for later streams.
//
// Two kinds of mutexes protect the state. The connection's mutex guards the sending side: the
// table of streams, the peer's windows, the HPACK encoder and the output. A stream's mutex guards
// its received bytes. No goroutine holds both, or holds one during I/O or while it calls a
// handler.
//
// A stream's flow-control window is returned to the peer when its body is read. The connection
// window is returned when bytes arrive, so that an unread body cannot block other streams. A
// connection therefore buffers at most its open streams' windows.
package h2
