package profiles_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func TestRouterFirstMatch(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{
		{Name: "one book", Match: profiles.Path("/books/[^/]*"), Labels: map[string]string{"route": "one"}},
		{Name: "books", Match: profiles.Path("/books.*"), Labels: map[string]string{"route": "all"}},
		{Name: "puts", Match: profiles.Method("PUT")},
	}}, &bs)

	assert.Equal(t, &layer.Route{Name: "one book", Labels: map[string]string{"route": "one"}}, send(t, r, "GET", "/books/7").route)
	assert.Equal(t, "one book", send(t, r, "PUT", "/books/7").route.Name, "the first wins, and nothing is merged")
	assert.Equal(t, "books", send(t, r, "PUT", "/books").route.Name)
	assert.Equal(t, &layer.Route{Name: "puts"}, send(t, r, "PUT", "/authors").route)
}

func TestRouterNoMatch(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{{Name: "a", Match: profiles.Path("/a")}}}, &bs)
	rsp := send(t, r, "GET", "/b")
	assert.Nil(t, rsp.route)
	assert.Equal(t, target, rsp.from)
}

// A route without a name and labels is not added to the context. The layers below then see the route
// of an outer router.
func TestRouteWithoutNameAndLabels(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{{Match: profiles.All{}}}}, &bs)
	assert.Nil(t, send(t, r, "GET", "/").route)

	outer := &layer.Route{Name: "outer"}
	rsp, err := r.Call(layer.WithRoute(t.Context(), outer), request{path: "/"})
	require.NoError(t, err)
	assert.Same(t, outer, rsp.route)
}

func TestRouteWithoutName(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{
		{Match: profiles.All{}, Labels: map[string]string{"team": "web"}},
	}}, &bs)
	assert.Equal(t, &layer.Route{Labels: map[string]string{"team": "web"}}, send(t, r, "GET", "/").route)
}

func TestRouterInvalidRoute(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{
		{Name: "no condition"},
		{Name: "no expression", Match: profiles.Path("(")},
		{Name: "not invalid", Match: profiles.Not{Match: profiles.Path("(")}},
		{Name: "not of a request", Match: profiles.Status{Min: 200, Max: 299}},
		{Name: "good", Match: profiles.All{profiles.Path("("), profiles.Method("GET")}},
	}}, &bs)
	assert.Equal(t, "good", send(t, r, "GET", "/(").route.Name)
	assert.Nil(t, send(t, r, "PUT", "/").route)
}

func TestRouterLogsInvalidParts(t *testing.T) {
	log := newLog()
	var bs backends
	routerWith(t, profiles.Config{Log: log.logger()}, &profiles.Profile{
		Name:    "bad name",
		Routes:  []profiles.Route{{Name: "a"}, {Name: "b", Match: profiles.All{nil}}},
		Targets: []profiles.Target{{Weight: 1}, {Authority: "zero:80"}},
	}, &bs)
	assert.Equal(t, []string{
		`Routes[0].Match: route "a": no condition`,
		`Routes[1].Match: route "b": member of a condition: no condition`,
		`Name: "bad name" is not a DNS name`,
		`Targets[0]: no authority`,
	}, log.errors("left out of a profile"))
	assert.Equal(t, []string{target}, log.attrs("left out of a profile", "target")[:1])
}

func TestApexOfName(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{Name: "web.default.svc.cluster.local"}, &bs)
	assert.Equal(t, "web.default.svc.cluster.local:80", send(t, r, "GET", "/").from)
	assert.Equal(t, "web.default.svc.cluster.local", r.Profile().Name)
}

func TestRouterPassesErrors(t *testing.T) {
	broken := errors.New("broken")
	for what, p := range map[string]*profiles.Profile{
		"apex":  {},
		"split": {Targets: []profiles.Target{{"a:80", 1}, {"b:80", 1}}},
		"route": {Routes: []profiles.Route{{Name: "all", Match: profiles.All{}}}},
	} {
		bs := backends{prepare: func(b *backend) {
			b.serve = func(context.Context, request) (*reply, error) { return nil, broken }
		}}
		r := routerOf(t, p, &bs)
		_, err := r.Call(t.Context(), request{})
		assert.Same(t, broken, err, what)
		assert.Len(t, bs.calls(), 1, "%s: only a rejection is sent to another target", what)
	}
}

// A request with a done context is not sent.
func TestRouterRejectsDoneContext(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk, profiles.WithPerRoute(
		func(_ profiles.Route, next service) service { return next }))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	check := func(what string) {
		_, err := r.Call(ctx, request{path: "/"})
		require.ErrorIs(t, err, layer.ErrNotReady, what)
		require.ErrorIs(t, err, gone, what)
		assert.EqualError(t, err, "profiles web:80: not ready: canceled by the caller: gone", what)
		for authority, b := range bs.made {
			assert.Zero(t, b.calls.Load()+b.refused.Load(), "%s: %s", what, authority)
		}
	}
	check("before the first profile")
	src.send(&profiles.Profile{
		Routes:  []profiles.Route{{Name: "all", Match: profiles.All{}}},
		Targets: []profiles.Target{{"a:80", 1}, {"b:80", 1}},
	}, nil)
	check("with a split and a stack")
}

