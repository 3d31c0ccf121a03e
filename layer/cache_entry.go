package layer

import (
	"errors"
	"sync/atomic"
	"time"
)

// cacheEntry is what a cache keeps for a key.
type cacheEntry[K comparable, Req, Rsp any] struct {
	cacheLife[Req, Rsp]
	handle *cacheHandle[K, Req, Rsp]
	inner  atomic.Pointer[Service[Req, Rsp]] // nil once nothing is open for good: handles may be kept for longer
	closed atomic.Bool                       // the service said that it will never be ready again

	// The sweeper's alone.
	seen  uint64 // the word of its uses when it last looked
	since time.Time
}

// describe is of what is kept, if it is.
func (e *cacheEntry[K, Req, Rsp]) describe() *Node {
	inner := e.inner.Load()
	if inner == nil {
		return nil
	}
	return new(Describe(*inner))
}

// note reports whether by err the service will never be ready again.
func (e *cacheEntry[K, Req, Rsp]) note(err error) bool {
	closed := errors.Is(err, ErrClosed)
	if closed {
		e.closed.Store(true)
	}
	return closed
}

// isOver retires the entry if it is time.
func (e *cacheEntry[K, Req, Rsp]) isOver(now time.Time, idle time.Duration) bool {
	word := e.Word()
	switch {
	case e.closed.Load():
		e.Retire()
		return true
	case word != e.seen || e.Open() > 0:
		e.seen, e.since = word, now
		return false
	}
	return now.Sub(e.since) >= idle && e.RetireUnused(word)
}
