package profiles_test

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// ofPolicy is a profile with the route r for all requests, as a client policy has it.
func ofPolicy(r profiles.Route) *profiles.Profile {
	r.Name, r.Match = "r", profiles.All{}
	return &profiles.Profile{RoutesOnly: true, Precedence: profiles.MostSpecific, Routes: []profiles.Route{r}}
}

func weighted(authority string, weight uint32) profiles.Backend {
	return profiles.Backend{Target: profiles.Target{Authority: authority, Weight: weight}}
}

func TestPolicyBackendsByWeight(t *testing.T) {
	var bs backends
	p := ofPolicy(profiles.Route{
		Backends: []profiles.Backend{weighted("a:80", 3), weighted("b:80", 1), weighted("c:80", 0)}, Distribution: profiles.RandomAvailable,
	})
	r := routerOf(t, p, &bs)
	for range 4000 {
		send(t, r, "GET", "/")
	}
	calls := bs.calls()
	assert.InDelta(t, 3000, calls["a:80"], 200)
	assert.EqualValues(t, 4000, calls["a:80"]+calls["b:80"])

	bs.get(t, "a:80").set(&bs.get(t, "a:80").unready, true)
	assert.Equal(t, "b:80", send(t, r, "GET", "/").from, "a backend that is not ready is skipped")
	require.NoError(t, layer.Poll(r), "Ready is that of the backends")
	bs.get(t, "b:80").set(&bs.get(t, "b:80").unready, true)
	require.ErrorIs(t, layer.Poll(r), layer.ErrNotReady)
}

func TestPolicyFailover(t *testing.T) {
	var bs backends
	r := routerOf(t, ofPolicy(profiles.Route{
		Distribution: profiles.FirstAvailable, Backends: []profiles.Backend{weighted("a:80", 1), weighted("b:80", 1000)},
	}), &bs)
	for range 20 {
		require.Equal(t, "a:80", send(t, r, "GET", "/").from)
	}
	bs.get(t, "a:80").set(&bs.get(t, "a:80").unready, true)
	require.Equal(t, "b:80", send(t, r, "GET", "/").from)
}

// A backend that rejects requests although it is ready is followed by the next one in order.
func TestPolicyFailoverRejected(t *testing.T) {
	var bs backends
	r := routerOf(t, ofPolicy(profiles.Route{
		Distribution: profiles.FirstAvailable, Backends: []profiles.Backend{weighted("a:80", 1), weighted("b:80", 1), weighted("c:80", 1000)},
	}), &bs)
	bs.get(t, "a:80").refusing.Store(true)
	for range 20 {
		require.Equal(t, "b:80", send(t, r, "GET", "/").from)
	}
	for _, authority := range []string{"b:80", "c:80"} {
		bs.get(t, authority).unready.Store(true)
	}
	_, err := r.Call(t.Context(), request{method: "GET", path: "/"})
	require.ErrorContains(t, err, "rejected by 3 of 3 targets")
}

// Backends that do not exist fail their share, and a route without backends rejects.
func TestPolicyWithoutBackend(t *testing.T) {
	var bs backends
	missing := profiles.Backend{Target: profiles.Target{Weight: 1}, Missing: "Service default/none does not exist"}
	r := routerOf(t, ofPolicy(profiles.Route{Backends: []profiles.Backend{weighted("a:80", 1), missing, weighted("", 1)}}), &bs)
	served, failed := 0, 0
	for range 600 {
		if _, err := r.Call(t.Context(), request{method: "GET", path: "/"}); err == nil {
			served++
		} else {
			require.NotErrorIs(t, err, layer.ErrNotReady)
			failed++
		}
	}
	assert.InDelta(t, 200, served, 60)
	assert.InDelta(t, 400, failed, 60)

	r = routerOf(t, ofPolicy(profiles.Route{Backends: []profiles.Backend{}}), &bs)
	_, err := r.Call(t.Context(), request{method: "GET", path: "/"})
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorContains(t, err, "no backends")
}

