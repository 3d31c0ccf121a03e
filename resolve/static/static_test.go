package static

import (
	"context"
	"iter"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/resolve"
)

func endpoints(t testing.TB, addrs ...string) []resolve.Endpoint {
	t.Helper()
	out, err := Endpoints(addrs...)
	require.NoError(t, err)
	return out
}

func TestResolve(t *testing.T) {
	ab, c := endpoints(t, "10.0.0.1:80", "10.0.0.2:80"), endpoints(t, "10.0.0.3:80")
	r := New(map[string][]resolve.Endpoint{"web": ab, "none": nil})

	for target, want := range map[string]resolve.Update{
		"web":  {Kind: resolve.Replace, Endpoints: ab},
		"none": {Kind: resolve.Empty},
		"what": {Kind: resolve.DoesNotExist},
	} {
		for u, err := range r.Resolve(t.Context(), target) {
			require.NoError(t, err)
			assert.Equal(t, want, u, target)
			break
		}
	}

	next, stop := iter.Pull2(r.Resolve(t.Context(), "web"))
	defer stop()
	expect := func(want resolve.Update) {
		t.Helper()
		u, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		require.Equal(t, want, u)
	}
	expect(resolve.Update{Kind: resolve.Replace, Endpoints: ab})
	r.Set("web", c...)
	expect(resolve.Update{Kind: resolve.Replace, Endpoints: c})
	r.Set("web")
	expect(resolve.Update{Kind: resolve.Empty})
	r.Delete("web")
	expect(resolve.Update{Kind: resolve.DoesNotExist})
	r.Set("web", ab...)
	r.Set("web", c...)
	expect(resolve.Update{Kind: resolve.Replace, Endpoints: c}) // an update that was replaced before it was read is skipped
}

func TestResolveUnknownTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Resolver // the zero value
		var kinds []resolve.Kind
		go func() {
			for u := range r.Resolve(t.Context(), "web") {
				kinds = append(kinds, u.Kind)
			}
		}()
		synctest.Wait()
		assert.Equal(t, []resolve.Kind{resolve.DoesNotExist}, kinds)
		r.Set("other", endpoints(t, "10.0.0.1:80")...)
		synctest.Wait()
		assert.Len(t, kinds, 1, "another target's change is not its news")
		r.Set("web", endpoints(t, "10.0.0.1:80")...)
		synctest.Wait()
		assert.Equal(t, []resolve.Kind{resolve.DoesNotExist, resolve.Replace}, kinds)
	})
}

func TestUpdateOwnership(t *testing.T) {
	given := endpoints(t, "10.0.0.1:80", "10.0.0.2:80")
	want := endpoints(t, "10.0.0.1:80", "10.0.0.2:80")
	r := New(map[string][]resolve.Endpoint{"web": given})
	given[0].Weight = 7
	for range 2 {
		for u := range r.Resolve(t.Context(), "web") {
			assert.Equal(t, want, u.Endpoints)
			u.Endpoints[0].Weight = 7
			break
		}
	}
}

// Targets that were only resolved, or were deleted, leave no entry and no goroutine.
func TestUnusedTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil)
		ctx, cancel := context.WithCancel(t.Context())
		next, stop := iter.Pull2(r.Resolve(ctx, "held"))
		_, _, ok := next()
		require.True(t, ok)
		before := runtime.NumGoroutine()
		for range r.Resolve(ctx, "asked") {
			assert.LessOrEqual(t, runtime.NumGoroutine(), before) // one of a test before may have been about to end
			break
		}
		r.Delete("never seen")
		r.Set("held")
		r.Delete("held")
		assert.Empty(t, r.targets)
		cancel()
		_, _, ok = next()
		require.False(t, ok)
		stop()

		r.Set("set", endpoints(t, "10.0.0.1:80")...)
		assert.Len(t, r.targets, 1)
		r.Delete("set")
		assert.Empty(t, r.targets)
	})
}

// A stream that ends does not affect another one.
func TestDeleteConcurrentStreams(t *testing.T) {
	r := New(nil)
	next, stop := iter.Pull2(r.Resolve(t.Context(), "web"))
	defer stop()
	for i := 1; i <= 100; i++ {
		for range r.Resolve(t.Context(), "web") {
			break
		}
		if i%2 == 1 {
			r.Set("web", endpoints(t, "10.0.0.1:80")...)
		} else {
			r.Delete("web")
		}
		u, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		require.Equal(t, i%2 == 1, u.Kind == resolve.Replace)
	}
}

// After concurrent changes every stream has the last state.
func TestSetConcurrent(t *testing.T) {
	const readers, writers, changes = 8, 4, 200
	r := New(nil)
	last := endpoints(t, "10.9.9.9:99")
	some := endpoints(t, "10.0.0.1:80", "10.0.0.2:80")

	var wait sync.WaitGroup
	for range readers {
		wait.Go(func() {
			var set resolve.Set
			for u := range r.Resolve(t.Context(), "web") {
				set.Apply(u)
				if set.Len() == 1 && set.Endpoints()[0].Equal(last[0]) {
					return
				}
			}
			t.Error("a stream ended before its context")
		})
	}
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range changes {
				switch (w + i) % 3 {
				case 0:
					r.Set("web", some...)
				case 1:
					r.Set("web")
				case 2:
					r.Delete("web")
				}
			}
		})
	}
	writing.Wait()
	r.Set("web", last...)
	wait.Wait()
	assert.Len(t, r.targets, 1)
}

func TestResolveContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := false
		go func() {
			for range r.Resolve(ctx, "web") {
			}
			ended = true
		}()
		synctest.Wait()
		assert.False(t, ended)
		cancel()
		synctest.Wait()
		assert.True(t, ended)

		for range r.Resolve(ctx, "web") {
			t.Error("an item after the context was done")
		}
	})
}
