package profiles_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// TestSwapUnderLoad: with another profile every 100 ms, each request sees
// exactly one of them from its start to its end, all its tries included, and
// none fails.
func TestSwapUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const swaps, callers = 50, 16
		pause := func(most time.Duration) { time.Sleep(rand.N(most)) }
		bs := backends{prepare: func(b *backend) {
			b.serve = func(ctx context.Context, _ request) (*reply, error) {
				route := layer.RouteFromContext(ctx)
				pause(80 * time.Millisecond)
				return &reply{from: b.authority, route: route}, ctx.Err()
			}
		}}
		var tries atomic.Int64
		twice := profiles.WithPerRoute(func(route profiles.Route, next service) service {
			return handler(func(ctx context.Context, req request) (*reply, error) {
				first, err := next.Call(ctx, req)
				if err != nil {
					return nil, err
				}
				pause(300 * time.Millisecond) // several swaps
				second, err := next.Call(ctx, req)
				if err != nil {
					return nil, err
				}
				tries.Add(2)
				return &reply{from: first.from + " " + second.from, route: second.route}, nil
			})
		})
		var src profiles.Static
		version := func(i int) *profiles.Profile {
			v := fmt.Sprintf("v%d", i)
			return &profiles.Profile{
				Routes: []profiles.Route{
					{Name: v, Match: profiles.Path("/changing")},
					{Name: "same", Match: profiles.Path("/same")},
				},
				Targets: []profiles.Target{{v + "-a:80", 1}, {v + "-b:80", 1}},
			}
		}
		src.Set(target, version(0))
		r := profiles.New(t.Context(), profiles.Config{Target: target, Source: &src, InitialWait: time.Second}, access{}, bs.mk, twice)
		stop := make(chan struct{})
		var group sync.WaitGroup
		seen := make([]map[string]bool, callers)
		for i := range callers {
			seen[i] = make(map[string]bool)
			group.Go(func() {
				path := []string{"/changing", "/same"}[i%2]
				for {
					select {
					case <-stop:
						return
					default:
					}
					rsp := send(t, r, "GET", path)
					first, second, _ := strings.Cut(rsp.from, " ")
					v := versionOf(first)
					assert.Equal(t, v, versionOf(second), "both tries by one profile")
					if path == "/changing" {
						assert.Equal(t, v, rsp.route.Name, "route and targets of one profile")
					}
					seen[i][v] = true
				}
			})
		}
		for i := range swaps {
			time.Sleep(100 * time.Millisecond)
			src.Set(target, version(i+1))
		}
		close(stop)
		group.Wait()
		all := make(map[string]bool)
		for _, s := range seen {
			for v := range s {
				all[v] = true
			}
		}
		assert.Greater(t, len(all), swaps/2, "the swaps reached the requests")
		assert.Greater(t, tries.Load(), int64(callers*swaps/5))
	})
}

func versionOf(authority string) string {
	v, _, _ := strings.Cut(authority, "-")
	return v
}

// An unchanged route keeps its stack with its state, also at another position in the list. A changed
// route gets a new stack.
func TestSwapUnchangedRoutes(t *testing.T) {
	var bs backends
	src := newScript()
	var made []string
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk, profiles.WithPerRoute(
		func(route profiles.Route, next service) service {
			made = append(made, route.Name)
			served := 0
			return handler(func(ctx context.Context, req request) (*reply, error) {
				served++
				rsp, err := next.Call(ctx, req)
				if err == nil {
					rsp.status = served
				}
				return rsp, err
			})
		}))
	kept := func() profiles.Route { // deeply equal each time, and never the same
		return profiles.Route{
			Name: "kept", Match: profiles.All{profiles.Method("GET"), profiles.Path("/kept")},
			Labels:  map[string]string{"a": "1"},
			Classes: []profiles.ResponseClass{{Match: profiles.Status{Min: 500, Max: 599}, Failure: true}},
		}
	}
	changed := func(after time.Duration) profiles.Route {
		return profiles.Route{Name: "changed", Match: profiles.Path("/changed"), Timeout: after}
	}
	src.send(&profiles.Profile{Routes: []profiles.Route{kept(), changed(1)}}, nil)
	first := send(t, r, "GET", "/kept")
	assert.Equal(t, 1, first.status)
	assert.Equal(t, 1, send(t, r, "GET", "/changed").status)

	src.send(&profiles.Profile{
		Routes:  []profiles.Route{changed(2), kept()},
		Targets: []profiles.Target{{"v2:80", 1}},
	}, nil)
	second := send(t, r, "GET", "/kept")
	assert.Equal(t, 2, second.status, "the stack's own count went on")
	assert.Equal(t, "v2:80", second.from, "the stack stands on the new targets")
	assert.Same(t, first.route, second.route, "so that what hangs on it can be kept")
	assert.Equal(t, 1, send(t, r, "GET", "/changed").status)

	src.send(&profiles.Profile{Routes: []profiles.Route{kept(), kept(), changed(2)}}, nil)
	assert.Equal(t, 3, send(t, r, "GET", "/kept").status)
	assert.Equal(t, []string{"kept", "changed", "changed"}, made)

	// A route that was away has lost its state.
	src.send(&profiles.Profile{}, nil)
	src.send(&profiles.Profile{Routes: []profiles.Route{kept()}}, nil)
	assert.Equal(t, 1, send(t, r, "GET", "/kept").status)
}

// The same profile again is re-evaluated without visible change.
func TestSwapIdenticalProfile(t *testing.T) {
	var bs backends
	src := newScript()
	stacks := 0
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk, profiles.WithPerRoute(
		func(_ profiles.Route, next service) service { stacks++; return next }))
	p := func() *profiles.Profile {
		return &profiles.Profile{
			Routes:  []profiles.Route{{Name: "a", Match: profiles.All{}, Labels: map[string]string{"k": "v"}}},
			Targets: []profiles.Target{{"v2:80", 1}},
		}
	}
	src.send(p(), nil)
	first := send(t, r, "GET", "/")
	src.send(p(), nil)
	second := send(t, r, "GET", "/")
	assert.Same(t, first.route, second.route)
	assert.Equal(t, first, second)
	assert.Equal(t, 1, stacks)
	assert.Equal(t, map[string]int{target: 1, "v2:80": 1}, bs.asked)
}

// Concurrent callers, pollers, describers and swaps, for the race detector.
func TestStorm(t *testing.T) {
	var bs backends
	var src profiles.Static
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := profiles.New(ctx, profiles.Config{Target: target, Source: &src}, access{}, bs.mk,
		profiles.WithPerRoute(func(_ profiles.Route, next service) service { return handler(next.Call) }))
	var group sync.WaitGroup
	for range 500 {
		group.Go(func() {
			_, err := r.Call(ctx, request{path: "/a"})
			assert.True(t, err == nil || errors.Is(err, layer.ErrNotReady), "%v", err)
			_, err = r.Call(ctx, request{path: "/b"})
			assert.True(t, err == nil || errors.Is(err, layer.ErrNotReady), "%v", err)
		})
		group.Go(func() {
			assert.NoError(t, r.Ready(ctx))
			_ = layer.Describe[request, *reply](r).String()
			_ = r.Profile().Validate()
		})
		group.Go(func() {
			src.Set(target, &profiles.Profile{
				Routes:  []profiles.Route{{Name: "a", Match: profiles.Path("/a")}},
				Targets: []profiles.Target{{"x:80", 1}, {"y:80", rand.Uint32N(3)}},
			})
		})
	}
	group.Wait()
}
