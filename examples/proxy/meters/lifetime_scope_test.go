package meters_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

const (
	backendSent  = "outbound_http_route_backend_requests_total"
	backendEnds  = "outbound_http_route_backend_response_statuses_total"
	routeEnds    = "outbound_http_route_request_statuses_total"
	routeHelped  = "outbound_http_route_retry_successes_total"
	everyBackend = "outbound_http_route_backend_"
)

// total is the sum of the series of a name.
func total(t *testing.T, m *meters.Meters, name string) (sum int) {
	t.Helper()
	for _, line := range lines(t, m, name+"{") {
		n, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1:])
		require.NoError(t, err)
		sum += n
	}
	return sum
}

func retrying(r *profiles.Route) { r.Retryable = true }

func tenASecond() *profiles.RetryBudget {
	return &profiles.RetryBudget{MinPerSecond: 10, TTL: 5 * time.Second}
}

// A request by the profile of before may come by a route and to a backend that
// the new one has not. It is counted, and does not bring them back for good.
func TestGoneBackendsGo(t *testing.T) {
	for name, next := range map[string]*profiles.Profile{
		"route and backend": {Name: named},
		"route":             {Name: named, Targets: []profiles.Target{{Authority: "web-v2.shop.svc.cluster.local:80", Weight: 1}}},
		"backend":           {Name: named, Routes: []profiles.Route{routed("b")}},
		"without weight": {Name: named, Routes: []profiles.Route{routed("b")}, Targets: []profiles.Target{
			{Authority: "web-v2.shop.svc.cluster.local:80"}, {Authority: "v3.shop.svc:80", Weight: 1},
		}},
		"name": {Name: "new.shop.svc.cluster.local"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := meters.New(meters.Config{RetainIdle: time.Minute})
				f := follow(t.Context(), m)
				hold, n := make(chan struct{}), 0
				f.answer = func(*http.Request) (*http.Response, error) {
					if n++; n == 1 {
						<-hold
						return response(503, ""), nil
					}
					return response(200, ""), nil
				}
				f.say(&profiles.Profile{
					Name: named, RetryBudget: tenASecond(), Routes: []profiles.Route{routed("b", retrying)},
					Targets: []profiles.Target{{Authority: "web-v2.shop.svc.cluster.local:80", Weight: 1}},
				})
				go f.get(t, "/b")
				synctest.Wait()
				f.say(next)
				close(hold) // its retry goes by the profile it began with
				time.Sleep(time.Second)
				synctest.Wait()
				require.Equal(t, 2, n)
				require.Equal(t, 2, total(t, m, backendSent))
				time.Sleep(30 * time.Second)
				require.Len(t, lines(t, m, backendEnds), 2, "they can be scraped")
				time.Sleep(time.Hour)
				require.Empty(t, lines(t, m, everyBackend))
			})
		})
	}
}

// Those that a profile has stay, although idle: its split, its apex, the one
// place of all, and mirrors.
func TestBackendsOfTheProfileStay(t *testing.T) {
	const dst = "web.shop.svc:80"
	for authority, p := range map[string]*profiles.Profile{
		dst:              {},
		"v2.shop.svc:80": {Targets: []profiles.Target{{Authority: "v2.shop.svc:80", Weight: 1}}},
		"m.shop.svc:80":  {Routes: []profiles.Route{routed("a", func(r *profiles.Route) { r.Mirrors = []profiles.Mirror{{Authority: "m.shop.svc:80"}} })}},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := meters.New(meters.Config{RetainIdle: time.Minute})
			counts := m.Routes(t.Context(), meters.Outbound, dst)
			counts.OnProfile(dst, p)
			b := counts.Backend(authority, answering{call: func(*http.Request) (*http.Response, error) { return response(200, ""), nil }})
			rsp, err := b.Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			time.Sleep(time.Hour)
			require.Len(t, lines(t, m, backendEnds), 1, authority)
			same := *p
			counts.OnProfile(dst, &same)
			time.Sleep(time.Hour)
			require.Len(t, lines(t, m, backendEnds), 1, "%s: the same profile once more", authority)
			counts.OnProfile(dst, &profiles.Profile{Targets: []profiles.Target{{Authority: "other.shop.svc:80", Weight: 1}}})
			time.Sleep(time.Hour)
			require.Empty(t, lines(t, m, backendEnds), authority)
		})
	}
}

