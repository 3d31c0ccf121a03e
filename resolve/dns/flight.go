package dns

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

// flight is the lookups of one target, and what is known by them.
type flight struct {
	cancel  context.CancelFunc
	ended   chan struct{} // closed when run has returned
	streams int           // that follow it; guarded by the Resolver's mu

	mu      sync.Mutex
	changed chan struct{} // closed when what is below is no longer what is known
	answers int           // how many there were that are news
	update  resolve.Update
	errors  int // how many lookups failed
	err     error
}

func newFlight(cancel context.CancelFunc) *flight {
	return &flight{cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{})}
}

// run looks the target up until ctx ends.
func (f *flight) run(ctx context.Context, o *options, look func(context.Context) (found, error)) {
	defer close(f.ended)
	for failures := 0; ; {
		var result found
		var err error
		if panicked := panics.Contain(func() { result, err = look(ctx) }); panicked != nil {
			err = fmt.Errorf("dns: look up: %w", panicked)
		}
		if ctx.Err() != nil {
			return
		}
		wait := o.refresh(result.ttl)
		if err != nil {
			wait = o.backoff.Delay(failures)
			failures++
			f.fail(err)
		} else {
			failures = 0
			f.tell(resolve.Update{Kind: result.kind, Endpoints: result.endpoints})
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// tell makes u what is known. After a failure it is news even if it was known
// before, for the failure is over.
func (f *flight) tell(u resolve.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	same := f.update.Kind == u.Kind && slices.EqualFunc(f.update.Endpoints, u.Endpoints, resolve.Endpoint.Equal)
	if same && f.err == nil {
		return
	}
	f.update, f.err = u, nil
	f.answers++
	f.wake()
}

func (f *flight) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	f.errors++
	f.wake()
}

// wake is called with mu held.
func (f *flight) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// news is what a stream has not yielded yet.
type news struct {
	update  *resolve.Update
	err     error
	changed <-chan struct{} // closed when there is more
}

// position is how far a stream is.
type position struct{ answers, errors int }

// look returns what is new since at, and moves at on. Both are of one moment,
// so no change falls between them.
func (f *flight) look(at *position) news {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := news{changed: f.changed}
	if f.answers > at.answers {
		u := f.update
		u.Endpoints = slices.Clone(u.Endpoints) // the consumer may do with it what it likes
		n.update = &u
	}
	if f.errors > at.errors {
		n.err = f.err // nil if that is over
	}
	*at = position{f.answers, f.errors}
	return n
}

// follow yields what is known, and what changes, until ctx ends or the consumer
// breaks.
func (f *flight) follow(ctx context.Context, yield func(resolve.Update, error) bool) {
	var at position
	for ctx.Err() == nil {
		n := f.look(&at)
		if n.update != nil && !yield(*n.update, nil) {
			return
		}
		if n.err != nil && (ctx.Err() != nil || !yield(resolve.Update{}, n.err)) {
			return
		}
		select {
		case <-n.changed:
		case <-ctx.Done():
		}
	}
}
