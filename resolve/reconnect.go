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

// Backoff is how long to wait between attempts: min(Min·2ⁿ, Max) after attempt
// n, plus up to Jitter of it at random, never above Max. The zero Backoff
// stands for 100 ms to 60 s with a tenth of jitter.
type Backoff = backoff.Backoff

// Reconnect makes a Resolver of one whose streams may end: a source that
// recycles its streams, or loses them. When a stream of r ends or yields an
// error, that is passed on as news; then, after a back-off, r is asked again.
// The back-off starts anew once a stream brought an update and lasted 10 s, or
// as long as Max if that is less: a source that answers and hangs up at once
// is not well, and is not stormed. An error that matches [ErrUnresolvable] is
// the last item.
//
// What r says first in a stream is all there is, whatever it said in the
// stream before: a first Add is passed on as a Replace. A first Remove, and an
// Add of nothing, are dropped. What was known so stays in force until there is
// something to replace it with.
//
// The context that r is given ends with its stream. Fields of b that are 0 have
// their defaults. Reconnect panics if b is not valid.
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
		open := func(ctx context.Context) iter.Seq2[Update, error] { return afresh(ctx, r, target) }
		return stream.Reconnect(ctx, b, open, final)
	})
}

// afresh is one stream of r, with its first update made to stand alone.
func afresh(ctx context.Context, r Resolver, target string) iter.Seq2[Update, error] {
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
