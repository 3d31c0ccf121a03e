package kit

import (
	"sync"

	"github.com/go-kit/kit/sd"
)

// board holds the latest events for any number of readers, none of which it
// waits for.
type board struct {
	mu      sync.Mutex
	count   uint64
	good    event // the latest with instances
	bad     event // the latest with an error
	changed chan struct{}
}

// event is what an Instancer said, numbered from 1.
type event struct {
	sd.Event
	number uint64
}

func newBoard() *board { return &board{changed: make(chan struct{})} }

// note keeps the latest event of either sort, and wakes the readers.
func (b *board) note(e sd.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	if e.Err != nil {
		b.bad = event{e, b.count}
	} else {
		b.good = event{e, b.count}
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// after returns the latest events that came after the numbered one, in their
// order, and a channel that closes when there are others. A reader that has
// seen nothing is not told of an error that is over.
func (b *board) after(seen uint64) ([]event, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []event{b.good, b.bad}
	if b.bad.number < b.good.number {
		list = []event{b.bad, b.good}
		if seen == 0 {
			list = list[1:]
		}
	}
	var fresh []event
	for _, e := range list {
		if e.number > seen {
			fresh = append(fresh, e)
		}
	}
	return fresh, b.changed
}
