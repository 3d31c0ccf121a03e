package profiles_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

func TestDefaultRoute(t *testing.T) {
	var bs backends
	src := newScript()
	made, came := 0, 0
	var next service
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk,
		profiles.WithDefaultRoute(func(_ *profiles.Profile, targets service) service {
			made++
			next = targets
			return handler(func(ctx context.Context, req request) (*reply, error) {
				came++
				return targets.Call(ctx, req)
			})
		}),
		profiles.WithPerRoute(func(_ profiles.Route, next service) service { return next }))
	assert.Equal(t, target, send(t, r, "GET", "/").from, "the default profile has one, too")
	assert.Equal(t, 1, came)

	src.send(&profiles.Profile{
		Routes:  []profiles.Route{{Name: "a", Match: profiles.Path("/a")}, {Match: profiles.Path("/nameless")}},
		Targets: []profiles.Target{{"v2:80", 1}},
	}, nil)
	assert.Equal(t, "v2:80", send(t, r, "GET", "/").from)
	send(t, r, "GET", "/a")
	send(t, r, "GET", "/nameless")
	assert.Equal(t, 2, came, "requests with a route go elsewhere")
	assert.Equal(t, 2, made)
	assert.Contains(t, layer.Describe[request, *reply](r).String(), "default_route\n")

	old := next
	src.send(&profiles.Profile{Targets: []profiles.Target{{"v3:80", 1}}}, nil)
	rsp, err := old.Call(t.Context(), get)
	require.NoError(t, err)
	assert.Equal(t, "v2:80", rsp.from, "by the profile that the request began with")
	require.NoError(t, layer.Poll(old))
	assert.Equal(t, "targets", layer.Describe(old).Name)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = old.Call(done, get)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

// OnUpdate is called before WithPerRoute for the same profile.
func TestOnProfile(t *testing.T) {
	var bs backends
	src := newScript()
	var calls []string
	config := profiles.Config{Target: target, Source: src, OnUpdate: func(p *profiles.Profile) { calls = append(calls, fmt.Sprint(p.Name, " ", len(p.Routes))) }}
	r := profiles.New(t.Context(), config, access{}, bs.mk,
		profiles.WithPerRoute(func(route profiles.Route, next service) service {
			calls = append(calls, route.Name)
			return next
		}))
	all := []profiles.Route{{Name: "all", Match: profiles.All{}}}
	for _, p := range []*profiles.Profile{{Name: "web", Routes: all}, {Name: "new", Routes: all}, nil} {
		src.send(p, nil)
	}
	assert.Equal(t, []string{" 0", "web 1", "all", "new 1", " 0"}, calls)
	send(t, r, "GET", "/")
}

func TestDefaultRouteConforms(t *testing.T) {
	pass := profiles.WithDefaultRoute(func(_ *profiles.Profile, next kitService) kitService {
		return layer.NewStack[kitRequest, kitResponse]().Service(next)
	})
	layertest.Run(t, layertest.Layer{
		OutlivesInner: true, // another profile may come
		New: func(ctx context.Context, next kitService) kitService {
			src := newScript()
			r := profiles.New(ctx, profiles.Config{Target: target, Source: src}, kitAccess{}, func(string) kitService { return next }, pass)
			src.send(&profiles.Profile{Targets: two}, nil)
			return r
		},
	})
}

func TestRoutesOnly(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk)
	src.send(&profiles.Profile{RoutesOnly: true, Routes: []profiles.Route{{Match: profiles.Path("/a")}}}, nil)
	assert.Equal(t, target, send(t, r, "GET", "/a").from)
	_, err := r.Call(t.Context(), request{method: "GET", path: "/b"})
	require.ErrorIs(t, err, layer.ErrNoRoute)
	require.NotErrorIs(t, err, layer.ErrNotReady)
}
