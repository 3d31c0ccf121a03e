package profiles_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// routesOf returns n routes of which the last one alone matches GET /last.
func routesOf(n int, path func(i int) profiles.Path) []profiles.Route {
	routes := make([]profiles.Route, n)
	for i := range routes {
		routes[i].Match = profiles.All{profiles.Method("GET"), path(i)}
	}
	routes[n-1].Match = profiles.All{profiles.Method("GET"), profiles.Path("/api/v1/the-last-one-of-them-all")}
	return routes
}

func benchRouter(b *testing.B, p *profiles.Profile, opts ...option) *router {
	b.Helper()
	src := newScript()
	r := profiles.New(b.Context(), target, src, access{}, func(string) service {
		rsp := &reply{status: 200}
		return handler(func(context.Context, request) (*reply, error) { return rsp, nil })
	}, opts...)
	src.send(p, nil)
	return r
}

func bench(b *testing.B, p *profiles.Profile, opts ...option) {
	b.Helper()
	r := benchRouter(b, p, opts...)
	req := request{method: "GET", path: "/api/v1/the-last-one-of-them-all"}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Call(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMatch finds the last of n routes, the worst case of looking at them
// in order.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		literal := func(i int) profiles.Path { return profiles.Path(fmt.Sprintf("/api/v1/thing%d", i)) }
		regex := func(i int) profiles.Path { return profiles.Path(fmt.Sprintf("/api/[^/]*/thing%d", i)) }
		b.Run(fmt.Sprintf("literal/%d", n), func(b *testing.B) { bench(b, &profiles.Profile{Routes: routesOf(n, literal)}) })
		b.Run(fmt.Sprintf("regex/%d", n), func(b *testing.B) { bench(b, &profiles.Profile{Routes: routesOf(n, regex)}) })
	}
}

func BenchmarkRouter(b *testing.B) {
	literal := func(i int) profiles.Path { return profiles.Path(fmt.Sprintf("/api/v1/thing%d", i)) }
	ten := routesOf(10, literal)
	labelled := routesOf(10, literal)
	labelled[9].Labels = map[string]string{"route": "last"}
	halves := []profiles.Target{{"a:80", 1}, {"b:80", 1}}

	b.Run("default", func(b *testing.B) { bench(b, &profiles.Profile{}) })
	b.Run("routes=10", func(b *testing.B) { bench(b, &profiles.Profile{Routes: ten}) })
	b.Run("routes=10,split", func(b *testing.B) { bench(b, &profiles.Profile{Routes: ten, Targets: halves}) })
	b.Run("routes=10,labels,split", func(b *testing.B) { bench(b, &profiles.Profile{Routes: labelled, Targets: halves}) })
	b.Run("routes=10,perroute,split", func(b *testing.B) {
		bench(b, &profiles.Profile{Routes: ten, Targets: halves},
			profiles.PerRoute(func(_ profiles.Route, next service) service { return next }))
	})
	b.Run("routes=10,onresponse", func(b *testing.B) {
		bench(b, &profiles.Profile{Routes: ten},
			profiles.OnResponse[request, *reply](func(*layer.Route, profiles.Class, error) {}))
	})
	b.Run("parallel", func(b *testing.B) {
		r := benchRouter(b, &profiles.Profile{Routes: ten, Targets: halves})
		req := request{method: "GET", path: "/api/v1/the-last-one-of-them-all"}
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := r.Call(context.Background(), req); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// BenchmarkSwap is what a new profile costs of which one route in a thousand
// has changed.
func BenchmarkSwap(b *testing.B) {
	src := newScript()
	profiles.New(b.Context(), target, src, access{}, func(string) service { return handler(nil) })
	a := &profiles.Profile{Routes: routesOf(1000, func(i int) profiles.Path { return profiles.Path(fmt.Sprintf("/a/%d/[^/]*", i)) })}
	changed := &profiles.Profile{Routes: append([]profiles.Route{{Match: profiles.Path("/x/[^/]*")}}, a.Routes...)}
	b.ReportAllocs()
	for b.Loop() {
		src.send(a, nil)
		src.send(changed, nil)
	}
}

// A Router without labels, stacks and hooks costs no allocation.
func TestRouterAllocatesNothing(t *testing.T) {
	for what, p := range map[string]*profiles.Profile{
		"default": {},
		"split":   {Targets: two},
		"routes":  {Routes: routesOf(10, func(i int) profiles.Path { return profiles.Path(fmt.Sprintf("/%d", i)) }), Targets: two},
	} {
		var bs backends
		r := routerOf(t, p, &bs)
		rsp := &reply{}
		for _, b := range bs.made {
			b.serve = func(context.Context, request) (*reply, error) { return rsp, nil }
		}
		ctx := t.Context()
		allocs := testing.AllocsPerRun(100, func() {
			_, _ = r.Call(ctx, request{method: "GET", path: "/api/v1/the-last-one-of-them-all"})
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", what, allocs)
		}
	}
}
