package h1

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// framing is how a body ends.
type framing uint8

const (
	byLength framing = iota
	byChunks
	byClose
)

// body is a received body, of either side.
type body struct {
	framing framing
	src     *source
	owner   bodyOwner
	trailer http.Header // gets the trailers; not nil if byChunks
	wait    *wait       // measures the time in which Read waits; may be nil

	closed atomic.Bool // by the user

	mu       sync.Mutex // held while Read waits
	expected bool       // the sender waits for 100 Continue
	began    bool       // after the first chunk
	last     bool       // after the chunk of size 0
	left     int64      // of the body, or of the chunk
	err      error      // after the end
	rest     bool       // discard reads what the user did not
}

// bodyOwner is the connection of a body.
type bodyOwner interface {
	// proceed asks the sender to send the body.
	proceed() error
	// interrupt ends a Read in progress, because the body was closed.
	interrupt()
	// bodyEnded is called once: the body was read, or it was closed or failed.
	bodyEnded(whole bool)
}

// Read is part of [io.Reader]. The end is returned with the last bytes if it is
// known then.
func (b *body) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return 0, b.err
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case len(p) == 0:
		return 0, nil
	}
	if b.expected {
		b.expected = false
		err = b.owner.proceed()
	}
	if err == nil {
		n, err = b.read(p)
	}
	b.endLocked(err)
	return n, err
}

// endLocked ends the body if err is not nil.
func (b *body) endLocked(err error) {
	if err == nil || b.err != nil {
		return
	}
	b.err = err
	b.owner.bodyEnded(err == io.EOF) //nolint:errorlint // set by read itself
}

// Close is part of [io.Closer]. It interrupts a Read in progress. If the rest of the body
// is in the buffer, Close discards it.
func (b *body) Close() error {
	b.closed.Store(true)
	if !b.mu.TryLock() {
		b.owner.interrupt()
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	if b.err == nil && !b.expected && b.framing == byLength && int64(b.src.buffered()) >= b.left {
		b.src.r += int(b.left)
		b.left = 0
		b.endLocked(io.EOF)
	}
	b.endLocked(http.ErrBodyReadAfterClose)
	return nil
}

// discard reads at most limit further bytes of a closed body. It reports whether
// the body has ended.
func (b *body) discard(limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != http.ErrBodyReadAfterClose || b.expected || b.framing == byLength && b.left > limit { //nolint:errorlint // set by Close
		return false
	}
	space := getBuffer(&smallBuffers)
	defer space.put()
	b.rest = true
	for limit > 0 {
		n, err := b.read(space.b)
		limit -= int64(n)
		if err != nil {
			b.err = err
			return err == io.EOF //nolint:errorlint // set by read itself
		}
	}
	return false
}

// whole reports whether the body was read up to its end.
func (b *body) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == io.EOF //nolint:errorlint // set by read itself
}

// Pending is described by [message.Pending].
func (b *body) Pending() (n int, eof bool) {
	if !b.mu.TryLock() {
		return 0, false // a Read waits
	}
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return 0, b.err == io.EOF //nolint:errorlint // set by read itself
	case b.closed.Load() || b.expected || b.framing == byClose:
		return 0, false
	case b.framing == byLength:
		n = int(min(b.left, int64(b.src.buffered())))
		return n, int64(n) == b.left
	}
	if b.left == 0 {
		if _, err := b.nextChunk(); err != nil {
			b.endLocked(err)
			return 0, err == io.EOF //nolint:errorlint // set by read itself
		}
	}
	return int(min(b.left, int64(b.src.buffered()))), false
}

func (b *body) read(p []byte) (n int, err error) {
	switch b.framing {
	case byClose:
		return b.fetch(p)
	case byLength:
		if b.left > 0 {
			n, err = b.fetch(p[:min(int64(len(p)), b.left)])
			b.left -= int64(n)
		}
		if err == nil && b.left == 0 {
			return n, io.EOF
		}
		return n, noEOF(err)
	case byChunks:
	}
	for {
		for b.left == 0 {
			ready, err := b.nextChunk()
			if err != nil || !ready && n > 0 {
				return n, err
			}
			if !ready {
				if err := b.fill(); err != nil {
					return 0, noEOF(err)
				}
			}
		}
		if n == len(p) || n > 0 && b.src.buffered() == 0 {
			return n, nil
		}
		more, err := b.fetch(p[n:min(int64(len(p)), int64(n)+b.left)])
		n += more
		b.left -= int64(more)
		if err != nil {
			return n, noEOF(err)
		}
	}
}

// nextChunk reads up to the data of the next chunk, from the buffer only. At the
// end of the body it returns io.EOF.
func (b *body) nextChunk() (ready bool, err error) {
	if !b.last {
		n, size, err := chunkLine(b.src.unread(), !b.began)
		if n == 0 || err != nil {
			return false, err
		}
		b.src.r += n
		b.began, b.left, b.last = true, size, size == 0
		if size > 0 {
			return true, nil
		}
	}
	return false, b.readTrailers()
}

// readTrailers returns io.EOF after the trailers, and nil if bytes are missing.
func (b *body) readTrailers() error {
	text := b.src.unread()
	if len(text) < 2 {
		return nil
	}
	end := 2
	if !bytes.HasPrefix(text, []byte("\r\n")) {
		if end = findEnd(text, 0); end == 0 {
			return nil
		}
	}
	h := head{length: -1}
	if err := h.parseFields(text[:end], 0); err != nil {
		return err
	}
	s := string(text[:end])
	for name, values := range h.header(s, nil) {
		if message.ValidTrailer(name) {
			b.trailer[name] = values
		}
	}
	b.src.r += end
	return io.EOF
}

// maxTrailers is the maximum size of trailers.
const maxTrailers = 64 << 10

func (b *body) fill() error {
	for {
		b.wait.begin()
		n, err := b.src.fill(maxTrailers)
		b.wait.end(n)
		if err = b.retried(err); err != errInterrupted { //nolint:errorlint // set by this package
			return err
		}
	}
}

// fetch reads bytes of the body. It returns buffered bytes before it reads from the
// connection.
func (b *body) fetch(p []byte) (n int, err error) {
	const direct = 2 << 10 // bytes for which the copy costs less than another read
	if b.src.buffered() == 0 && b.framing == byChunks && len(p) < direct {
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
	if unread := b.src.unread(); len(unread) > 0 {
		n = copy(p, unread)
		b.src.r += n
		return n, nil
	}
	for {
		b.wait.begin()
		n, err = b.src.read(p)
		b.wait.end(n)
		if err = b.retried(err); err != errInterrupted { //nolint:errorlint // set by this package
			return n, err
		}
	}
}

// retried returns errInterrupted if the interrupted read has to be repeated.
func (b *body) retried(err error) error {
	if err == errInterrupted && b.closed.Load() && !b.rest { //nolint:errorlint // set by this package
		return http.ErrBodyReadAfterClose
	}
	return err
}
