package meters_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/profiles"
)

const (
	webService = `parent_group="core",parent_kind="Service",parent_name="web",parent_namespace="shop",parent_port="80",parent_section_name=""`
	toV2       = `backend_group="core",backend_kind="Service",backend_name="web-v2",backend_namespace="shop",backend_port="80",backend_section_name=""`
)

func ofRoute(kind, name string) string {
	return `route_group="",route_kind="` + kind + `",route_name="` + name + `",route_namespace=""`
}

// profiledRouter is a router whose targets respond with answer.
type profiledRouter struct {
	*profiles.Router[*http.Request, *http.Response]
	source *profiles.Static
	meters *meters.Meters
	counts *meters.Routes // for the last profile
	answer func(*http.Request) (*http.Response, error)
}

const (
	asked = "10.0.0.1:80" // the address that the application connects to
	named = "web.shop.svc.cluster.local"
)

func follow(ctx context.Context, m *meters.Meters) *profiledRouter {
	first := m.Routes(asked, nil)
	f := &profiledRouter{source: new(profiles.Static), meters: m, counts: first}
	of := func(value any) *meters.Routes {
		if r, ok := value.(*meters.Routes); ok {
			return r
		}
		return first
	}
	f.Router = profiles.New(ctx, profiles.Config{Target: asked, Source: f.source, Metrics: func(route profiles.Route) (requests, attempts layer.Instruments) {
		return route.Value.(*meters.Route).Measured(route)
	}}, httplayer.HTTP{}, func(string) httplayer.Service { return nil },
		profiles.WithBackends(func(_ context.Context, b *profiles.Backend) httplayer.Service {
			return of(b.Value).Backend(b, answering{call: func(r *http.Request) (*http.Response, error) { return f.answer(r) }})
		}),
		profiles.WithRouteLayers(httplayer.HTTP{}),
		profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
			return route.Value.(*meters.Route).Layer(route, next)
		}),
		profiles.WithDefaultRoute(func(p *profiles.Profile, next httplayer.Service) httplayer.Service {
			return of(p.Value).Unrouted(next)
		}))
	return f
}

// send sends p to the router, with the Values that it needs.
func (f *profiledRouter) send(p *profiles.Profile) {
	name := asked
	if p.Name != "" {
		name = p.Name + ":80"
	}
	if !f.counts.Is(name, p.Policy) {
		f.counts = f.meters.Routes(name, p.Policy)
	}
	p.Value = f.counts
	f.counts.Attach(p.Routes)
	f.source.Set(asked, p)
}

func (f *profiledRouter) set(p *profiles.Profile) {
	f.send(p)
	synctest.Wait()
}

func (f *profiledRouter) get(t *testing.T, path string, header ...string) error {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "http://web"+path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rsp, err := f.Call(t.Context(), req)
	if err == nil {
		_, err = io.Copy(io.Discard, rsp.Body)
		assert.NoError(t, rsp.Body.Close())
	}
	return err
}

func routed(name string, change ...func(*profiles.Route)) profiles.Route {
	r := profiles.Route{Name: name, Match: profiles.Path("/" + name)}
	for _, f := range change {
		f(&r)
	}
	return r
}