// A program gets back the Values that it attached to a route and to its backends. Equal Values keep the
// services, and nothing follows the pointers in them.
func TestPolicyValues(t *testing.T) {
	type value struct {
		name    string
		unequal func() // not equal to itself in reflect.DeepEqual
	}
	profile := func(route, first, second *value) *profiles.Profile {
		backends := []profiles.Backend{weighted("a:80", 1), weighted("a:80", 1)}
		backends[0].Value, backends[1].Value = first, second
		return ofPolicy(profiles.Route{Backends: backends, Value: route})
	}
	var routes, targets []string
	var bs backends
	src := newScript()
	profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk,
		profiles.WithPerRoute(func(route profiles.Route, next service) service {
			routes = append(routes, route.Value.(*value).name)
			return next
		}),
		profiles.WithBackends(func(_ context.Context, b *profiles.Backend) service {
			if v, ok := b.Value.(*value); ok { // not of the default profile
				targets = append(targets, v.name)
			}
			return bs.mk(b.Authority)
		}))
	one, two, three := &value{"one", func() {}}, &value{"two", func() {}}, &value{"three", func() {}}
	src.send(profile(one, two, three), nil)
	src.send(profile(one, two, three), nil)
	assert.Equal(t, []string{"one"}, routes)
	assert.Equal(t, []string{"two", "three"}, targets, "a service for each Value")
	src.send(profile(&value{"one again", nil}, two, three), nil)
	assert.Equal(t, []string{"one", "one again"}, routes)
	assert.Equal(t, []string{"two", "three"}, targets)
	src.send(profile(one, two, &value{"three again", nil}), nil)
	assert.Equal(t, []string{"one", "one again", "one"}, routes)
	assert.Equal(t, []string{"two", "three", "three again"}, targets)
}

// The layers of a route see it in the context, unless its backends have labels of their own.
func TestPolicyRouteInContext(t *testing.T) {
	for _, labels := range []map[string]string{nil, {"backend": "a"}} {
		var seen *layer.Route
		b := weighted("a:80", 1)
		b.Labels = labels
		var bs backends
		r := routerOf(t, ofPolicy(profiles.Route{Backends: []profiles.Backend{b}}), &bs,
			profiles.WithPerRoute(func(_ profiles.Route, next service) service {
				return layer.Func[request, *reply](func(ctx context.Context, req request) (*reply, error) {
					seen = layer.RouteFromContext(ctx)
					return next.Call(ctx, req)
				})
			}))
		rsp := send(t, r, "GET", "/")
		assert.Equal(t, "r", rsp.route.Name)
		assert.Equal(t, labels, rsp.route.Labels)
		assert.Equal(t, labels == nil, seen != nil)
	}
}

// A route without backends sends requests to the targets of the profile, also beside routes
// with backends.
func TestPolicyRouteWithoutOwnBackends(t *testing.T) {
	var bs backends
	r := routerOf(t, &profiles.Profile{RoutesOnly: true, Routes: []profiles.Route{
		{Match: profiles.Path("/own"), Backends: []profiles.Backend{weighted("a:80", 1)}},
		{Match: profiles.Path("/other")},
	}}, &bs)
	assert.Equal(t, "a:80", send(t, r, "GET", "/own").from)
	assert.Equal(t, target, send(t, r, "GET", "/other").from)
}

// A nil result of the function of WithPerRoute means the service that it received.
func TestPolicyPerRouteNil(t *testing.T) {
	var bs backends
	r := routerOf(t, ofPolicy(profiles.Route{Backends: []profiles.Backend{weighted("a:80", 1)}}), &bs,
		profiles.WithPerRoute(func(profiles.Route, service) service { return nil }))
	require.Equal(t, "a:80", send(t, r, "GET", "/").from)
}

