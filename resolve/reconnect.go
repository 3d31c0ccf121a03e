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

// Backoff is the wait before a repeated attempt. After attempt n, counted from 0, it is
// min(Min·2ⁿ, Max), plus a random part of up to Jitter times this value, but at most Max in
// total. The zero Backoff means 100 ms to 60 s with a jitter of 0.1.
type Backoff = backoff.Backoff

// Reconnect returns a Resolver that resolves again, after a backoff, when a stream from r ends or
// yields an error. The consumer gets the error unchanged. An error that matches [ErrUnresolvable]
// ends the sequence. The backoff starts again at Min after a stream that yielded an update and
// lasted 10 s, or Max if that is less. Streams that end at once do not reset it, so that their
// source is not called too often.
//
// The first update in a stream is the whole set: an Add is converted to a Replace, and a Remove
// or an Add without endpoints before it is dropped. Until the first update, the last set stays.
//
// The context in which r is called ends when that stream has ended. A Min or Max of 0 in b means
// its default. If one of the fields is set, a Jitter of 0 means no jitter. Reconnect panics if b
// is invalid.
func Reconnect(r Resolver, b Backoff) Resolver {
	requireResolvers(r)
	// OrDefault corrects invalid values too. Of filled, only the missing Min and Max are therefore used
	// before the check, so that an invalid b panics.
	filled := b.OrDefault()
	b.Min, b.Max = cmp.Or(b.Min, filled.Min), cmp.Or(b.Max, filled.Max)
	if err := b.Validate(); err != nil {
		panic("resolve: " + err.Error())
	}
	b.Jitter = filled.Jitter
	// By this, stream.Reconnect decides that an error must not be followed by another attempt.
	final := func(err error) bool { return errors.Is(err, ErrUnresolvable) }
	return Func(func(ctx context.Context, target string) iter.Seq2[Update, error] {
		open := func(ctx context.Context) iter.Seq2[Update, error] { return restart(ctx, r, target) }
		return stream.Reconnect(ctx, b, open, final)
	})
}

// restart resolves target once by r: it is one stream between two backoffs of Reconnect. It converts
// the first update to one with the whole set. When the stream of r ends, the last item is an error that
// matches stream.ErrEnded, by which the consumer learns that the set is no longer updated.
func restart(ctx context.Context, r Resolver, target string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		awaiting := true
		// Until the first update, the consumer keeps the set of the previous stream. Only a whole set
		// may replace it.
		for u, err := range r.Resolve(ctx, target) {
			if err == nil && awaiting {
				// A change of a set that the consumer does not have from this stream.
				if u.Kind == Remove || u.Kind == Add && len(u.Endpoints) == 0 {
					continue
				}
				// What the first Add of a stream holds is all that this stream knows.
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
