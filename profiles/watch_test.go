package profiles_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func named(route string) *profiles.Profile {
	return &profiles.Profile{Routes: []profiles.Route{{Name: route, Match: profiles.All{}}}}
}

func TestRouterBeforeFirstProfile(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	rsp := send(t, r, "GET", "/")
	assert.Equal(t, target, rsp.from)
	assert.Nil(t, rsp.route)
	src.send(named("first"), nil)
	assert.Equal(t, "first", send(t, r, "GET", "/").route.Name)
}

func TestProfileReplacesPrevious(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	src.send(&profiles.Profile{
		Routes:  []profiles.Route{{Name: "a", Match: profiles.Path("/a")}},
		Targets: []profiles.Target{{"v2:80", 1}},
	}, nil)
	assert.Equal(t, "v2:80", send(t, r, "GET", "/a").from)
	src.send(&profiles.Profile{Routes: []profiles.Route{{Name: "b", Match: profiles.Path("/b")}}}, nil)
	rsp := send(t, r, "GET", "/a")
	assert.Nil(t, rsp.route)
	assert.Equal(t, target, rsp.from)
	assert.Equal(t, "b", send(t, r, "GET", "/b").route.Name)

	src.send(nil, nil) // nil is the default profile
	assert.Nil(t, send(t, r, "GET", "/b").route)
	assert.Equal(t, &profiles.Profile{}, r.Profile())
}

func TestSwapKeepsRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		bs := backends{prepare: func(b *backend) {
			b.serve = func(ctx context.Context, _ request) (*reply, error) {
				<-gate
				return &reply{from: b.authority, route: layer.RouteFromContext(ctx)}, ctx.Err()
			}
		}}
		src := newScript()
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
		src.send(&profiles.Profile{
			Routes:  []profiles.Route{{Name: "old", Match: profiles.All{}}},
			Targets: []profiles.Target{{"old:80", 1}},
		}, nil)
		var group sync.WaitGroup
		group.Go(func() {
			rsp := send(t, r, "GET", "/")
			assert.Equal(t, "old:80", rsp.from)
			assert.Equal(t, "old", rsp.route.Name)
		})
		synctest.Wait()
		src.send(&profiles.Profile{Targets: []profiles.Target{{"new:80", 1}}}, nil)
		group.Go(func() { assert.Equal(t, "new:80", send(t, r, "GET", "/").from) })
		synctest.Wait()
		close(gate)
		group.Wait()
	})
}

func TestErrorKeepsLastProfile(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	src.send(nil, errors.New("unavailable"))
	assert.Nil(t, send(t, r, "GET", "/").route)
	src.send(named("first"), nil)
	src.send(nil, errors.New("stream ended"))
	assert.Equal(t, "first", send(t, r, "GET", "/").route.Name)
	src.send(named("second"), nil)
	assert.Equal(t, "second", send(t, r, "GET", "/").route.Name)
}

// An outage of any length logs two lines.
func TestLogOutage(t *testing.T) {
	log := newLog()
	src := newScript()
	profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Log: log.logger()}, access{}, new(backends).mk)
	src.send(nil, errors.New("refused"))
	src.send(nil, errors.New("refused"))
	src.send(nil, fmt.Errorf("web: %w", stream.ErrEnded))
	src.send(named("first"), nil)
	src.send(nil, stream.ErrEnded)
	src.send(named("second"), nil)
	src.send(nil, profiles.ErrNoProfile)
	assert.Equal(t, []string{
		"WARN profile stream failed; the last profile stays current",
		"DEBUG profile stream failed again",
		"DEBUG profile stream ended",
		"INFO profile stream recovered",
		"DEBUG profile",
		"DEBUG profile stream ended",
		"DEBUG profile",
		"DEBUG no profile",
	}, log.lines())
}

// Streams that end without an error and without an update are an outage too, unless the Router ended
// them.
func TestLogEmptyStreams(t *testing.T) {
	log := newLog()
	src := newScript()
	profiles.New(t.Context(), profiles.Config{Target: target, Source: src, Log: log.logger()}, access{}, new(backends).mk)
	src.send(nil, stream.ErrLimit)
	src.send(nil, stream.ErrEnded)
	src.send(nil, stream.ErrEnded)
	src.send(named("first"), nil)
	src.send(nil, stream.ErrEnded)
	src.send(nil, stream.ErrEnded)
	assert.Equal(t, []string{
		"DEBUG profile stream ended",
		"WARN profile stream failed; the last profile stays current",
		"DEBUG profile stream ended",
		"INFO profile stream recovered",
		"DEBUG profile",
		"DEBUG profile stream ended",
		"WARN profile stream failed; the last profile stays current",
	}, log.lines())
}

