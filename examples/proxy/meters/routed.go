package meters

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
)

// routed is one route, for as long as the profiles of one name contain it.
type routed struct {
	meters *Meters
	over   context.CancelFunc
	scope  *scope
	labels Labels

	bound    atomic.Pointer[routeSeries]
	measured func() (requests, tries layer.Instruments)
}

// routeSeries are outbound_http_route_* of one route, for a scope.
type routeSeries struct {
	*scope
	*streams
	retries func() retries // binds at the first call
}

// newRouted binds nothing yet, because most destinations have no request by the default
// route before their first profile.
func (r *Routes) newRouted(name string, rt map[string]string) *routed {
	ctx, over := context.WithCancel(r.ctx)
	dst := r.dst
	return &routed{
		meters: r.meters, over: over, scope: r.meters.scope(ctx),
		labels: r.meters.meta("parent", dst).With(routeMeta(name)).With(Labels{"hostname": ""}), // unless hostnames are enabled
		measured: sync.OnceValues(func() (requests, tries layer.Instruments) {
			return r.meters.Route(ctx, r.direction, dst, name, rt)
		}),
	}
}

// now returns the series that are shown now. Concurrent calls bind the same ones.
func (r *routed) now() *routeSeries {
	if s := r.bound.Load(); s != nil && s.holds() {
		return s
	}
	t, f := r.scope, r.meters.httpRoutes
	if !t.holds() {
		t = r.meters.lateScope()
	}
	s := &routeSeries{
		scope: t, streams: newStreams(f.requests, t.seriesLease, r.labels),
		retries: sync.OnceValue(func() retries { return f.retries.bind(t.seriesLease, r.labels) }),
	}
	r.bound.Store(s)
	return s
}

func (r *routed) current() *streams { return r.now().streams }

// httpRouteFamilies are outbound_http_route_*.
type httpRouteFamilies struct {
	requests, responses streamFamilies // of routes, and of their backends
	sent                *family[prometheus.Counter]
	retries             retryFamilies
}

func (m *Meters) httpRouteFamilies() httpRouteFamilies {
	const name, backend = "outbound_http_route_", "outbound_http_route_backend_"
	return httpRouteFamilies{
		requests: streamFamilies{
			statuses: m.counters(name+"request_statuses_total", "Completed request-response streams."),
			durations: m.histograms(name+"request_duration_seconds",
				"The time between request initialization and response completion.", 0.05, 0.5, 1, 10),
		},
		sent: m.counters(backend+"requests_total", "The total number of requests dispatched."),
		responses: streamFamilies{
			statuses: m.counters(backend+"response_statuses_total", "Completed responses."),
			durations: m.histograms(backend+"response_duration_seconds",
				"The time between request dispatch and response completion.", 0.025, 0.05, 0.1, 0.25, 0.5, 1, 10),
		},
		retries: m.retryFamilies(name + "retry_"),
	}
}