func TestRoutesNewProfile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f := follow(ctx, m)
		f.answer = func(*http.Request) (*http.Response, error) {
			time.Sleep(200 * time.Millisecond)
			return response(200, "x"), nil
		}
		v2 := []profiles.Target{{Authority: "web-v2.shop.svc.cluster.local:80", Weight: 1}}
		f.set(&profiles.Profile{Name: named, Routes: []profiles.Route{routed("a"), routed("b")}, Targets: v2})
		for path, n := range map[string]int{"/a": 2, "/b": 1, "/": 3} {
			for range n {
				require.NoError(t, f.get(t, path))
			}
		}
		const statuses, sent = "outbound_http_route_request_statuses_total", "outbound_http_route_backend_requests_total"
		ok := `{error="",hostname="",http_status="200",` + webService + `,`
		require.ElementsMatch(t, []string{
			statuses + ok + ofRoute("profile", "a") + `} 2`, statuses + ok + ofRoute("profile", "b") + `} 1`,
			statuses + ok + ofRoute("default", "default") + `} 3`,
		}, lines(t, m, statuses))
		labels := `{` + toV2 + `,` + webService + `,`
		require.ElementsMatch(t, []string{
			sent + labels + ofRoute("profile", "a") + `} 2`, sent + labels + ofRoute("profile", "b") + `} 1`,
			sent + labels + ofRoute("default", "default") + `} 3`,
		}, lines(t, m, sent))
		require.Contains(t, scrape(t, m), `outbound_http_route_backend_response_statuses_total{`+toV2+`,error="",http_status="200",`+
			webService+`,`+ofRoute("profile", "a")+`} 2`)
		a := `{hostname="",` + webService + `,` + ofRoute("profile", "a")
		for _, line := range []string{`,le="0.05"} 0`, `,le="0.5"} 2`, `,le="1"} 2`, `,le="10"} 2`, `,le="+Inf"} 2`} {
			require.Contains(t, scrape(t, m), "outbound_http_route_request_duration_seconds_bucket"+a+line+"\n")
		}
		took := lines(t, m, "outbound_http_route_backend_response_duration_seconds_bucket"+labels+ofRoute("profile", "a"))
		require.Len(t, took, 8)
		for i, le := range []string{"0.025", "0.05", "0.1", "0.25", "0.5", "1", "10", "+Inf"} {
			require.Contains(t, took[i], `le="`+le+`"}`)
		}
		require.Contains(t, scrape(t, m), `route_request_total{direction="outbound",dst="web.shop.svc.cluster.local:80",rt_route="a"} 2`)
		require.NotContains(t, scrape(t, m), asked, "no series has the address")

		// Remove route b, change a, and set another target.
		f.set(&profiles.Profile{Name: named, Routes: []profiles.Route{routed("a", func(r *profiles.Route) { r.Timeout = time.Hour })}})
		require.NoError(t, f.get(t, "/a"))
		require.NoError(t, f.get(t, "/b"))
		require.Len(t, lines(t, m, statuses), 3, "the last values are shown")
		require.Contains(t, scrape(t, m), statuses+ok+ofRoute("profile", "a")+`} 3`)
		require.Contains(t, scrape(t, m), statuses+ok+ofRoute("default", "default")+`} 4`)
		time.Sleep(50 * time.Second)
		require.NoError(t, f.get(t, "/a"))
		require.NoError(t, f.get(t, "/"))
		time.Sleep(50 * time.Second)
		for _, prefix := range []string{statuses, sent, "outbound_http_route_backend_response_statuses_total"} {
			require.Len(t, lines(t, m, prefix), 2, prefix)
		}
		require.NotContains(t, scrape(t, m), `_name="b"`)
		require.NotContains(t, scrape(t, m), `rt_route="b"`)
		require.NotContains(t, scrape(t, m), `backend_name="web-v2"`)

		// The same route under another name of the destination.
		f.set(&profiles.Profile{Name: "new.shop.svc.cluster.local", Routes: []profiles.Route{routed("a")}})
		require.NoError(t, f.get(t, "/a"))
		require.Contains(t, scrape(t, m), `route_request_total{direction="outbound",dst="new.shop.svc.cluster.local:80",rt_route="a"} 1`)
		time.Sleep(50 * time.Second)
		require.NoError(t, f.get(t, "/a"))
		time.Sleep(50 * time.Second)
		require.NotContains(t, scrape(t, m), `name="web"`)
		require.Len(t, lines(t, m, statuses), 1)

		time.Sleep(2 * time.Minute)
		require.Empty(t, lines(t, m, "outbound_http_route"))
		require.Empty(t, lines(t, m, "route_"))
	})
}

func TestRouteRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		f := follow(t.Context(), m)
		status := []int{}
		f.answer = func(*http.Request) (*http.Response, error) {
			next := status[0]
			status = status[1:]
			return response(next, ""), nil
		}
		retryable := func(r *profiles.Route) { r.Retry = &profiles.Retry{} }
		f.set(&profiles.Profile{
			Name: named, RetryBudget: &profiles.RetryBudget{MinPerSecond: 1, TTL: 5 * time.Second},
			Routes: []profiles.Route{routed("a", retryable), routed("twice", retryable, func(r *profiles.Route) { r.Retry.Max = 1 }), routed("b")},
		})
		const retry = "outbound_http_route_retry_"
		labels := func(name string) string { return `{hostname="",` + webService + `,` + ofRoute("profile", name) + `} ` }
		require.Len(t, lines(t, m, retry), 8, "retryable routes are shown from the beginning")
		for _, tt := range []struct {
			path     string
			statuses []int
		}{
			{"/a", []int{200}}, {"/a", []int{503, 503, 200}}, {"/twice", []int{503, 500}}, {"/twice", []int{503, 200}},
			{"/b", []int{503}}, {"/a", []int{503, 503}}, // the budget is used up
		} {
			status = tt.statuses
			require.NoError(t, f.get(t, tt.path))
			require.Empty(t, status)
		}
		require.ElementsMatch(t, []string{
			retry + "requests_total" + labels("a") + "3", retry + "requests_total" + labels("twice") + "2",
			retry + "successes_total" + labels("a") + "1", retry + "successes_total" + labels("twice") + "1",
			retry + "limit_exceeded_total" + labels("a") + "0", retry + "limit_exceeded_total" + labels("twice") + "1",
			retry + "overflow_total" + labels("a") + "1", retry + "overflow_total" + labels("twice") + "0",
		}, lines(t, m, retry))
		for name, n := range map[string]string{"a": "6", "twice": "4", "b": "1"} {
			found := lines(t, m, "outbound_http_route_backend_requests_total")
			require.Contains(t, strings.Join(found, "\n"), ofRoute("profile", name)+"} "+n)
		}
	})
}

// A retryable route without a name counts as the default route.
func TestRouteRetriesWithoutName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		f := follow(t.Context(), m)
		n := 0
		f.answer = func(*http.Request) (*http.Response, error) {
			if n++; n == 1 {
				return response(503, ""), nil
			}
			return response(200, ""), nil
		}
		f.set(&profiles.Profile{
			Name: named, RetryBudget: &profiles.RetryBudget{MinPerSecond: 10, TTL: 5 * time.Second},
			Routes: []profiles.Route{{Match: profiles.Path("/x"), Retry: &profiles.Retry{}}},
		})
		require.NoError(t, f.get(t, "/x"))
		labels := `{hostname="",` + webService + `,` + ofRoute("default", "default") + `} 1`
		require.Contains(t, lines(t, m, "outbound_http_route_retry_"), "outbound_http_route_retry_requests_total"+labels)
		require.Contains(t, lines(t, m, "outbound_http_route_retry_"), "outbound_http_route_retry_successes_total"+labels)
	})
}

