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
)

// stream is the common part of the streams of both roles.
type stream struct {
	c       *conn
	id      uint32
	server  *serverStream // one of these is nil
	client  *clientStream
	removed atomic.Bool // from the table of the connection
	grown   atomic.Int64

	// Of the reader.
	born    uint32 // tick of the sweeper
	touched bool
	left    int64 // of the content-length, or -1

	trailerSlab [2]string

	mu         sync.Mutex
	readable   sync.Cond // something below has changed
	received   queue     // and not read
	eof        bool      // all was received
	closed     bool      // the body was closed
	ready      bool      // the response of a client has begun
	receiveErr error
	trailer    http.Header
	window     int64
	windowSize int64
	consumed   int64         // not yet given back to the peer
	granted    time.Duration // when window was last given back, since the start of the connection
	reading    bool          // Read waits
	readTimer  *time.Timer

	// With the mu of the connection.
	sendable   sync.Cond // the window or sendErr has changed
	sendWindow int64
	sendErr    error
	sentEnd    bool
	gotEnd     bool // written by the reader
	stalled    int  // ticks in which the peer gave no window
	waiting    bool // for sendable
	blocked    bool // in the list of the connection
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

// count compares the received bytes with the content-length.
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

// receive keeps received bytes. Those of a closed body are dropped.
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
	if st.server != nil {
		st.server.got += int64(len(p))
		st.server.pause = 0
	}
	return nil
}

// endReceived notes that the peer has ended the stream.
func (st *stream) endReceived() {
	c := st.c
	c.mu.Lock()
	st.gotEnd = true
	if st.sentEnd {
		c.remove(st)
	}
	c.unlock()
}

// complete reports whether all was received.
func (st *stream) complete() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.eof
}

// reset sends RST_STREAM and ends the stream with err.
func (st *stream) reset(code uint32, err error) {
	c := st.c
	c.mu.Lock()
	if !st.removed.Load() && c.err == nil {
		c.queueReset(st.id, code)
	}
	c.mu.Unlock()
	st.end(err)
}

// end ends both directions with err.
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

// failReceive ends the receiving side with err, unless all was received. The
// bytes that have arrived can still be read.
func (st *stream) failReceive(err error) {
	st.mu.Lock()
	if st.receiveErr == nil && !st.eof {
		st.receiveErr = err
	}
	st.readable.Broadcast()
	st.mu.Unlock()
	if st.server != nil {
		st.server.cancel(err)
	} else {
		st.client.cutRequestBody()
	}
}

// discard drops received bytes, also those that arrive later.
func (st *stream) discard() {
	st.mu.Lock()
	st.closed = true
	st.received.clear()
	st.readable.Broadcast()
	st.mu.Unlock()
}

// read reads received bytes. It returns io.EOF with the last ones.
func (st *stream) read(p []byte) (n int, err error) {
	st.mu.Lock()
	for st.received.n == 0 && !st.eof && st.receiveErr == nil && !st.closed {
		st.reading = true
		st.readable.Wait()
	}
	st.reading = false
	if st.closed {
		st.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	n = st.received.read(p)
	if st.received.n == 0 {
		switch {
		case st.receiveErr != nil && n == 0:
			err = st.receiveErr
		case st.eof && st.receiveErr == nil:
			err = io.EOF
		}
	}
	give := st.consume(n)
	st.mu.Unlock()
	if give > 0 {
		c := st.c
		c.mu.Lock()
		if !st.removed.Load() && c.err == nil {
			c.output().windowUpdate(st.id, give)
			c.kick()
		}
		c.mu.Unlock()
	}
	return n, err
}

const (
	maxStreamWindow = 4 << 20
	maxGrown        = 16 << 20 // of all streams of a connection
	fastGrant       = 2 * time.Millisecond
)

// consume returns how much window to give back after n more bytes were read,
// with mu held. The window doubles if half of it was used in less than two round
// trips, because it limits the peer then.
func (st *stream) consume(n int) (give int64) {
	st.consumed += int64(n)
	if st.eof || st.receiveErr != nil || st.consumed < st.windowSize/2 {
		return 0
	}
	give, st.consumed = st.consumed, 0
	now := time.Since(st.c.started)
	fast := now-st.granted < max(2*time.Duration(st.c.rtt.Load()), fastGrant)
	st.granted = now
	if fast && st.windowSize < maxStreamWindow && st.grow(st.windowSize) {
		give += st.windowSize
		st.windowSize *= 2
	}
	st.window += give
	return give
}

// grow takes n bytes of those by which the windows of the connection may grow.
func (st *stream) grow(n int64) bool {
	if st.c.grown.Add(n) > maxGrown {
		st.c.grown.Add(-n)
		return false
	}
	st.grown.Add(n)
	if st.removed.Load() {
		st.shrink()
	}
	return true
}

// shrink returns the bytes that grow has taken.
func (st *stream) shrink() { st.c.grown.Add(-st.grown.Swap(0)) }

// pending reports how many bytes can be read without waiting, and whether the
// body ends after them.
func (st *stream) pending() (n int, eof bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.received.n, st.eof && !st.closed && st.receiveErr == nil
}

// body is the received body of a stream.
type body struct{ st *stream }

// Read is part of [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if s := b.st.server; s != nil && s.expects {
		s.sendContinue()
	}
	n, err := b.st.read(p)
	if err == io.EOF { //nolint:errorlint // read returns exactly this value
		b.ended()
	}
	return n, err
}

// Pending returns the result of [stream.pending].
func (b *body) Pending() (n int, eof bool) { return b.st.pending() }

// ended sets the trailers.
func (b *body) ended() {
	var to *http.Header
	if s := b.st.server; s != nil {
		to = &s.req.Trailer
	} else {
		to = &b.st.client.rsp.Trailer
		b.st.client.unwatch()
	}
	if *to == nil {
		*to = b.st.trailer // does not change after the end
		return
	}
	maps.Copy(*to, b.st.trailer)
}

// Close is part of [io.Closer]. Close of a response body resets the stream, unless both
// directions are complete.
func (b *body) Close() error {
	st := b.st
	st.discard()
	if st.client != nil {
		st.client.unwatch()
		if !st.removed.Load() {
			st.reset(message.CodeCancel, context.Canceled)
		}
		st.client.cutRequestBody()
	}
	return nil
}
