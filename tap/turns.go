package tap

import (
	"context"
	"time"
)

// turns are how a reader sends to somebody for whom each sending has a price
// of its own, whatever is sent: a system call here, another and two goroutines
// that wake there. The zero turns are for a reader to whom that is nothing.
type turns struct {
	more   int               // events after the first that are sent in one turn
	gather time.Duration     // waited for them
	ask    func(n int) error // waits until n events may be sent; nil: at once
}

// Turns of a reader over gRPC.
const (
	// gatherFor is too short to be noticed, and longer than most requests
	// take: their three events are sent together.
	gatherFor = 5 * time.Millisecond

	// mostMore bounds the time that a turn takes from requests.
	mostMore = 15
)

func (t *turns) wait(n int) error {
	if t.ask == nil {
		return nil
	}
	return t.ask(n)
}

// gather waits for what follows an event, but not beyond the end of anything,
// nor until the buffer is full.
func (r *reader) gather(ctx context.Context, down, over <-chan struct{}) {
	if r.turns.gather == 0 || len(r.unread.events) >= r.turns.more {
		return
	}
	timer := time.NewTimer(r.turns.gather)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.unread.filling:
	case <-r.done:
	case <-over:
	case <-ctx.Done():
	case <-down:
	}
}
