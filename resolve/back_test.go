package resolve_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

// recycled yields u on streams that end after an hour, as healthy control planes
// have it, and that are opened again.
func recycled(u resolve.Update) resolve.Resolver {
	return resolve.Reconnect(resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			if !yield(u, nil) {
				return
			}
			select {
			case <-time.After(time.Hour):
			case <-ctx.Done():
			}
		}
	}), resolve.Backoff{})
}

// lastingly yields u, and nothing more.
func lastingly(u resolve.Update) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			if yield(u, nil) {
				<-ctx.Done()
			}
		}
	})
}

// Each wrapper yields an update after an error, or a ServeStale around it would drop a
// set that its source confirms.
func TestWrappersYieldRecovery(t *testing.T) {
	for name, r := range map[string]resolve.Resolver{
		"reconnect":                 recycled(add(a1)),
		"merge":                     resolve.Merge(recycled(add(a1)), lastingly(add(a2))),
		"merge of what is not back": resolve.Merge(recycled(gone), lastingly(add(a2))),
		"merge of what ended":       resolve.Merge(lastingly(add(a1)), yielding(add(a2))),
		"merge of the unresolvable": resolve.Merge(later(resolve.Func(never)), lastingly(add(a2))),
		"fallback to second":        resolve.Fallback(recycled(gone), lastingly(add(a2))),
		"fallback to second, too":   resolve.Fallback(resolve.Func(never), recycled(add(a2))),
		"fallback, not needed":      resolve.Fallback(recycled(add(a1)), lastingly(add(a2))),
		"fallback to what ended":    resolve.Fallback(lastingly(gone), yielding(add(a2))),
		"fallback of what ended":    resolve.Fallback(yielding(add(a1)), lastingly(add(a2))),
		"fallback after both ended": resolve.Fallback(yielding(gone), yielding(add(a2))),
		"each on another":           resolve.Fallback(resolve.Merge(recycled(gone), lastingly(gone)), lastingly(add(a2))),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keeper := resolve.ServeStale(r, resolve.StalePolicy{MaxAge: 30 * time.Minute})
				ctx, cancel := context.WithCancel(t.Context())
				j := read(ctx, keeper, "web")
				time.Sleep(5*time.Hour + time.Minute)
				list := keeper.Status()
				require.Len(t, list, 1)
				assert.Equal(t, resolve.StateExists, list[0].State)
				assert.Zero(t, list[0].Age)
				require.NoError(t, list[0].Err)
				cancel()
				got := j.news()
				assert.NotContains(t, got, "empty")
				assert.Greater(t, len(got), 3, "there was something to be heard of: %v", got)
			})
		})
	}
}

// later is r after a minute.
func later(r resolve.Resolver) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		return func(yield func(resolve.Update, error) bool) {
			select {
			case <-time.After(time.Minute):
				r.Resolve(ctx, target)(yield)
			case <-ctx.Done():
			}
		}
	})
}
