package layer

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// BodyReplay is a request body that can be sent several times. Protocol packages use it to
// implement [Replay]. Its methods and readers are safe for concurrent use.
//
// It stores bytes as they are read, up to the limit given to [ReplayBody]. Until the source has
// been read to its end, only the most recent reader from Next is valid. After that, all readers
// read the stored bytes.
type BodyReplay struct {
	source io.ReadCloser
	get    func() (io.ReadCloser, error) // returns another body for each attempt; nil if the bytes must be stored
	limit  int64

	mu       sync.Mutex
	moved    sync.Cond     // signals that the source returned bytes, or a reader was closed
	first    replayReader  // avoids an allocation
	current  *replayReader // the reader that Next returned last
	open     int           // number of open readers
	data     []byte        // the bytes of the source from position base on
	base     int64
	full     bool  // Next returns false, because the limit was exceeded or End was called
	err      error // the error with which the source ended
	fetching bool  // a reader reads from the source
	ended    bool  // End was called
	closed   bool  // the source was closed
}

// The errors of a read from a BodyReplay's reader.
var (
	errReplayClosed = errors.New("read of a closed request body")
	errReplayOld    = errors.New("read of the request body of an earlier attempt")
	errReplayBroken = errors.New("reading the request body panicked")
)

// ReplayBody returns a BodyReplay whose source is body, which it does not read yet. If get is not
// nil, it returns another copy of the body for each attempt after the first. If get is nil, the
// BodyReplay stores up to limit bytes of the source. If limit is then 0 or less, the body can be
// sent again only until its first byte was read.
//
// If get is not nil, the first attempt gets the source itself and closes it. If get is nil, the
// source is closed once End was called and all readers are closed. A rejected attempt does not
// close its reader. If the last attempt is rejected, the source therefore stays open until the
// caller closes it.
func ReplayBody(body io.ReadCloser, get func() (io.ReadCloser, error), limit int64) *BodyReplay {
	b := &BodyReplay{}
	b.init(body, get, limit)
	return b
}

// init sets the source, as ReplayBody describes. A BodyReplay may be part of another allocation.
func (b *BodyReplay) init(body io.ReadCloser, get func() (io.ReadCloser, error), limit int64) {
	b.source, b.get, b.limit = body, get, max(limit, 0)
	b.moved.L = &b.mu
}

// Next returns a reader for the next attempt, which reads the body from its beginning. The
// service to which the attempt is sent must close the reader. Next returns false if the
// body is larger than the limit, reading it failed, or End was called.
func (b *BodyReplay) Next() (io.ReadCloser, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The first attempt takes the source. Each later one gets another body from get.
	if b.get != nil && b.current != nil {
		body, err := b.get()
		return body, err == nil
	}
	// The body is not stored completely, or cannot be read to its end.
	if b.full || b.err != nil && !errors.Is(b.err, io.EOF) {
		return nil, false
	}
	r := &b.first
	if b.current != nil {
		r = &replayReader{}
		// The source was not read to its end, so only one reader may use it.
		if b.err == nil {
			b.drop(b.current, errReplayOld)
		}
	}
	r.body, b.current = b, r
	// The source itself is the body; nothing must be stored.
	if b.get != nil {
		return b.source, true
	}
	// Only readers of the stored bytes count, because they keep the source open.
	b.open++
	return r, true
}

// Whole reports whether earlier readers stay valid after the next call of Next. That is true if
// the body was read to its end and is stored completely, or if get was given to [ReplayBody],
// because then each attempt gets its own body.
func (b *BodyReplay) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.get != nil || errors.Is(b.err, io.EOF) && !b.full
}

// End declares that no more attempts follow. Readers that are still open stay valid.
func (b *BodyReplay) End() {
	b.mu.Lock()
	// full makes Next return false.
	b.ended, b.full = true, true
	b.trim()
	b.unlockAndClose()
}

// drop makes r invalid: all its later Reads return err. It does nothing if r is invalid already. The
// caller must hold mu.
func (b *BodyReplay) drop(r *replayReader, err error) {
	if r.err == nil {
		r.err = err
		b.open--
		b.moved.Broadcast()
	}
}

// trim releases the stored bytes once the body cannot be sent again and the current reader has read all
// of them. The caller must hold mu.
func (b *BodyReplay) trim() {
	// While the source has not ended, its current reader needs only the bytes that it has not read.
	if end := b.base + int64(len(b.data)); b.full && b.err == nil && b.current != nil && b.current.pos == end {
		b.data, b.base = nil, end
	}
}

