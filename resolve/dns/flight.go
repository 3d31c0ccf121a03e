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

// flight repeats the lookups for one target, as long as the target has streams, and holds the latest
// result for all of them.
type flight struct{ share.Latest[resolve.Update] }

// lookFunc performs one lookup. It calls onPartial with endpoints that it finds while another
// question is still unanswered. If a question fails, it returns the error, possibly together with
// endpoints.
type lookFunc func(ctx context.Context, onPartial func(found)) (found, error)

// startFlight starts the lookups for a target on a new goroutine. The returned function ends the
// lookups and waits until the goroutine has returned.
func startFlight(o *options, lookUp lookFunc) (*flight, func()) {
	// The lookups do not use a stream context, because all streams share them.
	ctx, cancel := context.WithCancel(context.Background())
	f := new(flight)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx, o, lookUp)
	}()
	return f, func() {
		cancel()
		<-ended
	}
}

// run performs lookups by calling lookUp, one after the other, until ctx ends. Between two lookups
// it waits for the TTL, and no longer than the backoff after a failure. An answer that equals the
// previous one is stored only after a failure, to show that the failure has ended. An answer
// without endpoints does not replace one with endpoints before the next lookup confirms it.
func (f *flight) run(ctx context.Context, o *options, lookUp lookFunc) {
	var last resolve.Update
	// isFailed: an error was stored last. isDoubted: the last answer had no endpoints, but replaces
	// those before it only if the next lookup confirms it.
	isFailed, isDoubted := false, false
	// set stores result for the streams. If it equals the last one, that happens only if force is true.
	set := func(result found, force bool) {
		u := resolve.Update{Kind: result.kind, Endpoints: result.endpoints}
		if force || u.Kind != last.Kind || !slices.EqualFunc(u.Endpoints, last.Endpoints, resolve.Endpoint.Equal) {
			f.Set(u)
			last, isFailed = u, false
		}
	}
	// failures counts the failed lookups since the last one that worked. It determines the backoff.
	for failures := 0; ; {
		// Partial results are stored too: the addresses of one family need not wait for a slow question
		// for the other. A panic of lookUp becomes an error, like that of a server.
		result, err := contain(ctx, lookUp, func(partial found) { set(partial, false) })
		// The last stream has ended.
		if ctx.Err() != nil {
			return
		}
		wait := o.refresh(result.ttl)
		if err == nil {
			failures = 0
		} else {
			// A failure is repeated earlier than the TTL says, but not later.
			if delay := o.backoff.Delay(failures); result.ttl == maxTTL || delay < wait {
				// maxTTL means that the lookup has no answer, and so no TTL.
				wait = delay
			}
			failures++
		}
		// Some endpoints, found although a question failed, are not a failure, unless they are old.
		hasFailed := err != nil && (result.stale || len(result.endpoints) == 0)
		switch {
		// The usual case. After a failure, equal endpoints are stored too, because they end the error.
		case len(result.endpoints) > 0:
			set(result, isFailed && !hasFailed)
			isDoubted = false
		// Deliberately empty: the lookup has no result, and the last endpoints stay.
		case hasFailed:
		// The first answer without endpoints. It may be a server's mistake, so the last ones stay for now.
		case len(last.Endpoints) > 0 && !isDoubted:
			// Ask again soon, in the shortest time that WithRefresh allows.
			isDoubted = true
			wait = o.refresh(0)
		// The answer without endpoints is confirmed, or there were none before.
		default:
			set(result, isFailed)
		}
		// Stored after the endpoints, so that a new stream gets them first.
		if hasFailed {
			f.Fail(err)
			isFailed = true
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// contain calls lookUp. If lookUp panics, contain returns the panic as an error.
func contain(ctx context.Context, lookUp lookFunc, onPartial func(found)) (result found, err error) {
	if panicked := panics.Contain(func() { result, err = lookUp(ctx, onPartial) }); panicked != nil {
		return found{ttl: maxTTL}, fmt.Errorf("dns: look up: %w", panicked)
	}
	return result, err
}

// follow yields the latest result to one stream, and then each later one, until ctx ends or the
// consumer breaks. A slow consumer misses results, but not the latest one.
func (f *flight) follow(ctx context.Context, yield func(resolve.Update, error) bool) {
	// How many results and errors this stream has seen.
	var pos share.Position
	for ctx.Err() == nil {
		c := f.Look(&pos)
		c.Value.Endpoints = slices.Clone(c.Value.Endpoints) // the consumer owns the slice
		if c.Fresh && !yield(c.Value, nil) {
			return
		}
		// The consumer may have ended ctx while it handled the value.
		if c.Err != nil && (ctx.Err() != nil || !yield(resolve.Update{}, c.Err)) {
			return
		}
		// c.Next is closed when a later result or error is stored.
		select {
		case <-c.Next:
		case <-ctx.Done():
		}
	}
}
