package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/stream"
)

// Backoff is the time between attempts: min(Min·2ⁿ, Max) after attempt n, plus up to
// Jitter of it at random, at most Max. The zero Backoff is 100 ms to 60 s with a tenth of
// jitter.
type Backoff = backoff.Backoff

// Reconnect returns a Resolver that resolves again, after a backoff, when a stream of r
// ends or yields an error. The error is passed on. The backoff starts again after a
// stream that had an update and lasted 10 s, or Max if that is less, so that a source
// that ends streams at once is not called too often. An error that matches
// [ErrUnresolvable] is the last item.
//
// The first update of a stream is the whole set: an Add is passed on as a Replace, and a
// Remove or an empty Add is dropped. So the last set stays until it is replaced.
//
// The context for r ends with its stream. Fields of b that are 0 have their defaults.
// Reconnect panics if b is not valid.
func Reconnect(r Resolver, b Backoff) Resolver {
	requireResolvers(r)
	filled := b.OrDefault()
	b.Min, b.Max = cmp.Or(b.Min, filled.Min), cmp.Or(b.Max, filled.Max)
	if err := b.Validate(); err != nil {
		panic("resolve: " + err.Error())
	}
	b.Jitter = filled.Jitter
	final := func(err error) bool { return errors.Is(err, ErrUnresolvable) }
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		open := func(ctx context.Context) iter.Seq2[Update, error] { return restart(ctx, r, target) }
		return stream.Reconnect(ctx, b, open, final)
	})
}

// restart returns one stream of r whose first update is the whole set.
func restart(ctx context.Context, r Resolver, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		awaiting := true
		for u, err := range r.Resolve(ctx, target) {
			if err == nil && awaiting {
				if u.Kind == Remove || u.Kind == Add && len(u.Endpoints) == 0 {
					continue
				}
				if u.Kind == Add {
					u.Kind = Replace
				}
				awaiting = false
			}
			if !yield(u, err) {
				return
			}
		}
		yield(Update{}, fmt.Errorf("resolve %q: %w", target, stream.ErrEnded))
	}
}