// unlockAndClose unlocks mu, which the caller has locked. After End, when no reader is open any more, it also
// releases the stored bytes and closes the source.
func (b *BodyReplay) unlockAndClose() {
	// The source belongs to the BodyReplay, nothing reads it any longer, and no attempt will follow.
	last := b.ended && b.open == 0 && b.current != nil && b.get == nil && !b.closed
	if last {
		b.closed, b.data = true, nil
	}
	b.mu.Unlock()
	if last {
		// Without the lock, because Close may block.
		_ = b.source.Close()
	}
}

// replayReader is one attempt's body. Its fields are guarded by the BodyReplay's mutex.
type replayReader struct {
	body *BodyReplay
	pos  int64
	err  error // all Reads return it; nil while the reader is valid
}

// Read returns stored bytes, if there are some for the reader, and otherwise reads from the source.
// Only one reader at a time does that; the others wait for its bytes.
func (r *replayReader) Read(p []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		// The order matters: bytes that are stored come before the error with which the source has ended.
		switch {
		case r.err != nil:
			return 0, r.err
		case len(p) == 0:
			return 0, nil
		case r.pos < b.base+int64(len(b.data)):
			n := copy(p, b.data[r.pos-b.base:])
			r.pos += int64(n)
			b.trim()
			return n, nil
		case b.err != nil:
			return 0, b.err
		case !b.fetching:
			return r.fetch(p) // with the mutex locked again when it returns
		}
		b.moved.Wait()
	}
}

// fetch reads from the source into p and stores the bytes for later attempts. The caller must hold the
// mutex, which is unlocked during the Read of the source and locked again when fetch returns.
func (r *replayReader) fetch(p []byte) (n int, err error) {
	b := r.body
	b.fetching = true
	b.mu.Unlock()
	err = errReplayBroken // in case the source panics
	defer func() {
		b.mu.Lock()
		b.fetching = false
		r.take(p[:n], err)
		b.moved.Broadcast()
		if n > 0 {
			err = nil // the next Read returns it
		}
	}()
	return b.source.Read(p)
}

// take stores p and err, which the source's Read has returned to the reader r. If r was closed or
// replaced during the Read, it has not returned p, so later readers get it. The caller must hold the
// mutex.
func (r *replayReader) take(p []byte, err error) {
	b := r.body
	if b.err = err; len(p) == 0 {
		return
	}
	b.full = b.full || int64(len(b.data)+len(p)) > b.limit
	if r.err == nil {
		r.pos += int64(len(p))
	}
	if r.err == nil && b.full { // the body cannot be sent again, so the stored bytes are not needed
		b.data, b.base = nil, r.pos
	} else {
		b.data = append(b.data, p...)
	}
}

// Close makes the reader invalid. The source is closed only if no attempt can follow.
func (r *replayReader) Close() error {
	r.body.mu.Lock()
	r.body.drop(r, errReplayClosed)
	r.body.unlockAndClose()
	return nil
}

// Replay is one request that may be sent several times. Its methods are safe for concurrent
// use. If an attempt was not sent, the caller must close its body.
type Replay[Req any] interface {
	// Next returns the request for the next attempt, with a body that starts at its
	// beginning. It returns false if the body is larger than the limit or reading it
	// failed. Bodies of earlier attempts stay valid only if Whole returned true before.
	Next() (Req, bool)

	// Whole reports whether the body was read to its end and can be sent again.
	Whole() bool

	// End declares that no more attempts follow. Attempts in flight continue.
	End()
}

// drainBytes and drainTime limit how much, and for how long, [DrainBody] reads.
const (
	drainBytes = 8 << 10
	drainTime  = 50 * time.Millisecond
)

// DrainBody implements Drain for a [Protocol]. It reads up to 8 KiB of a response body for up to
// 50 ms, so that the connection can be reused. Then it closes the body. The body may be closed
// concurrently.
func DrainBody(body io.ReadCloser) {
	closed := sync.OnceFunc(func() { body.Close() }) // repeats a panic of the timer's call here
	timer := time.AfterFunc(drainTime, func() { _ = panics.Contain(closed) })
	defer timer.Stop()
	defer closed()
	// The limit is one byte higher, because a read of exactly drainBytes does not see the end.
	io.CopyN(io.Discard, body, drainBytes+1) //nolint:errcheck // the body is discarded
}
