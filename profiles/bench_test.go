package profiles_test

import (
	"context"
	"fmt"
	"testing"
	"time"

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
	r := profiles.New(b.Context(), profiles.Config{Target: target, Source: src}, access{}, func(string) service {
		rsp := &reply{status: 200}
		return handler(func(context.Context, request) (*reply, error) { return rsp, nil })
	}, opts...)
	src.send(p, nil)
	return r
}

func bench(b *testing.B, p *profiles.Profile, opts ...option) {
	b.Helper()
	benchPath(b, p, "/api/v1/the-last-one-of-them-all", opts...)
}

func benchPath(b *testing.B, p *profiles.Profile, path string, opts ...option) {
	b.Helper()
	r := benchRouter(b, p, opts...)
	req := request{method: "GET", path: path}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Call(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMatch finds the last of n routes. "anywhere" are expressions that
// begin in no certain way, which no index can do anything about.
func BenchmarkMatch(b *testing.B) {
	for _, kind := range []struct {
		name, path string
		match      func(i int) profiles.Match
	}{
		{"literal", "/api/v1/thing%d", func(i int) profiles.Match { return profiles.Path(fmt.Sprintf("/api/v1/thing%d", i)) }},
		{"prefix", "/api/v1/thing%d/a/b", func(i int) profiles.Match { return profiles.PathPrefix(fmt.Sprintf("/api/v1/thing%d", i)) }},
		{"open", "/api/v1/thing%d/a/b", func(i int) profiles.Match { return profiles.Path(fmt.Sprintf("/api/v1/thing%d/.*", i)) }},
		{"segment", "/api/users/7/thing%d", func(i int) profiles.Match { return profiles.Path(fmt.Sprintf("/api/users/[^/]*/thing%d", i)) }},
		{"grpc", "/books.v1.Books/Get%d", func(i int) profiles.Match {
			return profiles.GRPC{Service: "books.v1.Books", Method: fmt.Sprintf("Get%d", i)}
		}},
		{"regex", "/api/users/7/thing%d", func(i int) profiles.Match { return profiles.Path(fmt.Sprintf("/api/users/[0-9]+/thing%d", i)) }},
		{"anywhere", "/api/users/7/thing%d", func(i int) profiles.Match { return profiles.Path(fmt.Sprintf(".*/thing%d", i)) }},
	} {
		for _, n := range []int{10, 100, 1000} {
			routes := make([]profiles.Route, n)
			for i := range routes {
				// The same number of digits, so that all paths have one length.
				routes[i].Match = profiles.All{profiles.Method("GET"), kind.match(1000 + i)}
			}
			b.Run(fmt.Sprintf("%s/%d", kind.name, n), func(b *testing.B) {
				benchPath(b, &profiles.Profile{Routes: routes}, fmt.Sprintf(kind.path, 1000+n-1))
			})
		}
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
			profiles.WithPerRoute(func(_ profiles.Route, next service) service { return next }))
	})
	b.Run("routes=10,standard", func(b *testing.B) {
		acting := routesOf(10, literal)
		acting[9].Retry, acting[9].Timeout = &profiles.Retry{}, time.Minute
		bench(b, &profiles.Profile{Routes: acting, RetryBudget: budget()}, standard())
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
	profiles.New(b.Context(), profiles.Config{Target: target, Source: src}, access{}, func(string) service { return handler(nil) })
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
