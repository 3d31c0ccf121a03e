// Package stream reads from a sequence of streams, in which each new stream replaces the last
// one.
package stream

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// ErrEnded reports that a stream ended without an error. This is normal, because
// servers limit the lifetime of streams.
var ErrEnded = errors.New("stream ended")

// settled is the smallest duration of a stream that resets the backoff. A server that ends
// every stream resets the backoff at most once in ten seconds.
const settled = 10 * time.Second

// Reconnect yields the items from the streams that open returns, one stream after the other, until
// ctx ends or the consumer breaks. It waits between two streams, as the backoff b specifies. A
// stream resets the backoff if it yielded an item or ended with [ErrLimit]. It must also have
// lasted at least 10 s, or b.Max if that is less. Therefore a server that ends streams at once is
// not called too often.
//
// A stream ends with its first error, which Reconnect yields. After a stream that ended without an
// error, it yields [ErrEnded]. If final returns true for one of these errors, the sequence ends.
//
// The context passed to open ends when its stream has ended.
func Reconnect[T any](
	ctx context.Context,
	b backoff.Backoff,
	open func(context.Context) iter.Seq2[T, error],
	final func(error) bool,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		// With a short backoff, a stream must not last longer than that to be a success.
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

// readStream opens a stream and yields its items. The result yielded reports whether the stream had
// an item. The result stopped reports whether the consumer broke. The result err is the error at
// the end of the stream.
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
