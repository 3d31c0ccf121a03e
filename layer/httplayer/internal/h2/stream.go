package h2

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// stream is the part that [serverStream] and [clientStream] have in common. It is also the received
// body: the request body on a server, and the response body on a client.
type stream struct {
	c       *conn
	id      uint32
	server  *serverStream // nil on a client
	client  *clientStream // nil on a server
	removed atomic.Bool   // the stream is not in the table of the connection
	reads   *sweep.Wait   // measures the waits for a request body; nil without time limits

	// The next four fields are used only by the reader, the goroutine that reads the connection.

	born      uint32 // value of ServerConn.ticks when the stream was opened
	touched   bool   // the stream is in conn.touched
	remaining int64  // bytes of content-length that have not arrived; -1 if unknown

	trailerSlab [2]string // memory for the values of the received trailers, which saves an allocation

	mu         sync.Mutex
	readable   sync.Cond // signals changes of the fields below
	received   queue     // received bytes that were not read
	eof        bool      // the end of the body was received
	closed     bool      // the body was closed
	drained    bool      // Read has returned io.EOF
	ready      bool      // the final response of a client stream has arrived; only the reader writes it
	receiveErr error     // error that ended receiving
	trailer    http.Header
	window     int64         // bytes that the peer may still send
	windowSize int64         // current size of the receive window
	consumed   int64         // bytes that were read and not yet added to the window of the peer
	granted    time.Duration // time of the last WINDOW_UPDATE, since the start of the connection
	total      int64         // bytes that were read

	// The fields below are guarded by the mu of the connection.

	sendable   sync.Cond // signaled when more may be queued, or when sendErr is set
	sendWindow int64
	sendErr    error // error that ended sending
	sentEnd    bool  // END_STREAM is queued
	gotEnd     bool  // END_STREAM was received; only the reader writes it
	stalled    int   // number of sweeps since the window of the peer became exhausted
	waiting    bool  // a goroutine waits for sendable
}

// init prepares st as the stream with the given id of c.
func (st *stream) init(c *conn, id uint32) {
	st.c, st.id = c, id
	st.remaining = -1
	st.readable.L, st.sendable.L = &st.mu, &c.mu
	st.window, st.windowSize = c.streamWindow, c.streamWindow
	if c.rtt.Load() == 0 { // the peer may not have applied the SETTINGS
		st.window = max(st.window, defaultWindow)
	}
}

// count checks the body's length against content-length. n is the number of bytes in a DATA frame, and
// end is true at the end of the body. It returns an error, which resets the stream, if the body is too
// long or ends too early.
func (st *stream) count(n int, end bool) error {
	// Without a content-length, any length is right.
	if st.remaining < 0 {
		return nil
	}
	st.remaining -= int64(n)
	switch {
	case st.remaining < 0:
		return malformed(st.id, "body and content-length differ")
	case end && st.remaining > 0:
		return malformed(st.id, message.ShortBody)
	}
	return nil
}

// receive stores p, the data of a DATA frame, until Read takes it. If the body was closed, it drops p.
// flow is how many bytes of the flow-control window the frame uses, which includes padding. receive
// returns an error if the peer has exceeded the window.
func (st *stream) receive(p []byte, flow int64, end bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.window -= flow; st.window < 0 {
		return &streamError{st.id, message.CodeFlowControl, "window of the stream exceeded"}
	}
	// Padding is never read, so it is returned to the peer's window as if it were.
	st.consumed += flow - int64(len(p))
	if len(p) > 0 && !st.closed && st.receiveErr == nil {
		st.received.write(p)
	}
	st.eof = st.eof || end
	return nil
}

// endReceived is called when END_STREAM has arrived. It frees the stream's slot if this side has also
// sent its END_STREAM.
func (st *stream) endReceived() {
	c := st.c
	c.mu.Lock()
	st.gotEnd = true
	if st.sentEnd {
		c.remove(st)
	}
	c.unlock() // reports the free slot
}

// reset sends RST_STREAM with the given error code, if the stream is still open, and makes both reading
// and sending fail with err.
func (st *stream) reset(code uint32, err error) {
	c := st.c
	c.mu.Lock()
	if !st.removed.Load() && c.err == nil {
		c.queueReset(st.id, code)
	}
	c.mu.Unlock()
	st.end(err)
}

// end makes reading and sending on the stream fail with err and frees its slot. It sends nothing to the
// peer.
func (st *stream) end(err error) {
	c := st.c
	c.mu.Lock()
	c.remove(st)
	if st.sendErr == nil {
		st.sendErr = err
	}
	st.sendable.Broadcast()
	c.unlock() // reports the free slot
	st.failReceive(err)
}

