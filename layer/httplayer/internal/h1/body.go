package h1

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// framing specifies what ends a body: Content-Length, chunked coding, or the end of the
// connection.
type framing uint8

const (
	byLength framing = iota
	byChunks
	byClose
)

// body is a received message's body: a request on a server connection, or a response on a client
// connection.
type body struct {
	src     *source
	owner   bodyOwner
	trailer http.Header // receives the trailers; not nil if framing is byChunks
	wait    *sweep.Wait // &reads, if the limits on slow bodies apply; otherwise nil
	reads   sweep.Wait  // measures the time that Read waits for the peer
	framing framing

	closed   atomic.Bool  // Close was called
	received atomic.Int64 // bytes that Read has returned

	request *request // set if the client of a server connection expects 100 Continue; otherwise nil

	mu        sync.Mutex // guards the fields below; locked while Read waits
	awaits    bool       // the client may wait for 100 Continue, which the first Read sends
	remaining int64      // unread bytes of the body or of the current chunk
	err       error      // result of later reads; set when the body ends or fails
	started   bool       // the first chunk line has been read
	last      bool       // the chunk line of size 0 has been read
}

// bodyOwner is the connection that a body is received on.
type bodyOwner interface {
	// interrupt ends the Read in progress, because the body is being closed.
	interrupt()
	// bodyEnded is called once, when the body was read to its end, was closed, or failed.
	// whole is true if the body was read to its end.
	bodyEnded(whole bool)
}

// init prepares b for a message with the parsed headers h. header is the map made from h. For a chunked
// body, b.trailer gets the names in the header field Trailer, still without values.
func (b *body) init(src *source, owner bodyOwner, h *head, header http.Header) {
	b.src, b.owner = src, owner
	switch {
	case h.chunked:
		b.framing = byChunks
		// Trailers may also come unannounced, so there is always a map for them.
		if b.trailer = message.Announced(header["Trailer"]); b.trailer == nil {
			b.trailer = make(http.Header)
		}
	case h.length >= 0:
		b.remaining = h.length
	default:
		b.framing = byClose
	}
}

// Read implements [io.Reader]. It returns io.EOF together with the last bytes if the end of the
// body is already known.
func (b *body) Read(p []byte) (n int, err error) {
	if b.closed.Load() { // checked without mu first, because discard may hold it for a long time
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
	// The client sends the body only after it has received 100 Continue.
	if b.awaits {
		err = b.request.Inform(http.StatusContinue, nil)
		b.awaits = false
	}
	if err == nil {
		n, err = b.read(p)
		b.received.Add(int64(n))
	}
	b.endLocked(err)
	return n, err
}

// Arrive waits until some of the body, or its end, has arrived, without sending 100 Continue. After
// that, the client no longer waits for 100 Continue. Arrive always returns true, which tells the caller
// that the body comes from a connection.
func (b *body) Arrive() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Unless bytes are buffered, wait for some. A body that ends with the connection is that of a response, for which
	// no client waits.
	if b.err == nil && b.framing != byClose && b.src.buffered() == 0 {
		b.endLocked(noEOF(b.fill()))
	}
	// The client has begun to send, so it does not wait for 100 Continue any more.
	if b.awaits && b.err == nil {
		b.awaits = false
		b.request.forgoContinue()
	}
	return true
}

// Proceed sends 100 Continue to a client that waits for it. It does not wait for a Read or Arrive in
// progress.
func (b *body) Proceed() {
	if b.request != nil {
		_ = b.request.Inform(http.StatusContinue, nil)
	}
}

// endLocked records err as the end of the body, or as its failure, and tells the connection. Later
// reads return err. It does nothing if err is nil or the body has ended already. The caller holds b.mu.
func (b *body) endLocked(err error) {
	if err == nil || b.err != nil {
		return
	}
	b.err = err
	b.owner.bodyEnded(err == io.EOF) //nolint:errorlint // set by read itself
}

// Close implements [io.Closer]. It interrupts a Read in progress. If the unread rest of a body with
// Content-Length is in the buffer, Close discards it, so that the connection can be reused. Only
// the first call counts.
func (b *body) Close() error {
	if !b.closed.Swap(true) {
		b.end()
	}
	return nil
}

