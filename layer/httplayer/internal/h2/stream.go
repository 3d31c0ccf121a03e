package h2

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// stream has the common part of [serverStream] and [clientStream]. It is also the body that it receives:
// of a request on a server, or of a response on a client.
type stream struct {
	c       *conn
	id      uint32
	server  *serverStream // nil on a client
	client  *clientStream // nil on a server
	removed atomic.Bool   // the stream is not in the table of the connection
	reads   *sweep.Wait   // measures the waits for a request body; nil without time limits

	// The next three fields are used by the reader only.

	born    uint32 // value of ServerConn.ticks when the stream was opened
	touched bool   // the stream is in conn.touched
	left    int64  // bytes of content-length that have not arrived; -1 if unknown

	trailerSlab [2]string

	mu         sync.Mutex
	readable   sync.Cond // signals changes of the fields below
	received   queue     // received bytes that were not read
	eof        bool      // the end of the body was received
	closed     bool      // the body was closed
	ready      bool      // the final response of a client stream has arrived; only the reader writes it
	receiveErr error     // error that ended receiving
	trailer    http.Header
	window     int64         // bytes that the peer may still send
	windowSize int64         // current size of the receive window
	consumed   int64         // bytes that were read and not yet added to the window of the peer
	granted    time.Duration // time of the last WINDOW_UPDATE, since the start of the connection
	readTimer  *time.Timer

	// The fields below are guarded by the mu of the connection.

	sendable   sync.Cond // signaled when more may be queued, or when sendErr is set
	sendWindow int64
	sendErr    error // error that ended sending
	sentEnd    bool  // END_STREAM is queued
	gotEnd     bool  // END_STREAM was received; only the reader writes it
	stalled    int   // number of sweeps since the window of the peer became exhausted
	waiting    bool  // a goroutine waits for sendable
	writeTimer *time.Timer
}

func (st *stream) init(c *conn, id uint32) {
	st.c, st.id = c, id
	st.left = -1
	st.readable.L, st.sendable.L = &st.mu, &c.mu
	st.window, st.windowSize = c.streamWindow, c.streamWindow
	if c.rtt.Load() == 0 { // the peer may not have applied the SETTINGS
		st.window = max(st.window, defaultWindow)
	}
}

// count subtracts n received bytes from st.left. It returns an error if the length of the
// body differs from content-length. The argument end is true at the end of the body.
func (st *stream) count(n int, end bool) error {
	if st.left < 0 {
		return nil
	}
	st.left -= int64(n)
	if st.left < 0 || end && st.left > 0 {
		return malformed(st.id, "body and content-length differ")
	}
	return nil
}

// receive stores p, which is the data of a DATA frame. It drops p if the body was closed. The
// argument flow is the number of bytes that the frame uses of the window, including padding.
func (st *stream) receive(p []byte, flow int64, end bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.window -= flow; st.window < 0 {
		return &streamError{st.id, message.CodeFlowControl, "window of the stream exceeded"}
	}
	st.consumed += flow - int64(len(p))
	if len(p) > 0 && !st.closed && st.receiveErr == nil {
		st.received.write(p)
	}
	st.eof = st.eof || end
	return nil
}

// endReceived records that END_STREAM was received. It removes the stream if both
// directions have ended.
func (st *stream) endReceived() {
	c := st.c
	c.mu.Lock()
	st.gotEnd = true
	if st.sentEnd {
		c.remove(st)
	}
	c.unlock()
}

// reset sends RST_STREAM with the given code and ends the stream with err.
func (st *stream) reset(code uint32, err error) {
	c := st.c
	c.mu.Lock()
	if !st.removed.Load() && c.err == nil {
		c.queueReset(st.id, code)
	}
	c.mu.Unlock()
	st.end(err)
}

// end ends both directions of the stream with err and frees its slot. It sends nothing.
func (st *stream) end(err error) {
	c := st.c
	c.mu.Lock()
	c.remove(st)
	if st.sendErr == nil {
		st.sendErr = err
	}
	st.sendable.Broadcast()
	c.unlock()
	st.failReceive(err)
}

// failBody ends receiving with err, unless the whole body was received. Bytes that have
// already arrived can still be read. It does not affect sending.
func (st *stream) failBody(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.receiveErr == nil && !st.eof {
		st.receiveErr = err
	}
	st.readable.Broadcast()
}

