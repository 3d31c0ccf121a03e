package httplayer

import (
	"sync"
	"sync/atomic"
	"time"
)

// takenBack counts the streams of a connection that were reset, against an
// allowance: most of them at once, most more in a second, and one for each response
// that began, which a 1xx does not. One that its client resets when it was there for
// a while does not count: it kept to the limit of streams, and cost no more than an
// answer would.
type takenBack struct {
	most int64
	some atomic.Bool // more than a share is used, or was
	much atomic.Bool

	mu    sync.Mutex
	used  int64
	noted int64     // of used, by hasty
	at    time.Time // when used was last made less by time
	marks [8]streamMark
	mark  int // the newest of them
}

// streamMark is a short period in which streams were opened.
type streamMark struct {
	at     time.Time // when it began
	stream uint32    // the last of them; those before have smaller numbers
}

// streamAWhile is how long a stream must be there to count as one that is used.
const (
	streamAWhile = 250 * time.Millisecond
	streamPeriod = streamAWhile / 4
)

func (t *takenBack) opened(stream uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.marks[t.mark].at) > streamPeriod {
		t.mark = (t.mark + 1) % len(t.marks)
		t.marks[t.mark].at = now
	}
	t.marks[t.mark].stream = stream
}

// old reports whether a stream is known to have been opened a while ago, with
// mu held.
func (t *takenBack) old(stream uint32) bool {
	now := time.Now()
	for _, m := range t.marks {
		if stream <= m.stream && now.Sub(m.at) >= streamAWhile+streamPeriod {
			return true
		}
	}
	return false
}

// interim reports whether a field block that net/http sends is 100 Continue, or
// another 1xx, as far as that can be told from what it begins with: the status. A
// client may ask for as many of them as it likes, so they are no answers.
func interim(f frameHead, block []byte) bool {
	// Of HPACK (RFC 7541, appendix A and section 6), as net/http uses it.
	const status, literal, resize, kind, indexed = 14, 0x40, 0x20, 0xe0, 0x80
	if f.flags&endStream != 0 || len(block) == 0 {
		return false
	}
	switch first := block[0]; {
	case first&indexed != 0:
		// It may be any that was said before; but no final one stands alone: there
		// is a Date.
		return first > indexed|status && oneIndex(block)
	case first&kind == resize:
		return true // which a client asks for, too
	case first == literal|status, first == status:
		return len(block) > 2 && block[2]>>3 == 1 // the Huffman code of "1"
	}
	return false
}

// oneIndex reports whether a field block that begins with an index has nothing but
// that. It takes more than a byte where much was said since.
func oneIndex(block []byte) bool {
	n := 1
	if block[0] == 0xff {
		for n < len(block) && block[n]&0x80 != 0 {
			n++
		}
		n++
	}
	return n == len(block)
}

func (t *takenBack) answered() {
	t.mu.Lock()
	t.used = max(0, t.used-1)
	t.mu.Unlock()
}

// takenBy is told of a stream that the client has reset.
func (t *takenBack) takenBy(stream uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.old(stream) {
		t.countLocked()
	}
}

// reset is told of a stream that the server has reset.
func (t *takenBack) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.countLocked()
}

func (t *takenBack) countLocked() {
	if t.at.IsZero() {
		t.at = time.Now()
	}
	t.used++
	if t.used > t.share() {
		t.some.Store(true)
	}
	if t.used <= t.most {
		return
	}
	t.refillLocked()
	if t.used > t.most {
		t.much.Store(true)
	}
}

func (t *takenBack) refillLocked() {
	now := time.Now()
	if back := int64(now.Sub(t.at).Seconds() * float64(t.most)); back > 0 {
		t.used, t.at = max(0, t.used-back), now
	}
}

// held is told that the client waited until now for what it took back, which is
// not forgotten for that.
func (t *takenBack) held() {
	t.mu.Lock()
	t.at = time.Now()
	t.mu.Unlock()
}

// share is how much of the allowance may be used before a client is hasty.
func (t *takenBack) share() int64 { return t.most / 4 }

// hasty reports, once for each share of the allowance, that it is used.
func (t *takenBack) hasty() bool {
	if !t.some.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refillLocked()
	t.noted = min(t.noted, t.used)
	if t.used <= t.share() {
		t.some.Store(false)
		return false
	}
	if t.used-t.noted <= t.share() {
		return false
	}
	t.noted = t.used
	return true
}

func (t *takenBack) over() bool { return t.much.Load() }