// A backend is made again if its endpoint or balancing differs, and is released otherwise.
func TestPolicyBackendServices(t *testing.T) {
	var made []profiles.Backend
	var contexts []context.Context
	mk := profiles.WithBackends(func(ctx context.Context, b *profiles.Backend) service {
		if b.Authority != target { // the default profile
			made = append(made, *b)
			contexts = append(contexts, ctx)
		}
		return handler(func(context.Context, request) (*reply, error) { return &reply{status: 200, from: b.Authority}, nil })
	})
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, new(backends).mk, mk)
	a, tuned := weighted("a:80", 1), weighted("a:80", 1)
	tuned.Balancing.Breaker.ConsecutiveFailures = 3
	e := profiles.Backend{Target: profiles.Target{Weight: 1}, Endpoint: &resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort("10.0.0.1:80")}}}
	same := e
	same.Endpoint = &resolve.Endpoint{ID: resolve.ID{Addr: e.Endpoint.Addr}}
	for i, tt := range []struct {
		backends []profiles.Backend
		made     int
	}{
		{[]profiles.Backend{a, a}, 1},
		{[]profiles.Backend{a, tuned}, 2},
		{[]profiles.Backend{tuned, e}, 3},
		{[]profiles.Backend{tuned, same}, 3},
		{[]profiles.Backend{a}, 4},
	} {
		src.send(ofPolicy(profiles.Route{Backends: tt.backends}), nil)
		send(t, r, "GET", "/")
		require.Len(t, made, tt.made, i)
	}
	require.Equal(t, e.Endpoint, made[2].Endpoint)
	for _, ctx := range contexts[:3] {
		require.Eventually(t, func() bool { return ctx.Err() != nil }, 10*time.Second, time.Millisecond)
	}
	require.NoError(t, contexts[3].Err(), "the last profile contains the backend")
}

// The targets and the endpoint of a profile are backends with the Value of the profile.
func TestProfileValue(t *testing.T) {
	var bs backends
	var values []any
	src := newScript()
	r := profiles.New(t.Context(), profiles.Config{Target: target, Source: src}, access{}, bs.mk,
		profiles.WithBackends(func(_ context.Context, b *profiles.Backend) service {
			values = append(values, b.Value)
			return bs.mk(b.Authority)
		}),
		profiles.WithDefaultRoute(func(p *profiles.Profile, next service) service {
			values = append(values, p.Value)
			return next
		}))
	src.send(&profiles.Profile{Value: 1, Targets: []profiles.Target{{Authority: "a:80", Weight: 1}, {Authority: "b:80", Weight: 1}}}, nil)
	src.send(&profiles.Profile{Value: 1, Targets: []profiles.Target{{Authority: "a:80", Weight: 1}}}, nil)
	src.send(&profiles.Profile{Value: 2, Endpoint: pod("10.0.0.1:80")}, nil)
	assert.Equal(t, []any{nil, nil, 1, 1, 1, 1, 2, 2}, values)
	assert.Equal(t, 2, r.Profile().Value)
	assert.Equal(t, "10.0.0.1:80", send(t, r, "GET", "/").from)
}

// A service below a route gets the Value of the route with the request.
func TestRouteValueInContext(t *testing.T) {
	for _, labels := range []map[string]string{nil, {"backend": "a"}} {
		b := weighted("a:80", 1)
		b.Labels = labels
		var bs backends
		r := routerOf(t, ofPolicy(profiles.Route{Backends: []profiles.Backend{b}, Value: 7}), &bs)
		assert.Equal(t, 7, send(t, r, "GET", "/").route.Value)
	}
}