// failReceive ends receiving with err by failBody. On a server, it also cancels the context of
// the request. On a client, it ends the sending of the request body.
func (st *stream) failReceive(err error) {
	st.failBody(err)
	if st.server != nil {
		st.server.cancel(err)
	} else {
		st.client.abortRequestBody()
	}
}

// discard drops the received bytes, and makes the stream drop those that arrive later.
func (st *stream) discard() {
	st.mu.Lock()
	st.closed = true
	st.shrink()
	st.received.clear()
	st.readable.Broadcast()
	st.mu.Unlock()
}

// Read is part of [io.Reader]. It waits for received bytes and reads them into p. It returns io.EOF
// together with the last bytes, if the end of the body has arrived. The first Read sends 100 Continue to
// a client that expects it.
func (st *stream) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if s := st.server; s != nil && s.expects.CompareAndSwap(true, false) {
		_ = s.Inform(http.StatusContinue, nil)
	}
	st.mu.Lock()
	for st.received.n == 0 && !st.eof && st.receiveErr == nil && !st.closed {
		st.reads.Begin()
		st.readable.Wait()
		st.reads.End(0)
	}
	if st.closed {
		st.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	n = st.received.read(p)
	st.reads.Add(n)
	if st.received.n == 0 {
		switch {
		case st.receiveErr != nil && n == 0:
			err = st.receiveErr
		case st.eof && st.receiveErr == nil:
			err = io.EOF
			st.shrink()
		}
	}
	give := st.consume(n)
	st.mu.Unlock()
	if give > 0 {
		c := st.c
		c.mu.Lock()
		if !st.removed.Load() && c.err == nil {
			c.queueWindowUpdate(st.id, give)
			c.kick()
		}
		c.mu.Unlock()
	}
	if err == io.EOF { //nolint:errorlint // set above
		st.ended()
	}
	return n, err
}

const (
	maxStreamWindow = 4 << 20
	maxGrown        = 16 << 20 // limit of the growth of all stream windows of a connection, in bytes
	fastGrant       = 2 * time.Millisecond
)

// consume records that n more bytes of the body were read. It returns the number of bytes to add to
// the flow-control window of the peer. This number is 0 until half of the window was read. If that
// took less than two round trips, or less than fastGrant, the window limits the rate of the peer.
// consume then also doubles a window below maxStreamWindow, unless all windows of the connection would
// have grown by more than maxGrown bytes. The caller holds st.mu.
func (st *stream) consume(n int) (give int64) {
	st.consumed += int64(n)
	if st.eof || st.receiveErr != nil || st.consumed < st.windowSize/2 {
		return 0
	}
	give, st.consumed = st.consumed, 0
	now := time.Since(st.c.started)
	fast := now-st.granted < max(2*time.Duration(st.c.rtt.Load()), fastGrant)
	st.granted = now
	if more := st.windowSize; fast && more < maxStreamWindow {
		if st.c.grown.Add(more) > maxGrown {
			st.c.grown.Add(-more)
			more = 0
		}
		give += more
		st.windowSize += more
	}
	st.window += give
	return give
}

// shrink subtracts the growth of the stream's window from that of all windows, because the body needs
// no more window. The caller holds st.mu.
func (st *stream) shrink() {
	st.c.grown.Add(st.c.streamWindow - st.windowSize)
	st.windowSize = st.c.streamWindow
}

// Pending returns the number of bytes that Read can return without waiting. If eof is true, the
// body ends after these bytes.
func (st *stream) Pending() (n int, eof bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.received.n, st.eof && !st.closed && st.receiveErr == nil
}

// ended copies the received trailers to the request or response, after the body was read to
// its end. It drops the trailers of a request without a trailer map. A request of gRPC,
// Connect or CONNECT has this map only if it announced trailers, because these protocols
// have no request trailers.
func (st *stream) ended() {
	if s := st.server; s != nil {
		if s.req.Trailer != nil {
			maps.Copy(s.req.Trailer, st.trailer)
		}
		return
	}
	s := st.client
	s.watch.Stop()
	if s.rsp.Trailer == nil {
		s.rsp.Trailer = st.trailer // does not change after the end
		return
	}
	maps.Copy(s.rsp.Trailer, st.trailer)
}

// Close is part of [io.Closer]. It drops the received bytes of the body, and those that arrive
// later. For a response body, it also resets the stream, unless both directions are complete.
func (st *stream) Close() error {
	st.discard()
	if st.client != nil {
		st.client.watch.Stop()
		if !st.removed.Load() {
			st.reset(message.CodeCancel, context.Canceled)
		}
		st.client.abortRequestBody()
	}
	return nil
}
