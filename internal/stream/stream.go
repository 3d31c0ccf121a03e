// Package stream keeps a stream of news going across disconnects.
package stream

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// ErrEnded is what a consumer is told when the other side ended a stream
// without an error. That is routine: servers recycle their streams.
var ErrEnded = errors.New("stream ended")

// settled is how long a stream must last for the back-off to start anew. Ten
// seconds bound the attempts to a tenth a second, whatever the other side does.
const settled = 10 * time.Second

// Reconnect reads from open again and again until ctx ends or the consumer
// breaks. Between two streams it backs off; the back-off starts anew once a
// stream brought a message and lasted 10 s, or as long as b.Max if that is
// less: who answers and hangs up at once is not well, and is not stormed. What
// open yields as an error, and [ErrEnded], is passed on as news; an error for
// which final is true is passed on and ends the sequence.
//
// The context given to open ends with its stream, so that an open which ties
// all it holds to that context leaves nothing behind. An error ends its stream,
// whatever open would have yielded after it.
func Reconnect[T any](
	ctx context.Context,
	b backoff.Backoff,
	open func(context.Context) iter.Seq2[T, error],
	final func(error) bool,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		enough := min(settled, b.Max)
		for failures := 0; ctx.Err() == nil; failures++ {
			start := time.Now()
			brought, broke, err := follow(ctx, open, yield)
			if broke || ctx.Err() != nil {
				return
			}
			if brought && time.Since(start) >= enough {
				failures = 0
			}
			if !yield(none, err) || final(err) {
				return
			}
			if backoff.Sleep(ctx, b.Delay(failures)) != nil {
				return
			}
		}
	}
}

// follow passes the items of one stream on. It returns whether there was one,
// whether the consumer broke, and else why the stream ended.
func follow[T any](
	ctx context.Context,
	open func(context.Context) iter.Seq2[T, error],
	yield func(T, error) bool,
) (brought, broke bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for item, err := range open(ctx) {
		if err != nil {
			return brought, false, err
		}
		brought = true
		if !yield(item, nil) {
			return brought, true, nil
		}
	}
	return brought, false, ErrEnded
}
