package tap

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// maxTails is how many windows are still read of which the requests are not
// all over. The oldest is given up for another.
const maxTails = 8

// paced watches a process whose tap has a limit and no rate. It does so in
// windows: a window is a call of Observe for up to each requests, and no two
// begin within every. linkerd's own tap waits for the last request of a window;
// here the next begins when the one before is full, and what that still has to
// tell is read beside.
type paced struct {
	observe func(ctx context.Context, limit uint32) iter.Seq2[Event, error]
	each    uint32
	every   time.Duration
	left    uint64         // requests in all
	lost    func(StreamID) // is told of requests whose end will not come; may be nil

	items chan pacedItem
	tails sync.WaitGroup
}

type pacedItem struct {
	Event
	err error
}

// all is the events of all windows. It ends with the first error, or when
// nothing is left.
func (w *paced) all(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		w.items = make(chan pacedItem)
		var opening sync.WaitGroup
		defer opening.Wait()
		defer cancel()
		opening.Go(func() {
			defer close(w.items)
			w.open(ctx)
			w.tails.Wait()
		})
		for i := range w.items {
			if !yield(i.Event, i.err) || i.err != nil {
				return
			}
		}
	}
}

// open opens one window after the other.
func (w *paced) open(ctx context.Context) {
	var cancels []context.CancelFunc
	defer func() {
		w.tails.Wait()
		for _, cancel := range cancels {
			cancel()
		}
	}()
	for w.left > 0 && ctx.Err() == nil {
		if len(cancels) == maxTails {
			cancels[0]()
			cancels = cancels[1:]
		}
		reading, cancel := context.WithCancel(ctx)
		cancels = append(cancels, cancel)
		begun, seen := time.Now(), make(chan uint64, 1)
		limit := uint32(min(uint64(w.each), w.left))
		w.tails.Go(func() { w.read(ctx, reading, limit, seen) })
		w.left -= min(<-seen, w.left)
		if w.left > 0 {
			_ = backoff.Sleep(ctx, time.Until(begun.Add(w.every)))
		}
	}
}

// read reads one window, until it ends or reading does. Seen is sent how many
// requests there were, as soon as there are no more.
func (w *paced) read(ctx, reading context.Context, limit uint32, seen chan<- uint64) {
	running := map[StreamID]bool{}
	var inits uint64
	defer func() {
		for id := range running {
			if w.lost != nil {
				w.lost(id)
			}
		}
		if inits < uint64(limit) {
			seen <- inits
		}
	}()
	for e, err := range w.observe(reading, limit) {
		if err != nil && reading.Err() != nil {
			return
		}
		if e.RequestInit != nil {
			running[e.ID] = true
			if inits++; inits == uint64(limit) {
				seen <- inits
			}
		}
		select {
		case w.items <- pacedItem{e, err}:
		case <-ctx.Done():
			return
		}
		if e.ResponseEnd != nil {
			delete(running, e.ID)
		}
	}
}
