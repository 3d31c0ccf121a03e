package h1

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// framing specifies how the end of a body is recognized: by Content-Length, by chunked
// coding, or by the end of the connection.
type framing uint8

const (
	byLength framing = iota
	byChunks
	byClose
)

// body is the body of a received message: a request on a server connection, or a response
// on a client connection.
type body struct {
	src     *source
	owner   bodyOwner
	trailer http.Header // receives the trailers; not nil if framing is byChunks
	wait    *sweep.Wait // &reads, if the limits on slow bodies apply; otherwise nil
	reads   sweep.Wait  // measures the time that Read waits for the peer
	framing framing

	closed atomic.Bool // Close was called

	mu      sync.Mutex   // guards the fields below; locked while Read waits
	proceed func() error // sends 100 Continue before the first Read; nil if the sender does not wait for it
	left    int64        // unread bytes of the body or of the current chunk
	err     error        // result of later reads; set when the body ends or fails
	began   bool         // the first chunk line has been read
	last    bool         // the chunk line of size 0 has been read
}

// bodyOwner is the connection that a body is received on.
type bodyOwner interface {
	// interrupt ends the Read in progress, because the body is being closed.
	interrupt()
	// bodyEnded is called once, when the body was read to its end, was closed, or failed.
	// whole is true if the body was read to its end.
	bodyEnded(whole bool)
}

// init prepares b for a message with the parsed headers h, from which header was made. The trailer of
// a chunked body gets the names in the field Trailer, without values.
func (b *body) init(src *source, owner bodyOwner, h *head, header http.Header) {
	b.src, b.owner = src, owner
	switch {
	case h.chunked:
		b.framing = byChunks
		if b.trailer = message.Announced(header["Trailer"]); b.trailer == nil {
			b.trailer = make(http.Header)
		}
	case h.length >= 0:
		b.left = h.length
	default:
		b.framing = byClose
	}
}

// Read is part of [io.Reader]. It returns io.EOF together with the last bytes if the end of
// the body is already known.
func (b *body) Read(p []byte) (n int, err error) {
	if b.closed.Load() { // does not wait for discard
		return 0, http.ErrBodyReadAfterClose
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return 0, b.err
	case len(p) == 0:
		return 0, nil
	}
	if b.proceed != nil {
		err = b.proceed()
		b.proceed = nil
	}
	if err == nil {
		n, err = b.read(p)
	}
	b.endLocked(err)
	return n, err
}

// endLocked ends the body with err, which later reads return, and notifies the connection by
// bodyEnded. It does nothing if err is nil or the body has ended already. The caller holds b.mu.
func (b *body) endLocked(err error) {
	if err == nil || b.err != nil {
		return
	}
	b.err = err
	b.owner.bodyEnded(err == io.EOF) //nolint:errorlint // set by read itself
}

// Close is part of [io.Closer]. It interrupts a Read in progress. If the unread rest of a
// body with Content-Length is in the buffer, Close discards it, so that the connection can
// be reused.
func (b *body) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	if !b.mu.TryLock() {
		b.owner.interrupt()
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	if b.err == nil && b.proceed == nil && b.framing == byLength && int64(b.src.buffered()) >= b.left {
		b.src.r += int(b.left)
		b.left = 0
		b.endLocked(io.EOF)
	}
	b.endLocked(http.ErrBodyReadAfterClose)
	return nil
}

// discard reads and drops the rest of a body after Close, but at most about limit bytes. It
// reports whether it reached the end of the body. It reads nothing if the sender waits for
// 100 Continue, or if more than limit bytes of Content-Length are left.
func (b *body) discard(limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.err == http.ErrBodyReadAfterClose //nolint:errorlint // set by Close
	if !closed || b.proceed != nil || b.framing == byLength && b.left > limit {
		return false
	}
	space := message.GetBuffer(smallSize)
	defer space.Release()
	for limit > 0 {
		n, err := b.read(space.B[:smallSize])
		limit -= int64(n)
		if err != nil {
			b.err = err
			return err == io.EOF //nolint:errorlint // set by read itself
		}
	}
	return false
}

// lost reports whether the body has failed, or has more than limit bytes of Content-Length left, so
// that discard would fail. It returns false while a Read is in progress.
func (b *body) lost(limit int64) bool {
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	failed := b.err != nil && b.err != io.EOF && b.err != http.ErrBodyReadAfterClose //nolint:errorlint // see discard
	return failed || b.framing == byLength && b.left > limit
}

// whole reports whether the body was read or discarded up to its end.
func (b *body) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == io.EOF //nolint:errorlint // set by read itself
}

// Pending returns the number of bytes that Read can return without waiting. If eof is true,
// the body ends after these bytes. It returns 0 and false while a Read is in progress.
func (b *body) Pending() (n int, eof bool) {
	if !b.mu.TryLock() {
		return 0, false // a Read waits
	}
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return 0, b.err == io.EOF //nolint:errorlint // set by read itself
	case b.closed.Load() || b.proceed != nil || b.framing == byClose:
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
		more, err := b.fetch(p[n:][:min(int64(len(p)-n), b.left)])
		n += more
		b.left -= int64(more)
		if err != nil {
			return n, noEOF(err)
		}
	}
}

// nextChunk parses the line before the next chunk, if the buffer has the whole line. It
// returns true if data of a chunk follows, and false if more bytes must be read first. At
// the end of the body it parses the trailers and returns io.EOF.
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

// readTrailers parses the trailers after the last chunk and stores the valid ones. It
// returns io.EOF after the trailers, and an error if they are malformed. It returns nil if
// the buffer does not have all trailers yet. The caller must then read more bytes.
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

// maxTrailers is the maximum size of the trailers of a body, in bytes.
const maxTrailers = 64 << 10

// fill reads more bytes into the buffer.
func (b *body) fill() error {
	_, err := b.receive(func() (int, error) { return b.src.fill(maxTrailers) })
	return err
}

// receive calls read, which reads from the connection, and measures how long it waits. It repeats a
// read that was interrupted, unless Close has interrupted it.
func (b *body) receive(read func() (int, error)) (int, error) {
	for {
		b.wait.Begin()
		n, err := read()
		b.wait.End(n)
		switch {
		case err != errInterrupted: //nolint:errorlint // set by this package
			return n, err
		case b.err == nil && b.closed.Load(): // b.err is set during discard
			return 0, http.ErrBodyReadAfterClose
		}
	}
}

// fetch reads bytes of the body into p. It returns buffered bytes if there are any.
// Otherwise it reads from the connection.
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
	return b.receive(func() (int, error) { return b.src.read(p) })
}