func TestPolicyRetry(t *testing.T) {
	for _, tt := range []struct {
		what    string
		retry   profiles.Retry
		url     string
		body    string
		arrived int
		status  int
	}{
		{"a status", profiles.Retry{Max: 2, MaxBodyBytes: 100, Statuses: []profiles.Status{{500, 599}}}, "/?fails=2", "hello", 3, 200},
		{"the limit", profiles.Retry{Max: 1, MaxBodyBytes: 100, Statuses: []profiles.Status{{500, 599}}}, "/?fails=2", "hello", 2, 500},
		{"another status", profiles.Retry{Max: 2, MaxBodyBytes: 100, Statuses: []profiles.Status{{501, 599}}}, "/?fails=2", "hello", 1, 500},
		{"a large body", profiles.Retry{Max: 2, MaxBodyBytes: 4, Statuses: []profiles.Status{{500, 599}}}, "/?fails=2", "hello", 1, 500},
		{"no status", profiles.Retry{Max: 2, Statuses: []profiles.Status{}}, "/?fails=2", "hello", 1, 500},
		{"failures", profiles.Retry{Max: 2}, "/?fails=2", "hello", 3, 200},
		{"no body", profiles.Retry{Max: 2, MaxBodyBytes: -1}, "/?fails=2", "hello", 1, 500},
		{"an empty body", profiles.Retry{Max: 2, MaxBodyBytes: -1}, "/?fails=2", "", 3, 200},
		{"a pause", profiles.Retry{Max: 1, Statuses: []profiles.Status{{500, 500}}, Backoff: layer.Backoff{Min: 50 * time.Millisecond, Max: time.Second}}, "/?fails=1", "", 2, 200},
	} {
		t.Run(tt.what, func(t *testing.T) {
			tt.retry.NonIdempotent, tt.retry.WithoutBudget = true, true
			r, came := newWebRouter(t, ofPolicy(profiles.Route{Retry: &tt.retry}))
			start := time.Now()
			rsp, err := r.Call(t.Context(), streamed(t, tt.url, strings.NewReader(tt.body), int64(len(tt.body))))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			assert.Equal(t, tt.status, rsp.StatusCode)
			require.Len(t, came(), tt.arrived)
			for _, attempt := range came() {
				assert.Equal(t, tt.body, attempt.body)
			}
			assert.GreaterOrEqual(t, time.Since(start), tt.retry.Backoff.Min)
		})
	}
}

// The last attempt has no limit, as with linkerd, because no retry can follow it.
func TestPolicyRetryLastAttempt(t *testing.T) {
	for retries, want := range map[int]time.Duration{1: time.Minute + time.Second, 2: time.Minute + 2*time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var source profiles.Static
			source.Set(target, ofPolicy(profiles.Route{
				Retry: &profiles.Retry{Max: retries, WithoutBudget: true, LastUnlimited: true}, AttemptTimeout: time.Second,
			}))
			r := profiles.New(ctx, profiles.Config{Target: target, Source: &source, InitialWait: time.Second},
				httplayer.HTTP{}, func(string) httplayer.Service {
					return handlerHTTP(func(ctx context.Context, _ *http.Request) (*http.Response, error) {
						select {
						case <-ctx.Done():
							return nil, context.Cause(ctx)
						case <-time.After(time.Minute):
							return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
						}
					})
				}, profiles.WithRouteLayers(httplayer.HTTP{}))
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://web/", nil)
			began := time.Now()
			rsp, err := r.Call(ctx, req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.InDelta(t, want.Seconds(), time.Since(began).Seconds(), 1e-3)
		})
	}
}

