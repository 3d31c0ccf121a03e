// Package stream reads a stream of updates across disconnects.
package stream

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// ErrEnded means that a stream ended without an error. That is routine, because
// servers recycle their streams.
var ErrEnded = errors.New("stream ended")

// settled is how long a stream must last to reset the backoff. It bounds the
// attempts to one in ten seconds, whatever the server does.
const settled = 10 * time.Second

// Reconnect reads from open again and again until ctx ends or the consumer stops.
// It waits for b between two streams. The backoff is reset after a stream that
// yielded an item, or ended with [ErrLimit], and lasted 10 s, or b.Max if that is
// less: a server that answers and hangs up at once is not asked more often for it.
//
// An error of open, and [ErrEnded] after a clean end, is yielded and ends the
// stream. An error for which final returns true also ends the sequence.
//
// The context passed to open ends with its stream.
func Reconnect[T any](
	ctx context.Context,
	b backoff.Backoff,
	open func(context.Context) iter.Seq2[T, error],
	final func(error) bool,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		enough := min(settled, b.Max)
		for failures := 0; ctx.Err() == nil; failures++ {
			start := time.Now()
			yielded, stopped, err := readStream(ctx, open, yield)
			if stopped || ctx.Err() != nil {
				return
			}
			if (yielded || errors.Is(err, ErrLimit)) && time.Since(start) >= enough {
				failures = 0
			}
			if !yield(zero, err) || final(err) {
				return
			}
			if backoff.Sleep(ctx, b.Delay(failures)) != nil {
				return
			}
		}
	}
}

// readStream yields the items of one stream. It returns whether there was one,
// whether the consumer stopped, and the end of the stream.
func readStream[T any](
	ctx context.Context,
	open func(context.Context) iter.Seq2[T, error],
	yield func(T, error) bool,
) (yielded, stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for item, err := range open(ctx) {
		if err != nil {
			return yielded, false, err
		}
		yielded = true
		if !yield(item, nil) {
			return yielded, true, nil
		}
	}
	return yielded, false, ErrEnded
}