// With HostnameLabels, the label hostname is the DNS name in a request. Names beyond the limit
// share the series without one.
func TestRouteHostnames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := meters.New(meters.Config{HostnameLabels: true})
		f := follow(ctx, m)
		f.answer = func(*http.Request) (*http.Response, error) { return response(200, ""), nil }
		f.set(&profiles.Profile{Name: named, Routes: []profiles.Route{{Match: profiles.Path("/.*")}}})
		call := func(host string) {
			req := httptest.NewRequest(http.MethodGet, "http://web/", nil)
			req.Host = host
			rsp, err := f.Call(ctx, req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, rsp.Body)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		for _, host := range []string{"Web.test", "web.test.:80", "api.test", "10.0.0.1:80", "[::1]:80", ""} {
			call(host)
		}
		count := func(host string) string {
			return `outbound_http_route_request_statuses_total{error="",hostname="` + host + `",http_status="200",` + webService + `,` + ofRoute("default", "default") + `} `
		}
		all := lines(t, m, "outbound_http_route_request_statuses_total")
		for host, want := range map[string]string{"web.test": "2", "api.test": "1", "": "3"} {
			require.Contains(t, all, count(host)+want)
		}
		for i := range 2000 {
			call("host" + strconv.Itoa(i) + ".test")
		}
		require.Less(t, len(lines(t, m, "outbound_http_route_request_statuses_total")), 1100)
	})
}

// The label error has the same values as in linkerd's proxy.
func TestRouteErrors(t *testing.T) {
	cut := func(err error) *http.Response {
		rsp := response(200, "")
		rsp.Body, rsp.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("x"), broken{err})), -1
		return rsp
	}
	odd := cut(io.ErrUnexpectedEOF)
	odd.StatusCode = 0
	grpc := []string{"Content-Type", "application/grpc"}
	peer := &layer.Error{Layer: "endpoint", Endpoint: "10.0.0.2:80", Err: syscall.ECONNRESET}
	connecting := &layer.Error{Layer: "dial", Endpoint: "10.0.0.2:80", Kind: layer.ErrTimeout, Err: errOther}
	unreachable := &layer.Error{Layer: "endpoint", Endpoint: "10.0.0.2:80", Err: connecting}
	limited := &layer.Error{Layer: "timeout", Kind: layer.ErrTimeout, Err: unreachable}
	inTime := &layer.Error{Layer: "endpoint", Endpoint: "10.0.0.2:80", Err: &layer.Error{Layer: "timeout", Kind: layer.ErrTimeout}}
	for _, err := range []error{unreachable, &layer.Error{Layer: "retry", Reason: "after 2 tries", Err: unreachable}} {
		requireOutcome(t, `error="",hostname="",http_status="504"`, nil, err)
	}
	for _, err := range []error{limited, inTime} {
		requireOutcome(t, `error="REQUEST_TIMEOUT",hostname="",http_status=""`, nil, err)
	}
	for want, tt := range map[string]struct {
		rsp    *http.Response
		err    error
		header []string
	}{
		`error="",hostname="",http_status="404"`:                      {rsp: response(404, "")},
		`error="",hostname="",http_status="999"`:                      {rsp: response(999, "")},
		`error="",hostname="",http_status="unknown"`:                  {rsp: response(1_000_001, "")},
		`error="IO",hostname="",http_status="unknown"`:                {rsp: odd},
		`error="",hostname="",http_status="502"`:                      {err: peer},
		`error="",hostname="",http_status="200"`:                      {err: peer, header: grpc},
		`error="",hostname="",http_status="504"`:                      {err: &layer.Error{Layer: "endpoint", Err: context.DeadlineExceeded}},
		`error="FAIL_FAST",hostname="",http_status=""`:                {err: &layer.Error{Layer: "queue", Kind: layer.ErrFailFast, Err: peer}},
		`error="LOAD_SHED",hostname="",http_status=""`:                {err: &layer.Error{Layer: "queue", Kind: layer.ErrNotReady}},
		`error="REQUEST_TIMEOUT",hostname="",http_status=""`:          {err: &layer.Error{Layer: "timeout", Kind: layer.ErrTimeout}},
		`error="RESPONSE_HEADERS_TIMEOUT",hostname="",http_status=""`: {err: &layer.Error{Layer: "timeout", Kind: layer.ErrResponseHeaderTimeout}},
		`error="CANCEL",hostname="",http_status=""`:                   {err: context.Canceled},
		`error="UNKNOWN",hostname="",http_status=""`:                  {err: errOther},
		`error="",hostname="",http_status="451"`:                      {err: &httplayer.StatusError{Code: 451}},
		`error="IO",hostname="",http_status="200"`:                    {rsp: cut(io.ErrUnexpectedEOF)},
		`error="IDLE_TIMEOUT",hostname="",http_status="200"`:          {rsp: cut(&layer.Error{Kind: layer.ErrIdleTimeout})},
		`error="UNKNOWN",hostname="",http_status="200"`:               {rsp: cut(errOther)},
	} {
		requireOutcome(t, want, tt.rsp, tt.err, tt.header...)
	}
}