// Override fields change the request that has them, and are removed. Without Overrides they
// are forwarded.
func TestPolicyOverrides(t *testing.T) {
	call := func(overrides bool, url string, header http.Header) (status int, came []received) {
		t.Helper()
		r, requests := newWebRouter(t, ofPolicy(profiles.Route{Overrides: overrides}))
		req := streamed(t, url, nil, 0)
		req.Header = header
		rsp, err := r.Call(t.Context(), req)
		if err != nil {
			status, _ = httplayer.StatusFromError(err)
			return status, requests()
		}
		require.NoError(t, rsp.Body.Close())
		return rsp.StatusCode, requests()
	}
	status, came := call(true, "/?fails=1", http.Header{"L5d-Retry-Http": {"5xx"}, "X-A": {"1"}})
	assert.Equal(t, 200, status)
	require.Len(t, came, 2)
	for _, attempt := range came {
		assert.NotContains(t, attempt.header, "L5d-Retry-Http")
		assert.Equal(t, []string{"1"}, attempt.header["X-A"])
	}
	status, came = call(true, "/?fails=3", http.Header{"L5d-Retry-Http": {"gateway-error,500-501"}, "L5d-Retry-Limit": {"3"}})
	assert.Equal(t, 200, status)
	assert.Len(t, came, 4)
	status, came = call(true, "/?fails=1", http.Header{"L5d-Retry-Http": {"503"}})
	assert.Equal(t, 500, status)
	assert.Len(t, came, 1)
	status, came = call(true, "/?fails=1", http.Header{"L5d-Retry-Http": {"5xx"}, "L5d-Retry-Limit": {"0"}})
	assert.Equal(t, 500, status)
	assert.Len(t, came, 1)
	status, came = call(false, "/?fails=1", http.Header{"L5d-Retry-Http": {"5xx"}})
	assert.Equal(t, 500, status)
	require.Len(t, came, 1)
	assert.Equal(t, []string{"5xx"}, came[0].header["L5d-Retry-Http"])
}

// Override fields change the retries of a service profile too, which stay within its budget and its methods.
func TestOverridesWithinBudget(t *testing.T) {
	p := one(profiles.Route{Retry: &profiles.Retry{}, Overrides: true})
	p.RetryBudget = &profiles.RetryBudget{Ratio: 3, TTL: time.Minute}
	r, came := newWebRouter(t, p)
	before := 0
	for _, tt := range []struct {
		method, limit string
		attempts      int
	}{{"GET", "2", 3}, {"POST", "2", 1}, {"GET", "0", 1}, {"GET", "99", 8}, {"GET", "", 4}} {
		req := streamed(t, "/?fails=100", nil, 0)
		req.Method = tt.method
		req.Header.Set("L5d-Retry-Limit", tt.limit)
		rsp, err := r.Call(t.Context(), req)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		assert.Len(t, came(), before+tt.attempts, "%+v", tt)
		before = len(came())
	}
}

// Requests with different override fields share the limit and the faults of the route, and
// their timeouts replace those of the route.
func TestPolicyOverriddenTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		src := newScript()
		r := profiles.New(ctx, profiles.Config{Target: target, Source: src}, httplayer.HTTP{}, func(string) httplayer.Service {
			return handlerHTTP(func(ctx context.Context, _ *http.Request) (*http.Response, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})
		}, profiles.WithRouteLayers(httplayer.HTTP{}))
		call := func(name, value string) (int, error) {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://web/", nil)
			req.Header.Set(name, value)
			rsp, err := r.Call(ctx, req)
			if err != nil {
				return 0, err
			}
			return rsp.StatusCode, rsp.Body.Close()
		}
		src.send(ofPolicy(profiles.Route{RequestTimeout: time.Hour, ResponseTimeout: 2 * time.Hour, Overrides: true, Limit: 1}), nil)
		for name, want := range map[string]time.Duration{
			"L5d-Timeout": time.Second, "L5d-Request-Timeout": time.Second, "L5d-Response-Timeout": time.Second, "X-Timeout": time.Hour,
		} {
			start, done := time.Now(), make(chan error)
			go func() {
				_, err := call(name, "1s")
				done <- err
			}()
			synctest.Wait()
			_, err := call("L5d-Timeout", "2s")
			require.ErrorIs(t, err, layer.ErrNotReady, "the limit")
			require.ErrorIs(t, <-done, layer.ErrTimeout, name)
			assert.Equal(t, want, time.Since(start), name)
		}

		fault := abort(1, 503)
		src.send(ofPolicy(profiles.Route{Overrides: true, Faults: []profiles.Fault{fault}}), nil)
		status, err := call("L5d-Timeout", "1s")
		require.NoError(t, err)
		assert.Equal(t, 503, status)
		time.Sleep(fault.TTL)
		_, err = call("L5d-Timeout", "2s")
		require.ErrorIs(t, err, layer.ErrTimeout, "the fault has ended")
	})
}