// However a watch ends, the last profile stays, and there is one if there was
// none.
func TestLastProfileAfterWatch(t *testing.T) {
	noProfile := fmt.Errorf("web: %w", profiles.ErrNoProfile)
	for what, end := range map[string]func(*script, context.CancelFunc){
		"no profile": func(src *script, _ context.CancelFunc) { src.send(nil, noProfile) },
		"end":        func(src *script, _ context.CancelFunc) { src.end() },
		"context":    func(_ *script, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(what, func(t *testing.T) {
			for _, first := range []bool{true, false} {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var bs backends
				src := newScript()
				r := profiles.New(ctx, profiles.Config{Target: target, Source: src, InitialWait: time.Hour}, access{}, bs.mk)
				if first {
					src.send(named("first"), nil)
				}
				end(src, cancel)
				<-src.ended
				route := send(t, r, "GET", "/").route
				assert.Equal(t, first, route != nil)
			}
		})
	}
}

func TestWatchContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	src := newScript()
	profiles.New(ctx, profiles.Config{Target: target, Source: src}, access{}, new(backends).mk)
	src.send(named("first"), nil)
	cancel()
	<-src.ended
}

func TestInitialWait(t *testing.T) {
	start := func(t *testing.T) (*script, *router, *backends) {
		src, bs := newScript(), new(backends)
		c := profiles.Config{Target: target, Source: src, InitialWait: 500 * time.Millisecond}
		return src, profiles.New(t.Context(), c, access{}, bs.mk), bs
	}
	bubble := func(what string, f func(t *testing.T)) {
		t.Run(what, func(t *testing.T) { synctest.Test(t, f) })
	}
	bubble("a profile in time is waited for", func(t *testing.T) {
		src, r, bs := start(t)
		go func() {
			time.Sleep(200 * time.Millisecond)
			src.send(nil, errors.New("no profile yet"))
			time.Sleep(200 * time.Millisecond)
			src.send(&profiles.Profile{Targets: []profiles.Target{{"v2:80", 1}}}, nil)
		}()
		began := time.Now()
		assert.Equal(t, "v2:80", send(t, r, "GET", "/").from)
		assert.Equal(t, 400*time.Millisecond, time.Since(began))
		assert.Equal(t, map[string]int{"v2:80": 1}, bs.asked, "the apex is not needed, and so not made")
	})
	bubble("a late one takes over", func(t *testing.T) {
		src, r, _ := start(t)
		began := time.Now()
		assert.Equal(t, target, send(t, r, "GET", "/").from)
		assert.Equal(t, 500*time.Millisecond, time.Since(began))
		assert.Equal(t, target, send(t, r, "GET", "/").from)
		assert.Equal(t, 500*time.Millisecond, time.Since(began), "the wait ends once")
		src.send(&profiles.Profile{Targets: []profiles.Target{{"v2:80", 1}}}, nil)
		assert.Equal(t, "v2:80", send(t, r, "GET", "/").from)
	})
	bubble("no profile ends it", func(t *testing.T) {
		src, r, _ := start(t)
		go func() {
			time.Sleep(100 * time.Millisecond)
			src.send(nil, profiles.ErrNoProfile)
		}()
		began := time.Now()
		assert.Equal(t, target, send(t, r, "GET", "/").from)
		assert.Equal(t, 100*time.Millisecond, time.Since(began))
	})
	bubble("the caller's context ends it", func(t *testing.T) {
		_, r, bs := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := r.Call(ctx, request{})
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualError(t, err, "profiles web:80: not ready: no profile yet (waited 100ms): context deadline exceeded")
		assert.Empty(t, bs.asked)
	})
	bubble("the default is not to wait", func(t *testing.T) {
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: newScript()}, access{}, new(backends).mk)
		began := time.Now()
		send(t, r, "GET", "/")
		assert.Zero(t, time.Since(began))
	})
	bubble("Ready waits too", func(t *testing.T) {
		_, r, _ := start(t)
		began := time.Now()
		require.ErrorIs(t, layer.Poll[request, *reply](r), layer.ErrNotReady)
		require.NoError(t, r.Ready(t.Context()))
		assert.Equal(t, 500*time.Millisecond, time.Since(began))
		require.NoError(t, layer.Poll[request, *reply](r))
	})
	bubble("Ready ends with its context", func(t *testing.T) {
		_, r, _ := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, r.Ready(ctx), context.DeadlineExceeded)
	})
}