// requireOutcome requires that a request with this response or error has the labels.
func requireOutcome(t *testing.T, labels string, rsp *http.Response, err error, header ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		f := follow(t.Context(), m)
		f.answer = func(*http.Request) (*http.Response, error) { return rsp, err }
		_ = f.get(t, "/", header...)
		const statuses = "outbound_http_route_request_statuses_total"
		found := lines(t, m, statuses)
		require.Len(t, found, 1)
		require.Contains(t, found[0], statuses+"{"+labels+",")
		require.Contains(t, found[0], `parent_group="",parent_kind="default",parent_name="10.0.0.1",parent_namespace="",parent_port="80"`)
		require.True(t, strings.HasSuffix(found[0], "} 1"))
	})
}

// broken is a body that ends with an error.
type broken struct{ error }

func (b broken) Read([]byte) (int, error) { return 0, b.error }

// A body that is closed before its end counts as canceled.
func TestRouteBodyClosedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		f := follow(t.Context(), m)
		f.answer = func(*http.Request) (*http.Response, error) { return response(200, "hello"), nil }
		rsp, err := f.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil))
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Contains(t, scrape(t, m), `outbound_http_route_request_statuses_total{error="CANCEL",hostname="",http_status="200"`)
	})
}

// counted returns next with the layer of r for route.
func counted(r *meters.Routes, route profiles.Route, next httplayer.Service) httplayer.Service {
	routes := []profiles.Route{route}
	r.Attach(routes)
	return routes[0].Value.(*meters.Route).Layer(routes[0], next)
}

func backendAt(authority string) *profiles.Backend {
	return &profiles.Backend{Target: profiles.Target{Authority: authority}}
}

func TestRouteLayersConform(t *testing.T) {
	for name, wrap := range map[string]func(*meters.Routes, httplayer.Service) httplayer.Service{
		"route":    func(r *meters.Routes, next httplayer.Service) httplayer.Service { return counted(r, routed("a"), next) },
		"unrouted": (*meters.Routes).Unrouted,
		"backend": func(r *meters.Routes, next httplayer.Service) httplayer.Service {
			return r.Backend(backendAt("web:80"), next)
		},
		"retryable": func(r *meters.Routes, next httplayer.Service) httplayer.Service {
			return counted(r, routed("a", func(r *profiles.Route) { r.Retry = &profiles.Retry{} }), r.Backend(backendAt("web:80"), next))
		},
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
				New: func(_ context.Context, next httplayer.Service) httplayer.Service {
					return wrap(meters.New(meters.Config{}).Routes("web:80", nil), next)
				},
				Request:  func(int) *http.Request { return httptest.NewRequest(http.MethodPost, "http://web/", nil) },
				Response: func(int) *http.Response { return &http.Response{StatusCode: 200, ContentLength: -1} },
			})
		})
	}
}

func BenchmarkRoutes(b *testing.B) {
	m := meters.New(meters.Config{})
	rsp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
	next := answering{call: func(*http.Request) (*http.Response, error) { return rsp, nil }}
	counts := m.Routes("web.shop.svc.cluster.local:80", nil)
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	for name, svc := range map[string]httplayer.Service{
		"bare": next, "route": counts.Unrouted(next), "backend": counts.Backend(backendAt("web:80"), next),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(b.Context(), req)
			}
		})
	}
	two := []profiles.Route{routed("a"), routed("b")}
	counts.Attach(two)
	b.Run("backend of two routes", func(b *testing.B) {
		svc := counts.Backend(backendAt("web:80"), next)
		var ctxs []context.Context
		for _, route := range two {
			ctxs = append(ctxs, layer.WithRoute(b.Context(), &layer.Route{Name: route.Name, Value: route.Value}))
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			_, _ = svc.Call(ctxs[i&1], req)
		}
	})
}

