package profiles_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// TestRouterModel runs profiles, requests and changes of readiness in random order, and compares the
// Router with a small model.
func TestRouterModel(t *testing.T) {
	authorities := []string{"a:80", "b:80", "c:80"}
	paths := []string{"/", "/a", "/b"}
	rapid.Check(t, func(t *rapid.T) {
		ctx, cancel := context.WithCancel(context.Background())
		src := newScript()
		defer func() { cancel(); <-src.ended }()
		var bs backends
		down := make(map[string]bool)
		bs.prepare = func(b *backend) { b.unready.Store(down[b.authority]) }
		stacks := make(map[string]int) // route name: stacks made
		r := profiles.New(ctx, profiles.Config{Target: target, Source: src}, access{}, bs.mk, profiles.WithPerRoute(
			func(route profiles.Route, next service) service { stacks[route.Name]++; return next }))

		var routes []string // names are paths
		targets := []string{target}
		t.Repeat(map[string]func(*rapid.T){
			"profile": func(t *rapid.T) {
				p := &profiles.Profile{Distribution: profiles.RandomAvailable}
				before := routes
				routes, targets = nil, nil
				for _, name := range rapid.SliceOfN(rapid.SampledFrom(paths), 0, 4).Draw(t, "routes") {
					p.Routes = append(p.Routes, profiles.Route{Name: name, Match: profiles.Path(name)}, profiles.Route{Name: "bad"})
					routes = append(routes, name)
				}
				for _, authority := range append(slices.Clone(authorities), "") {
					weight := rapid.Uint32Range(0, 2).Draw(t, "weight of "+authority)
					p.Targets = append(p.Targets, profiles.Target{Authority: authority, Weight: weight})
					if weight > 0 && authority != "" {
						targets = append(targets, authority)
					}
				}
				if len(targets) == 0 {
					targets = []string{target}
				}
				clear(stacks)
				src.send(p, nil)
				for _, name := range paths {
					made := 0
					if slices.Contains(routes, name) && !slices.Contains(before, name) {
						made = 1
					}
					require.Equal(t, made, stacks[name], "stacks made for %s", name)
				}
			},
			"news": func(t *rapid.T) { src.send(nil, context.DeadlineExceeded) },
			"readiness": func(t *rapid.T) {
				authority := rapid.SampledFrom(append(authorities, target)).Draw(t, "authority")
				down[authority] = !down[authority]
				if b := bs.made[authority]; b != nil {
					b.unready.Store(down[authority])
				}
			},
			"request": func(t *rapid.T) {
				path := rapid.SampledFrom(paths).Draw(t, "path")
				rsp, err := r.Call(ctx, request{path: path})
				up := slices.DeleteFunc(slices.Clone(targets), func(a string) bool { return down[a] })
				require.Equal(t, len(up) > 0, layer.Poll[request, *reply](r) == nil)
				if len(up) == 0 {
					require.ErrorIs(t, err, layer.ErrNotReady)
					return
				}
				require.NoError(t, err)
				require.Contains(t, up, rsp.from)
				if slices.Contains(routes, path) {
					require.Equal(t, path, rsp.route.Name)
				} else {
					require.Nil(t, rsp.route)
				}
			},
			"": func(t *rapid.T) {
				for authority, n := range bs.asked {
					require.Equal(t, 1, n, authority)
				}
			},
		})
	})
}