// Who goes on sending to what is gone has one series that goes on, too.
func TestLateSeriesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		const dst = "web.shop.svc:80"
		counts := m.Routes(t.Context(), meters.Outbound, dst)
		b := counts.Backend("v2.shop.svc:80", answering{call: func(*http.Request) (*http.Response, error) { return response(200, ""), nil }})
		counts.OnProfile(dst, &profiles.Profile{})
		ctx := layer.WithRoute(t.Context(), &layer.Route{Name: "gone"})
		for range 100 {
			rsp, err := b.Call(ctx, httptest.NewRequest(http.MethodGet, "/", nil))
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			time.Sleep(10 * time.Second)
		}
		time.Sleep(49 * time.Second) // nearly RetainIdle after the last
		found := lines(t, m, backendSent)
		require.Len(t, found, 1)
		require.True(t, strings.HasSuffix(found[0], "} 100"), found[0])
		time.Sleep(time.Minute)
		require.Empty(t, lines(t, m, everyBackend))
	})
}

// A stream that lasts longer than the profile it began by is counted at its end.
func TestLongStreamsAreCounted(t *testing.T) {
	for name, next := range map[string]*profiles.Profile{
		"the same":      {Name: named, RetryBudget: tenASecond(), Routes: []profiles.Route{routed("watch", retrying)}},
		"another":       {Name: named, Routes: []profiles.Route{routed("watch", retrying), routed("b")}},
		"without route": {Name: named, Targets: []profiles.Target{{Authority: "v3.shop.svc:80", Weight: 1}}},
		"another name":  {Name: "new.shop.svc.cluster.local"},
		"none":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := meters.New(meters.Config{RetainIdle: time.Minute})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f := follow(ctx, m)
				f.say(&profiles.Profile{Name: named, RetryBudget: tenASecond(), Routes: []profiles.Route{routed("watch", retrying)}})
				hold, n := make(chan struct{}), 0
				f.answer = func(*http.Request) (*http.Response, error) {
					if n++; n == 1 {
						return response(503, ""), nil
					}
					<-hold
					return response(200, "x"), nil
				}
				done := make(chan error, 1)
				go func() { done <- f.get(t, "/watch") }()
				time.Sleep(time.Second)
				synctest.Wait()
				require.Equal(t, 2, n, "it is sent again")
				if next == nil {
					cancel() // the destination itself is gone
				} else {
					f.say(next)
				}
				time.Sleep(time.Hour)
				close(hold)
				require.NoError(t, <-done)
				const ok = `error="",hostname="",http_status="200",` + webService
				assert.Contains(t, strings.Join(lines(t, m, routeEnds), "\n"), ok+","+ofRoute("profile", "watch")+"} 1")
				helped := lines(t, m, routeHelped)
				assert.Contains(t, strings.Join(helped, "\n"), ofRoute("profile", "watch")+"} 1")
				ends := strings.Join(lines(t, m, backendEnds), "\n")
				assert.Contains(t, ends, `error="",http_status="200",`+webService+","+ofRoute("profile", "watch")+"} 1")
				assert.NotEmpty(t, lines(t, m, "outbound_http_route_backend_response_duration_seconds_count"))
				time.Sleep(time.Hour)
				if name == "without route" || name == "another name" || name == "none" {
					assert.Empty(t, append(lines(t, m, routeEnds), lines(t, m, everyBackend)...))
				}
			})
		})
	}
}
