// Package h2 is the HTTP/2 engine of a proxy. It has the server and the client side of
// connections (RFC 9113) and its own HPACK codec (RFC 7541).
//
// Each connection has one reading goroutine, the reader. It handles all frames that one
// Read returned. It then starts the new streams and wakes each waiting stream once. The
// first queued frame starts a goroutine that writes until nothing is queued, the writer.
// The writer yields once before it takes the queued frames, so that responses that are
// ready at the same time are sent in one Write. A worker goroutine serves each stream of a
// server. The connection reuses workers for later streams.
//
// Two kinds of mutexes protect the state. The mutex of the connection guards the sending
// side: the table of streams, the windows of the peer, the HPACK encoder and the output.
// The mutex of a stream guards its received bytes. No goroutine holds both, or holds one
// during I/O or a call of a handler.
//
// The flow-control window of a stream is returned to the peer when its body is read. The
// window of the connection is returned when bytes arrive, so that an unread body cannot
// block other streams. A connection therefore buffers at most the windows of its open
// streams.
package h2