// Each request counts once while the profile changes.
func TestRoutesUnderChanges(t *testing.T) {
	const clients, each = 8, 300
	m := meters.New(meters.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := follow(ctx, m)
	f.answer = func(*http.Request) (*http.Response, error) { return response(200, "x"), nil }
	change := func(i int) {
		f.send(&profiles.Profile{
			Name:    named,
			Routes:  []profiles.Route{routed("a"), routed("b" + strings.Repeat("b", i%3)), routed("c", func(r *profiles.Route) { r.Timeout = time.Hour + time.Duration(i) })},
			Targets: []profiles.Target{{Authority: "v" + strings.Repeat("2", 1+i%2) + ".shop.svc:80", Weight: 1}},
		})
	}
	change(0)
	require.Eventually(t, func() bool { return f.Profile().Name == named }, 20*time.Second, time.Millisecond)
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			for n := range each {
				path := []string{"/a", "/b", "/bb", "/c", "/"}[(i+n)%5]
				assert.NoError(t, f.get(t, path))
				if i == 0 {
					change(n)
				}
				if i == 1 && n%10 == 0 {
					_ = scrape(t, m)
				}
			}
		})
	}
	group.Wait()
	for _, name := range []string{
		"outbound_http_route_request_statuses_total", "outbound_http_route_request_duration_seconds_count",
		"outbound_http_route_backend_requests_total", "outbound_http_route_backend_response_statuses_total",
	} {
		sum := 0
		for _, line := range lines(t, m, name) {
			_, count, _ := strings.Cut(line, "} ")
			n, err := strconv.Atoi(count)
			require.NoError(t, err)
			sum += n
		}
		assert.Equal(t, clients*each, sum, name)
	}
}

// unavailable is a target without endpoints.
type unavailable struct{}

func (unavailable) Ready(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (unavailable) Call(context.Context, *http.Request) (*http.Response, error) {
	return nil, &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "no endpoints"}
}
func (unavailable) Describe() layer.Node { return layer.Node{Name: "unavailable"} }

// A route's timeout that expires in a queue counts as error="timeout". Later failures do not.
func TestRouteTimeoutInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		queue := httplayer.NewStack().Queue(10, time.Hour).Service(unavailable{})
		f := follow(t.Context(), m)
		f.answer = func(r *http.Request) (*http.Response, error) { return queue.Call(r.Context(), r) }
		f.set(&profiles.Profile{Name: named, Routes: []profiles.Route{
			routed("a", func(r *profiles.Route) { r.Timeout = time.Second }),
		}})
		err := f.get(t, "/a")
		require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		require.ErrorIs(t, err, layer.ErrNotReady, "it is also a rejection")
		const of = `direction="outbound",dst="web.shop.svc.cluster.local:80"`
		late := `route_response_total{classification="failure",` + of + `,error="timeout",rt_route="a"} 1`
		require.Contains(t, lines(t, m, `route_response_total{`), late)
		f.answer = func(*http.Request) (*http.Response, error) { return response(http.StatusInternalServerError, ""), nil }
		require.NoError(t, f.get(t, "/a"))
		require.ElementsMatch(t, []string{
			late,
			`route_response_total{classification="failure",` + of + `,rt_route="a"} 1`,
		}, lines(t, m, `route_response_total{`))
		require.Equal(t, []string{`route_request_total{` + of + `,rt_route="a"} 2`}, lines(t, m, `route_request_total{`))
	})
}
