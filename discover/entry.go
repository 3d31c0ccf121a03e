package discover

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// entry is what a cache keeps for a key.
type entry[K comparable, Req, Rsp any] struct {
	counted[Req, Rsp]
	handle *handle[K, Req, Rsp]
	closed atomic.Bool // the service said that it will never be ready again

	// The sweeper's alone.
	seen  uint64 // the word of uses when it last looked
	since time.Time
}

func (e *entry[K, Req, Rsp]) note(err error) {
	if errors.Is(err, layer.ErrClosed) {
		e.closed.Store(true)
	}
}

// isOver retires the entry if it is time.
func (e *entry[K, Req, Rsp]) isOver(now time.Time, idle time.Duration) bool {
	word := e.word.Load()
	switch {
	case e.closed.Load():
		e.retire()
		return true
	case word != e.seen || word&openMask != 0:
		e.seen, e.since = word, now
		return false
	}
	return now.Sub(e.since) >= idle && e.retireUnused(word)
}