// lossError returns the error for a stream whose connection has ended because of err, after the
// writer has ended. On a client, it matches [message.ErrNotProcessed] if the connection did not
// accept all request headers.
func (st *stream) lossError(err error) error {
	if st.client == nil || st.client.headEnd <= st.c.passed.Load() {
		return err
	}
	return fmt.Errorf("%w: %w", message.ErrNotProcessed, err)
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

// failReceive makes reading fail with err, as failBody does. On a server, it also cancels the request's
// context. On a client, it also stops sending the request body.
func (st *stream) failReceive(err error) {
	st.failBody(err)
	if st.server != nil {
		st.server.cancel(err)
	} else {
		st.client.abortRequestBody()
	}
}

// discard drops the bytes of a body that nobody reads any more, and makes receive drop later ones.
func (st *stream) discard() {
	st.mu.Lock()
	st.closed = true
	st.shrink()
	st.received.clear()
	st.readable.Broadcast()
	st.mu.Unlock()
}

// Read implements [io.Reader]. It waits for received bytes and reads them into p. With the last
// bytes it returns io.EOF, if the end of the body has arrived. The first Read sends 100 Continue to
// a client that expects it.
func (st *stream) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	st.Proceed()
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
	st.total += int64(n)
	st.reads.Add(n)
	first := false // io.EOF is returned for the first time
	if st.received.n == 0 {
		switch {
		case st.receiveErr != nil && n == 0:
			err = st.receiveErr
		case st.eof && st.receiveErr == nil:
			err = io.EOF // the caller may read again after io.EOF
			first, st.drained = !st.drained, true
			st.shrink()
		}
	}
	credit := st.consume(n)
	st.mu.Unlock()
	// The window is enlarged after st.mu is unlocked, because no goroutine may hold both mutexes.
	if credit > 0 {
		c := st.c
		c.mu.Lock()
		if !st.removed.Load() && c.err == nil {
			c.queueWindowUpdate(st.id, credit)
			c.kick()
		}
		c.mu.Unlock()
	}
	if first { // later, the caller may use the trailers at the same time
		st.ended()
	}
	return n, err
}

// Arrive waits until some of the body, or its end, has arrived, without sending 100 Continue. A proxy
// so learns that its client does not wait for 100 Continue any longer. Arrive always returns true,
// which tells the caller that the body comes from a connection.
func (st *stream) Arrive() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.received.n == 0 && !st.eof && st.receiveErr == nil && !st.closed {
		st.readable.Wait()
	}
	if s := st.server; s != nil {
		s.expects.Store(false)
	}
	return true
}

// Proceed sends 100 Continue to a client that expects it, once.
func (st *stream) Proceed() {
	if s := st.server; s != nil && s.expects.CompareAndSwap(true, false) {
		_ = s.Inform(http.StatusContinue, nil)
	}
}

const (
	maxStreamWindow = 4 << 20
	maxGrown        = 16 << 20 // limit of the growth of all stream windows of a connection, in bytes
	fastGrant       = 2 * time.Millisecond
)

// consume records that n more body bytes were read, and returns by how many bytes to enlarge the
// peer's flow-control window. That is 0 until half of the window was read. If that took less than two
// round trips, or less than fastGrant, the window limits the peer's rate. consume then also doubles a
// window below maxStreamWindow, unless all windows on the connection would have grown by more than
// maxGrown bytes. The caller holds st.mu.
func (st *stream) consume(n int) (credit int64) {
	st.consumed += int64(n)
	if st.eof || st.receiveErr != nil || st.consumed < st.windowSize/2 {
		return 0
	}
	credit, st.consumed = st.consumed, 0
	now := time.Since(st.c.started)
	fast := now-st.granted < max(2*time.Duration(st.c.rtt.Load()), fastGrant)
	st.granted = now
	if growth := st.windowSize; fast && growth < maxStreamWindow {
		// Another stream may have used up the growth at the same time.
		if st.c.grown.Add(growth) > maxGrown {
			st.c.grown.Add(-growth)
			growth = 0
		}
		credit += growth
		st.windowSize += growth
	}
	st.window += credit
	return credit
}

// shrink is called when the body needs no more window, at its end or when it is closed. It gives what
// the stream's window has grown back to the connection's budget, maxGrown. The caller holds st.mu.
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

// ended is called once, when Read has returned io.EOF. It makes the trailers visible in the request's
// or response's Trailer field. The trailers of a request without a trailer map are dropped: that is a
// gRPC, Connect or CONNECT request that announced none, because these protocols know no request
// trailers.
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

// Close implements [io.Closer]. It drops the received bytes of the body, and those that arrive
// later. For a response body, it also resets the stream, unless both directions are complete.
func (st *stream) Close() error {
	st.discard()
	if st.client != nil {
		// With the watch stopped, the end of the context does nothing more to this stream.
		st.client.watch.Stop()
		if !st.removed.Load() {
			st.reset(message.CodeCancel, context.Canceled)
		}
		st.client.abortRequestBody()
	}
	return nil
}