// end closes the body like Close, but also works while a Close is in progress. The body does not use
// the connection after end, unless discard is called.
func (b *body) end() {
	b.closed.Store(true)
	// A Read that waits for the peer holds mu: it must return first.
	if !b.mu.TryLock() {
		b.owner.interrupt()
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	// The rest has arrived already, so dropping it costs nothing and keeps the connection usable. If the
	// client may wait for 100 Continue, it may also leave the body out. The bytes are then the next request.
	if b.err == nil && !b.awaits && b.framing == byLength && int64(b.src.buffered()) >= b.remaining {
		b.src.r += int(b.remaining)
		b.remaining = 0
		b.endLocked(io.EOF)
	}
	b.endLocked(http.ErrBodyReadAfterClose) // does nothing if the body has ended
}

// discard reads and drops the rest of a closed body, at most about limit bytes, so that the connection
// can be reused. It reports whether it reached the end of the body. It reads nothing if the client
// waits for 100 Continue, because the body may then never come, or if Content-Length says that more
// than limit bytes are left.
func (b *body) discard(limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.err == http.ErrBodyReadAfterClose //nolint:errorlint // set by Close
	if !closed || b.awaits || b.framing == byLength && b.remaining > limit {
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

// exceeds reports whether discard would fail, because the body has failed or more than limit bytes of
// its Content-Length remain. It is asked before the response headers are sent, which announce whether
// the connection stays open. It returns false while a Read is in progress.
func (b *body) exceeds(limit int64) bool {
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	failed := b.err != nil && b.err != io.EOF && b.err != http.ErrBodyReadAfterClose //nolint:errorlint // see discard
	return failed || b.framing == byLength && b.remaining > limit
}

// whole reports whether the body was read or discarded up to its end.
func (b *body) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == io.EOF //nolint:errorlint // set by read itself
}

// Pending returns the number of bytes that Read can return without waiting. If eof is true, the
// body ends after these bytes. After the end was read, Pending returns 0 and true. It returns 0 and
// false while a Read is in progress, before the Read that sends 100 Continue, after a Close before the
// end, and while a body that ends with the connection goes on.
func (b *body) Pending() (n int, eof bool) {
	if !b.mu.TryLock() {
		return 0, false // a Read waits
	}
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return 0, b.err == io.EOF //nolint:errorlint // set by read itself
	case b.closed.Load() || b.awaits || b.framing == byClose:
		return 0, false
	case b.framing == byLength:
		n = int(min(b.remaining, int64(b.src.buffered())))
		return n, int64(n) == b.remaining
	}
	// The current chunk is used up. nextChunk parses only what is buffered, so it does not wait either.
	if b.remaining == 0 {
		if _, err := b.nextChunk(); err != nil {
			b.endLocked(err)
			return 0, err == io.EOF //nolint:errorlint // set by read itself
		}
	}
	return int(min(b.remaining, int64(b.src.buffered()))), false
}

// read reads body bytes into p, and returns io.EOF at the end of the body. The caller holds b.mu. For
// chunks, it fills p from several buffered chunks, but waits for the connection only if it has no byte
// yet.
func (b *body) read(p []byte) (n int, err error) {
	switch b.framing {
	case byClose:
		return b.fetch(p)
	case byLength:
		if b.remaining > 0 {
			n, err = b.fetch(p[:min(int64(len(p)), b.remaining)])
			b.remaining -= int64(n)
		}
		if err == nil && b.remaining == 0 {
			return n, io.EOF
		}
		return n, noEOF(err)
	case byChunks:
	}
	for {
		// Find the next chunk with data. Wait for more bytes only without any result yet.
		for b.remaining == 0 {
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
		count, err := b.fetch(p[n:][:min(int64(len(p)-n), b.remaining)])
		n += count
		b.remaining -= int64(count)
		if err != nil {
			return n, noEOF(err)
		}
	}
}

// nextChunk parses the line before the next chunk, if the buffer holds the whole line. It returns
// true if chunk data follows, and false if more bytes must be read first. At the end of the body
// it parses the trailers and returns io.EOF.
func (b *body) nextChunk() (ready bool, err error) {
	if !b.last {
		// n is 0 until the whole line has arrived.
		n, size, err := chunkLine(b.src.unread(), !b.started)
		if n == 0 || err != nil {
			return false, err
		}
		b.src.r += n
		b.started, b.remaining, b.last = true, size, size == 0
		if size > 0 {
			return true, nil
		}
	}
	return false, b.readTrailers()
}

// readTrailers parses the trailers after the last chunk and stores the valid ones. It returns
// io.EOF after the trailers, and an error if they are malformed. It returns nil if the buffer
// does not hold all trailers yet; the caller must then read more bytes.
func (b *body) readTrailers() error {
	text := b.src.unread()
	// A head that stays unused except for its fields, because trailers have the same syntax.
	h := head{length: -1}
	end, err := h.parseFields(text)
	if end == 0 || err != nil {
		return err
	}
	s := string(text[:end])
	header, _ := h.header(s, nil)
	for name, values := range header {
		if message.ValidTrailer(name) {
			b.trailer[name] = values
		}
	}
	b.src.r += end
	return io.EOF
}

// maxTrailers is the maximum size of a body's trailers, in bytes.
const maxTrailers = 64 << 10

// fill reads more bytes into the buffer.
func (b *body) fill() error {
	_, err := b.receive(func() (int, error) { return b.src.fill(maxTrailers) })
	return err
}

// receive calls read, which reads from the connection, and measures how long it waits. A read that
// another goroutine has interrupted is repeated, unless the interruption was to close the body.
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
	const direct = 2 << 10 // a smaller Read is served from the buffer
	// Chunks are often small. Reading into the buffer gets the line of the next chunk with the same
	// system call.
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
