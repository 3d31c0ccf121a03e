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

// Backoff is the wait before a repeated attempt. The wait after attempt n, counted from 0, is
// min(Min·2ⁿ, Max), plus a random part of up to Jitter times this value. The sum is limited to
// Max. The zero Backoff means 100 ms to 60 s with a jitter of 0.1.
type Backoff = backoff.Backoff

// Reconnect returns a Resolver that resolves again, after a backoff, when a stream of r ends or
// yields an error. The consumer gets the error unchanged. An error that matches [ErrUnresolvable]
// ends the sequence. The backoff starts again at Min after a stream that yielded an update and
// lasted 10 s, or Max if that is less. Streams that end at once do not reset it, so that their
// source is not called too often.
//
// The first update of a stream is the whole set. If it is an Add, it is converted to a Replace. A
// Remove or an Add without endpoints before it is dropped. Until the first update, the last set
// stays.
//
// The context of a call of r ends when the stream of that call has ended. A Min or Max of 0 in b
// has its default. If one of the fields is set, a Jitter of 0 means no jitter. Reconnect panics if
// b is invalid.
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

// restart resolves target once by r. It converts the first update to one with the whole set.
// When the stream of r ends, the last item is an error that matches stream.ErrEnded.
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
