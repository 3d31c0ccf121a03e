package exchangetest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
)

// noise holds the bytes of all bodies. Bodies with different seeds are different parts.
var noise = func() []byte {
	b := make([]byte, 2*large)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}()

// body is a body that the model gives to an engine. A Read waits for bytes that the model allows.
type body struct {
	bytes []byte
	size  int // length of bytes

	mu      sync.Mutex
	changed sync.Cond
	allowed int   // bytes that may be read
	offset  int   // bytes that were read
	end     error // result of Read after these bytes
	whole   bool  // Read has returned io.EOF
	closes  int
	reading int
	dead    bool // at an earlier call of violation the body was closed, so that no Read may begin any more
	late    bool // a Read began although dead was set
}

// newBody returns a body of size bytes, which differ from those of bodies with another seed. No byte may be read
// before allow.
func newBody(seed, size int) *body {
	start := seed * 997 % large
	b := &body{bytes: noise[start : start+size], size: size}
	b.changed.L = &b.mu
	return b
}

// Read returns allowed bytes of the body, and waits until there are some, the body has ended, or it is closed.
func (b *body) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late = b.late || b.dead
	b.reading++
	for b.offset == b.allowed && b.end == nil && b.closes == 0 {
		b.changed.Wait()
	}
	b.reading--
	if b.closes > 0 {
		return 0, net.ErrClosed
	}
	n = copy(p, b.bytes[b.offset:b.allowed])
	b.offset += n
	if b.offset < b.allowed {
		return n, nil
	}
	b.whole = b.end == io.EOF //nolint:errorlint // the model sets exactly this value
	return n, b.end
}

func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes++
	b.changed.Broadcast()
	return nil
}

// allow permits n more bytes to be read, or fewer at the end of the body.
func (b *body) allow(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		b.allowed = min(b.allowed+n, b.size)
		b.changed.Broadcast()
	}
}

// finish permits the engine to read the rest of the body and then io.EOF.
func (b *body) finish() {
	b.allow(b.size)
	b.fail(io.EOF)
}

// fail ends the body with err and returns true, unless it ended earlier.
func (b *body) fail(err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.end == nil
	if first {
		b.end = err
		b.changed.Broadcast()
	}
	return first
}

// complete reports whether the body was read to its end and closed.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closes > 0 && (b.whole || b.size == 0)
}

// closed reports whether the engine has closed the body.
func (b *body) closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closes > 0
}

// ended reports whether the body's end was sent, which may be unread.
func (b *body) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end != nil
}

// violation returns the rule about b that an engine broke, or "". It must be called when all other
// goroutines of the test's synctest bubble wait, because a Read in progress would look like a late one.
func (b *body) violation() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	// All goroutines wait now, so no Read of a closed body may begin from here on.
	switch b.dead = b.closes > 0; {
	case b.closes > 1:
		return fmt.Sprintf("closed %d times", b.closes)
	case b.late:
		return "read after it was closed"
	case b.dead && b.reading > 0:
		return "read after Close has returned"
	}
	return ""
}

// pendingBody is a body that reports the bytes that can be read without waiting.
type pendingBody struct{ *body }

// Pending returns the number of bytes that may be read now. eof is true if the body ends after them.
func (b pendingBody) Pending() (n int, eof bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.allowed - b.offset, b.end == io.EOF //nolint:errorlint // the model sets exactly this value
}

// reader reads a body that an engine has received, and compares it with the sent one.
type reader struct {
	mu      *sync.Mutex // guards the fields below; locked by the callers of all methods
	src     io.ReadCloser
	sent    *body
	offset  int
	err     error
	started bool // Read was called
	busy    bool // Read is in progress
	closed  bool
	wrong   bool // a byte differs from the sent one
}

// read starts a Read of up to n bytes, unless one is in progress or the body has ended.
func (r *reader) read(n int) {
	if r == nil || r.busy || r.err != nil || r.closed {
		return
	}
	r.started = true
	r.busy = true
	// The engine's Read may block, so it runs on its own goroutine, and the model goes on.
	go func() {
		p := make([]byte, n)
		n, err := r.src.Read(p)
		r.mu.Lock()
		defer r.mu.Unlock()
		// Only the bytes that the engine has received so far are compared; too many are wrong, too.
		rest := r.sent.bytes[r.offset:]
		r.wrong = r.wrong || !bytes.Equal(p[:n], rest[:min(n, len(rest))])
		r.offset += min(n, len(rest))
		r.err = err
		r.busy = false
	}()
}

// close closes the body as its user would.
func (r *reader) close() {
	r.closed = true
	_ = r.src.Close()
}

// violation returns the rule about r that an engine broke, or "". It must be called when all other
// goroutines of the test's synctest bubble, such as those of read and of the engine, wait.
func (r *reader) violation() string {
	switch {
	case r == nil:
	case r.wrong:
		return "has wrong bytes"
	case r.eof() && !r.whole():
		return fmt.Sprintf("ends after %d of %d bytes", r.offset, r.sent.size)
	}
	return ""
}

// ended reports whether the body was read to its end, has failed or was closed.
func (r *reader) ended() bool { return r != nil && (r.err != nil || r.closed) }

// eof reports whether Read reached the end of the body.
func (r *reader) eof() bool {
	return r != nil && r.err == io.EOF //nolint:errorlint // a Reader returns exactly this value
}

// whole reports whether all bytes and the end of the body were read.
func (r *reader) whole() bool { return r.eof() && r.offset == r.sent.size }

// failed reports whether Read failed before Close.
func (r *reader) failed() bool { return r != nil && !r.closed && r.err != nil && !r.eof() }
