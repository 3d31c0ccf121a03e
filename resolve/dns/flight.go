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

// flight has the running lookups of one target and their latest result.
type flight struct {
	cancel  context.CancelFunc
	ended   chan struct{} // closed when run has returned
	streams int           // guarded by the Resolver's mu

	mu      sync.Mutex
	changed chan struct{} // closed when one of the fields below changes
	answers int           // number of answers that differed from the previous one, or ended a failure
	update  resolve.Update
	errors  int   // number of failed lookups
	err     error // the error of the last lookup, or nil
}

func newFlight(cancel context.CancelFunc) *flight {
	return &flight{cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{})}
}

// run performs lookups until ctx ends.
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
			f.set(resolve.Update{Kind: result.kind, Endpoints: result.endpoints})
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// set stores u as the latest update. The first update after a failure counts as a
// change even if it is the same, because streams yield it to end the failure.
func (f *flight) set(u resolve.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	same := f.update.Kind == u.Kind && slices.EqualFunc(f.update.Endpoints, u.Endpoints, resolve.Endpoint.Equal)
	if same && f.err == nil {
		return
	}
	f.update, f.err = u, nil
	f.answers++
	f.notify()
}

func (f *flight) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	f.errors++
	f.notify()
}

// notify wakes all streams. The caller must hold mu.
func (f *flight) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// changes has the items that a stream must yield.
type changes struct {
	update  *resolve.Update
	err     error
	changed <-chan struct{} // closed at the next change
}

// position has the numbers of answers and errors that a stream has yielded.
type position struct{ answers, errors int }

// look returns the changes since at, and updates at.
func (f *flight) look(at *position) changes {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := changes{changed: f.changed}
	if f.answers > at.answers {
		u := f.update
		u.Endpoints = slices.Clone(u.Endpoints) // the consumer owns the slice
		n.update = &u
	}
	if f.errors > at.errors {
		n.err = f.err // nil if the failure has ended
	}
	*at = position{f.answers, f.errors}
	return n
}

// follow yields the latest result and each change until ctx ends or the consumer breaks.
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
