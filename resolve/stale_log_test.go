package resolve_test

import (
	"context"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/resolve"
)

// handlerFunc is a handler of all lines.
type handlerFunc func(slog.Record)

func (handlerFunc) Enabled(context.Context, slog.Level) bool { return true }

func (f handlerFunc) Handle(_ context.Context, r slog.Record) error {
	f(r)
	return nil
}

func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f handlerFunc) WithGroup(string) slog.Handler      { return f }

// A log handler may call Status, and delays only its own stream.
func TestServeStaleLog(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stale *resolve.StaleResolver
	logged := make(chan string)
	handler := handlerFunc(func(r slog.Record) {
		assert.Len(t, stale.Status(), 1)
		select {
		case logged <- r.Message:
		case <-ctx.Done():
		}
	})
	source := func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			if yield(many(1), nil) && yield(resolve.Update{}, errReset) && yield(empty, nil) {
				<-ctx.Done()
			}
		}
	}
	policy := resolve.StalePolicy{Grace: time.Millisecond, Log: slog.New(handler)}
	stale = resolve.ServeStale(resolve.Func(source), policy)
	over := make(chan string)
	go func() {
		defer close(over)
		for range stale.Resolve(ctx, "web") {
		}
	}()
	next := func(from <-chan string) string {
		select {
		case text := <-from:
			return text
		case <-time.After(20 * time.Second):
			t.Fatal("the stream is stuck")
			return ""
		}
	}
	assert.Contains(t, next(logged), "held back")
	assert.Contains(t, next(logged), "is dropped")
	cancel()
	next(over)
}
