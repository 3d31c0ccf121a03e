package profiles_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

var two = []profiles.Target{{Authority: "a:80", Weight: 1}, {Authority: "b:80", Weight: 1}}

func TestReadyAnyTarget(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Targets: two}, &bs)
	a, b := bs.get(t, "a:80"), bs.get(t, "b:80")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct{ a, b, ready bool }{{true, true, true}, {true, false, true}, {false, true, true}, {false, false, false}} {
		a.unready.Store(!tt.a)
		b.unready.Store(!tt.b)
		// Capacity comes before the context.
		if tt.ready {
			require.NoError(t, layer.Poll[request, *reply](r))
			require.NoError(t, r.Ready(done))
		} else {
			require.ErrorIs(t, layer.Poll[request, *reply](r), layer.ErrNotReady)
			require.ErrorIs(t, r.Ready(done), context.Canceled)
		}
	}
	// The apex is not one of the targets, so that its readiness has no effect.
	bs.get(t, target).unready.Store(true)
	a.unready.Store(false)
	require.NoError(t, layer.Poll[request, *reply](r))
}

func TestReadyWaits(t *testing.T) {
	for what, release := range map[string]func(src *script, bs *backends){
		"for the first target":  func(_ *script, bs *backends) { a := bs.made["a:80"]; a.set(&a.unready, false) },
		"for the second target": func(_ *script, bs *backends) { b := bs.made["b:80"]; b.set(&b.unready, false) },
		"for another profile": func(src *script, _ *backends) {
			src.send(&profiles.Profile{Targets: []profiles.Target{{"c:80", 1}}}, nil)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bs := backends{prepare: func(b *backend) { b.unready.Store(b.authority != "c:80") }}
				src := newScript()
				r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
				src.send(&profiles.Profile{Targets: two}, nil)
				var ready atomic.Int32
				for range 10 {
					go func() {
						if assert.NoError(t, r.Ready(t.Context())) {
							ready.Add(1)
						}
					}()
				}
				synctest.Wait()
				assert.Zero(t, ready.Load())
				release(src, &bs)
				synctest.Wait()
				assert.EqualValues(t, 10, ready.Load())
			})
		})
	}
}

func TestReadyCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := backends{prepare: func(b *backend) { b.unready.Store(true) }}
		r := routerOf(t, &profiles.Profile{Targets: two}, &bs)
		gone := errors.New("gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		require.Same(t, gone, r.Ready(ctx))
	})
}

// Ready returns ErrClosed only after the last profile.
func TestReadyAllTargetsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := backends{prepare: func(b *backend) { b.unready.Store(true) }}
		src := newScript()
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
		src.send(&profiles.Profile{Targets: two}, nil)
		a, b := bs.get(t, "a:80"), bs.get(t, "b:80")
		answer := make(chan error, 1)
		go func() { answer <- r.Ready(t.Context()) }()
		synctest.Wait()
		a.set(&a.closed, true)
		synctest.Wait()
		assert.Empty(t, answer, "one is left")
		err := layer.Poll[request, *reply](r)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)

		b.set(&b.closed, true)
		synctest.Wait()
		assert.Empty(t, answer, "another profile may come")
		err = layer.Poll[request, *reply](r)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		_, err = r.Call(t.Context(), request{})
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "closed until the profile changes: ")

		src.end()
		require.ErrorIs(t, <-answer, layer.ErrClosed)
		require.ErrorIs(t, layer.Poll[request, *reply](r), layer.ErrClosed)
		_, err = r.Call(t.Context(), request{})
		require.ErrorIs(t, err, layer.ErrClosed)
	})
}

func TestReadyWithOtherTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := backends{prepare: func(b *backend) { b.closed.Store(b.authority != "c:80") }}
		src := newScript()
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
		src.send(&profiles.Profile{Targets: two}, nil)
		answer := make(chan error, 1)
		go func() { answer <- r.Ready(t.Context()) }()
		synctest.Wait()
		assert.Empty(t, answer)
		src.send(&profiles.Profile{Targets: []profiles.Target{{Authority: "c:80", Weight: 1}}}, nil)
		require.NoError(t, <-answer)
		_, err := r.Call(t.Context(), request{})
		require.NoError(t, err)
	})
}

// One target that is closed is not all of them, whichever it is.
func TestReadyWithOneClosed(t *testing.T) {
	for _, closed := range []string{"a:80", "b:80"} {
		bs := backends{prepare: func(b *backend) { b.unready.Store(true); b.closed.Store(b.authority == closed) }}
		r := routerOf(t, &profiles.Profile{Targets: two}, &bs)
		err := layer.Poll[request, *reply](r)
		require.ErrorIs(t, err, layer.ErrNotReady, closed)
		require.NotErrorIs(t, err, layer.ErrClosed, closed)
		for authority, b := range bs.made {
			if authority != target {
				assert.EqualValues(t, 1, b.polled.Load(), "to poll is to ask each target once")
			}
		}
	}
}

// tardy takes its time to leave.
type tardy struct {
	service
	left *atomic.Bool
}

func (s tardy) Ready(ctx context.Context) error {
	<-ctx.Done()
	time.Sleep(time.Second)
	s.left.Store(true)
	return context.Cause(ctx)
}

// No goroutine waits in a target after Ready returned.
func TestReadyLeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left atomic.Bool
		src := newScript()
		config := profiles.Config{Target: target, Source: src}
		r := profiles.New(t.Context(), config, access{}, func(string) service { return tardy{left: &left} })
		src.send(&profiles.Profile{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, r.Ready(ctx), context.DeadlineExceeded)
		assert.True(t, left.Load())
	})
}

func TestReadyReservesNothing(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Targets: two}, &bs)
	for range 100 {
		require.NoError(t, r.Ready(t.Context()))
	}
	assert.Empty(t, bs.calls())
}