// Faults of a policy have no end.
func TestPolicyFault(t *testing.T) {
	r, came := newWebRouter(t, ofPolicy(profiles.Route{
		Faults: []profiles.Fault{{Fraction: 1, Status: 418, TTL: math.MaxInt64, Message: "short and stout"}},
	}))
	rsp, err := r.Call(t.Context(), streamed(t, "/", nil, 0))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, 418, rsp.StatusCode)
	assert.Empty(t, came())
}

func TestPolicyBackendFilters(t *testing.T) {
	b := weighted("a:80", 1)
	b.RequestHeader.Set, b.ResponseHeader.Set = pairs("X-Backend", "a"), pairs("X-From", "a")
	r, came := newWebRouter(t, ofPolicy(profiles.Route{Backends: []profiles.Backend{b}}))
	rsp, err := r.Call(t.Context(), streamed(t, "/", nil, 0))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.Equal(t, "a", rsp.Header.Get("X-From"))
	require.Len(t, came(), 1)
	assert.Equal(t, []string{"a"}, came()[0].header["X-Backend"])
}

// failures is a protocol in which each outcome is a failure.
type failures struct{ resend }

func (failures) Classify(layer.Outcome[*reply]) layer.Class { return layer.Failure }

func TestPolicyTimeouts(t *testing.T) {
	for what, p := range map[string]profiles.Route{
		"request": {RequestTimeout: 50 * time.Millisecond}, "response": {ResponseTimeout: 50 * time.Millisecond},
		"response, a retry": {ResponseTimeout: 50 * time.Millisecond, Retry: &profiles.Retry{Max: 1, WithoutBudget: true}},
	} {
		t.Run(what, func(t *testing.T) {
			r, _ := serving(t, ofPolicy(p), func(ctx context.Context, _ request) (*reply, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}, profiles.WithRouteLayers(failures{}))
			_, err := r.Call(t.Context(), request{method: "GET", path: "/"})
			require.ErrorIs(t, err, layer.ErrTimeout)
		})
	}
}

// An endpoint that sends a part of its response body and then pauses exceeds IdleTimeout, a slow
// one does not. The server is a real one, because the read of its connection has to end.
func TestPolicyIdleTimeout(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 5 {
			_, _ = io.WriteString(w, "part ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(5 * time.Millisecond)
		}
		if r.URL.Path == "/pause" {
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	var source profiles.Static
	source.Set(target, ofPolicy(profiles.Route{IdleTimeout: 300 * time.Millisecond}))
	config := profiles.Config{Target: target, Source: &source, InitialWait: time.Minute}
	r := profiles.New(ctx, config, httplayer.HTTP{}, func(string) httplayer.Service {
		return handlerHTTP(func(ctx context.Context, req *http.Request) (*http.Response, error) {
			return http.DefaultTransport.RoundTrip(req.WithContext(ctx))
		})
	}, profiles.WithRouteLayers(httplayer.HTTP{}))
	read := func(path string) (string, error) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
		rsp, err := r.Call(ctx, req)
		require.NoError(t, err)
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, rsp.Body.Close())
		return string(body), err
	}
	body, err := read("/pause")
	require.ErrorIs(t, err, layer.ErrIdleTimeout)
	require.Contains(t, body, "part ")
	require.Eventually(t, func() bool { // a loaded machine may pause a response
		body, err = read("/")
		return err == nil && body == strings.Repeat("part ", 5)
	}, 20*time.Second, time.Millisecond)
}
