package dns

import (
	"context"
	"fmt"
	"slices"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/resolve"
)

// flight repeats the lookups of one target and has their latest result. All streams of the
// target share it.
type flight struct{ share.Latest[resolve.Update] }

// startFlight starts the lookups of a target on a new goroutine. look performs one lookup. The
// returned function ends the lookups and waits until the goroutine has returned.
func startFlight(o *options, look func(context.Context) (found, error)) (*flight, func()) {
	// The lookups do not use the context of a stream, because all streams share them.
	ctx, cancel := context.WithCancel(context.Background())
	f, ended := new(flight), make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx, o, look)
	}()
	return f, func() {
		cancel()
		<-ended
	}
}

// run performs lookups by calling look, one after the other, until ctx ends. Between two lookups
// it waits for the TTL, or for the backoff after a failure. An answer that is equal to the
// previous one is stored only after a failure, to show that the failure has ended.
func (f *flight) run(ctx context.Context, o *options, look func(context.Context) (found, error)) {
	var last resolve.Update
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
			f.Fail(err)
		} else {
			u := resolve.Update{Kind: result.kind, Endpoints: result.endpoints}
			if failures > 0 || u.Kind != last.Kind || !slices.EqualFunc(u.Endpoints, last.Endpoints, resolve.Endpoint.Equal) {
				f.Set(u)
			}
			failures, last = 0, u
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// follow yields the latest result, and then each later one, until ctx ends or the consumer
// breaks.
func (f *flight) follow(ctx context.Context, yield func(resolve.Update, error) bool) {
	var seen share.Position
	for ctx.Err() == nil {
		c := f.Look(&seen)
		c.Value.Endpoints = slices.Clone(c.Value.Endpoints) // the consumer owns the slice
		if c.Fresh && !yield(c.Value, nil) {
			return
		}
		if c.Err != nil && (ctx.Err() != nil || !yield(resolve.Update{}, c.Err)) {
			return
		}
		select {
		case <-c.Next:
		case <-ctx.Done():
		}
	}
}
