package layer

import (
	"errors"
	"io"
	"sync"
)

// BodyReplay is a request body that can be sent several times, one after the
// other or side by side. It is a [Replay] of the body alone: protocol packages
// build theirs around it. Its methods, and its readers, are safe for
// concurrent use.
//
// The source is read only when a reader needs more of it, by one reader at a
// time; the others wait for what that one gets. What was read is kept until
// End, up to the limit and one Read more. Once the limit is exceeded, there
// are no more tries, nothing more is kept, and only the reader that is
// furthest goes on; those behind it fail.
type BodyReplay struct {
	mu      sync.Mutex
	moved   sync.Cond // the source gave something, or a reader was closed
	source  io.ReadCloser
	limit   int64
	readers []*replayReader // that are open
	first   replayReader    // of every request, so it has no allocation of its own
	room    [2]*replayReader
	handed  bool // first was given out

	kept    []byte // all that the source gave, unless forgot
	forgot  bool
	pos     int64         // how much the source gave
	err     error         // how the source ended
	fetches *replayReader // is in the source's Read
	ended   bool
	closed  bool // the source is
}

var (
	errReplayClosed  = errors.New("read of a closed request body")
	errReplayRetired = errors.New("this try of the request was given up")
	errReplayBehind  = errors.New("another try is ahead by more than is kept of the request body")
	errReplayBroken  = errors.New("reading the request body panicked")
)

// ReplayBody makes body ready to be sent more than once, and keeps up to limit
// bytes of it for that. It reads nothing yet. A limit of 0 or less keeps
// nothing: the body can be sent again until its first byte was read.
//
// The source is closed once, when no more tries will come (see End) and every
// reader has been closed. A reader that is never closed, because the service
// that it was for has refused the request, leaves the source open.
func ReplayBody(body io.ReadCloser, limit int64) *BodyReplay {
	b := &BodyReplay{}
	b.init(body, limit)
	return b
}

func (b *BodyReplay) init(body io.ReadCloser, limit int64) {
	b.source, b.limit = body, max(limit, 0)
	b.moved.L = &b.mu
	b.readers = b.room[:0]
}

// Next returns a reader of the body from its beginning; false when that is
// gone: the body was larger than the limit, reading it failed, or End was
// called. The readers handed out before stay as they are. The service that
// gets the reader closes it.
func (b *BodyReplay) Next() (io.ReadCloser, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.forgot || b.closed || b.err != nil && !errors.Is(b.err, io.EOF) {
		return nil, false
	}
	r := &b.first
	if b.handed {
		r = &replayReader{}
	}
	b.handed = true
	r.body = b
	b.readers = append(b.readers, r)
	return r, true
}

// Whole reports whether the source was read to its end, and all of it is kept.
func (b *BodyReplay) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Is(b.err, io.EOF) && !b.forgot
}

// Retire gives up every reader but the newest: what it was for is over, and
// should it be read still, it fails. Retry calls it, where a [Replay] has it,
// before it sends a request again.
func (b *BodyReplay) Retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.readers) > 1 {
		b.drop(b.readers[0], errReplayRetired)
	}
}

// End says that no more tries will come. The readers go on; what is kept goes
// as soon as none of them needs it.
func (b *BodyReplay) End() {
	b.mu.Lock()
	b.ended = true
	b.forget()
	over := b.over()
	b.mu.Unlock()
	if over {
		b.source.Close()
	}
}

// Close gives up every reader, and closes the source. Retry calls it, where a
// [Replay] has it, when a request that was sent ends with a refusal, so that
// nobody else will close it.
func (b *BodyReplay) Close() error {
	b.mu.Lock()
	b.ended = true
	for len(b.readers) > 0 {
		b.drop(b.readers[0], errReplayRetired)
	}
	b.forget()
	over := !b.closed
	b.closed = true
	b.mu.Unlock()
	if over {
		return b.source.Close()
	}
	return nil
}

// drop takes r out of the open readers; reading it fails from now on.
func (b *BodyReplay) drop(r *replayReader, err error) {
	for i, open := range b.readers {
		if open == r {
			b.readers = append(b.readers[:i], b.readers[i+1:]...)
			break
		}
	}
	r.err = err
	b.moved.Broadcast()
}

// over reports, once, that the source is to be closed.
func (b *BodyReplay) over() bool {
	if !b.ended || len(b.readers) > 0 || !b.handed || b.closed {
		return false
	}
	b.closed = true
	return true
}

// forget lets go of what is kept when nobody will read it.
func (b *BodyReplay) forget() {
	if !b.ended && !b.forgot && int64(len(b.kept)) <= b.limit {
		return // for the next try
	}
	if b.fetches != nil && b.fetches.err != nil {
		return // what it gets is for the others
	}
	live := 0
	for _, r := range b.readers {
		if r.err != nil {
			continue
		}
		if live++; live > 1 || r.pos < b.pos {
			return
		}
	}
	b.kept, b.forgot = nil, true
}

// take accepts what r got from the source.
func (b *BodyReplay) take(r *replayReader, p []byte, err error) {
	b.pos += int64(len(p))
	r.pos = b.pos
	b.err = err
	if b.forgot || len(p) == 0 {
		return
	}
	fits := int64(len(b.kept)+len(p)) <= b.limit
	if r.err == nil && !fits {
		b.leaveBehind(r)
	} else {
		// One that was given up may have read on behalf of the others.
		b.kept = append(b.kept, p...)
	}
	b.forget()
}

// leaveBehind fails all readers but r.
func (b *BodyReplay) leaveBehind(r *replayReader) {
	for _, other := range b.readers {
		if other != r {
			other.err = errReplayBehind
		}
	}
	b.kept, b.forgot = nil, true
}