func TestPerRouteStack(t *testing.T) {
	var bs backends
	made := make(map[string]int)
	r := routerOf(t, &profiles.Profile{Routes: []profiles.Route{
		{Name: "a", Match: profiles.Path("/a"), Retry: &profiles.Retry{}},
		{Name: "plain", Match: profiles.Path("/plain")},
		{Name: "invalid"},
	}}, &bs, profiles.WithPerRoute(func(route profiles.Route, next service) service {
		made[route.Name]++
		if route.Retry == nil {
			return next
		}
		return handler(func(ctx context.Context, req request) (*reply, error) {
			rsp, err := next.Call(ctx, req)
			if err == nil {
				rsp.from += " by way of " + route.Name
			}
			return rsp, err
		})
	}))
	assert.Equal(t, map[string]int{"a": 1, "plain": 1}, made)
	for range 2 {
		rsp := send(t, r, "GET", "/a")
		assert.Equal(t, "web:80 by way of a", rsp.from)
		assert.Equal(t, "a", rsp.route.Name, "the stack's targets see the route")
		assert.Equal(t, "web:80", send(t, r, "GET", "/plain").from)
		assert.Equal(t, "web:80", send(t, r, "GET", "/b").from, "the default route has no stack")
	}
	assert.Equal(t, map[string]int{"a": 1, "plain": 1}, made)
}

// The next service of a per-route stack keeps the contract of a Service.
func TestPerRouteNext(t *testing.T) {
	var bs backends
	var next service
	r := routerOf(t, &profiles.Profile{
		Routes:  []profiles.Route{{Name: "all", Match: profiles.All{}}},
		Targets: []profiles.Target{{"a:80", 1}, {"b:80", 1}}, Distribution: profiles.RandomAvailable,
	}, &bs, profiles.WithPerRoute(func(_ profiles.Route, n service) service {
		next = n
		return n
	}))
	require.NoError(t, layer.Poll(next))
	bs.get(t, "a:80").unready.Store(true)
	bs.get(t, "b:80").unready.Store(true)
	require.ErrorIs(t, layer.Poll(next), layer.ErrNotReady)
	require.ErrorIs(t, layer.Poll[request, *reply](r), layer.ErrNotReady)
	_, err := r.Call(t.Context(), request{})
	require.ErrorIs(t, err, layer.ErrNotReady)
	bs.get(t, "b:80").unready.Store(false)

	// With a context that does not come from the Router, it uses the current profile.
	rsp, err := next.Call(context.Background(), request{})
	require.NoError(t, err)
	assert.Equal(t, "b:80", rsp.from)

	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = next.Call(done, request{})
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "profiles web:80: not ready: canceled by the caller")
	assert.Equal(t, map[string]int64{"b:80": 1}, bs.calls())
}

// A router may be the target of another one's route; each keeps to its own
// profile.
func TestNestedRouters(t *testing.T) {
	var bs backends
	pass := profiles.WithPerRoute(func(_ profiles.Route, next service) service {
		return handler(next.Call)
	})
	all := []profiles.Route{{Name: "all", Match: profiles.All{}}}
	inner := routerOf(t, &profiles.Profile{Routes: all, Targets: []profiles.Target{{"inner:80", 1}}}, &bs, pass)
	src := newScript()
	config := profiles.Config{Target: "outer:80", Source: src}
	outer := profiles.New(t.Context(), config, access{}, func(string) service { return inner }, pass)
	src.send(&profiles.Profile{Routes: all}, nil)
	assert.Equal(t, "inner:80", send(t, outer, "GET", "/").from)
}

func TestDescribe(t *testing.T) {
	var bs backends
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk, profiles.WithPerRoute(
		func(route profiles.Route, next service) service {
			if route.Retry == nil {
				return nil
			}
			return layer.NewStack[request, *reply]().With("retry", func(next service) service { return next }).Service(next)
		}))
	assert.Equal(t, `profiles   target=web:80 source=waiting routes=0
  target     authority=web:80
  backend
`, abridged(layer.Describe[request, *reply](r)))

	src.send(nil, errors.New("no such host"))
	assert.Contains(t, layer.Describe[request, *reply](r).String(), "source=lost: no such host")

	src.send(&profiles.Profile{
		Name: "web.local",
		Routes: []profiles.Route{
			{Name: "a", Match: profiles.Path("/a"), Retry: &profiles.Retry{}},
			{Match: profiles.Path("/b"), Retry: &profiles.Retry{}},
			{Match: profiles.Path("/c")},
			{Name: "invalid"},
		},
		Targets: []profiles.Target{{"v1:80", 90}, {"v2:80", 10}, {"v3:80", 0}},
	}, nil)
	assert.Equal(t, `profiles   target=web:80 source=watching routes=3 name=web.local
  route      name=a
  retry
  targets
  route
  retry
  targets
  target     authority=v1:80 weight=90
  backend
  target     authority=v2:80 weight=10
  backend
`, abridged(layer.Describe[request, *reply](r)))
}

func TestDescribeWatch(t *testing.T) {
	for want, end := range map[string]func(*script){
		"source=watching":                        func(*script) {},
		"source=lost: refused":                   func(src *script) { src.send(nil, errors.New("refused")) },
		"source=ended: no profile for this name": func(src *script) { src.send(nil, profiles.ErrNoProfile) },
		"source=ended routes":                    (*script).end,
	} {
		synctest.Test(t, func(t *testing.T) {
			src := newScript()
			r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, new(backends).mk)
			src.send(&profiles.Profile{}, nil)
			end(src)
			synctest.Wait()
			assert.Contains(t, layer.Describe[request, *reply](r).String(), want)
		})
	}
}

// abridged prints a tree with the test's own services by their short name.
func abridged(n layer.Node) string {
	var shorten func(n *layer.Node)
	shorten = func(n *layer.Node) {
		if n == nil {
			return
		}
		if n.Name == "profiles_test.backend" {
			n.Name = "backend"
		}
		shorten(n.Next)
		for i := range n.Children {
			shorten(&n.Children[i])
		}
	}
	shorten(&n)
	return n.String()
}
