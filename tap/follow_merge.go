package tap

import (
	"context"
	"iter"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// source is a sequence that ends with its context.
type source[T any] func(context.Context) iter.Seq2[T, error]

// merged is what comes from all sources, as it comes. It ends when all have, or
// with ctx; then nothing of it is left behind.
func merged[T any](ctx context.Context, sources []source[T]) iter.Seq2[T, error] {
	type item struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		ctx, cancel := detached(ctx)
		items := make(chan item)
		var running sync.WaitGroup
		for _, one := range sources {
			running.Go(func() {
				for value, err := range one(ctx) {
					select {
					case items <- item{value, err}:
					case <-ctx.Done():
						return
					}
				}
			})
		}
		go func() {
			running.Wait()
			close(items)
		}()
		defer func() {
			cancel()
			for range items {
				continue // until all have ended
			}
		}()
		for i := range items {
			if ctx.Err() != nil || !yield(i.value, i.err) {
				return
			}
		}
	}
}

// detached is ctx without its deadline. gRPC tells a deadline to the other side,
// which would then end a stream just before ctx does, and look as if it failed.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return within, func() {
		stop()
		cancel()
	}
}

// instead is first, or second if first is not implemented.
func instead[T any](first, second iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for item, err := range first {
			if status.Code(err) == codes.Unimplemented {
				second(yield)
				return
			}
			if !yield(item, err) {
				return
			}
		}
	}
}
