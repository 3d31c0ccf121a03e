package sidecar

import (
	"context"
	"sync"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// meters are the proxy's metrics, by linkerd's names.
type meters struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	responses *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	inFlight  *prometheus.GaugeVec
	latency   *prometheus.HistogramVec
	routes    *routeMeters
	targets   *targetMeters

	mu    sync.Mutex
	users map[any]int // endpoints and routes that write to a series, or did lately
}

func newMeters() *meters {
	labels := []string{"direction", "authority", "target_addr"}
	m := &meters{
		registry: prometheus.NewRegistry(),
		routes:   newRouteMeters(),
		targets:  newTargetMeters(),
		users:    map[any]int{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "request_total", Help: "Requests sent to an endpoint.",
		}, labels),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "response_total", Help: "Responses of an endpoint that ended.",
		}, append(labels[:3:3], "classification")),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refusal_total", Help: "Requests that an endpoint refused, untouched.",
		}, labels),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "requests_in_flight", Help: "Requests of an endpoint that have not ended.",
		}, labels),
		//nolint:promlinter // the name is linkerd's
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "response_latency_ms", Help: "Milliseconds from a request to the end of its response.",
			Buckets: latencyBuckets(),
		}, labels),
	}
	m.routes.register(m.registry)
	m.targets.register(m.registry)
	m.registry.MustRegister(m.requests, m.responses, m.refusals, m.inFlight, m.latency,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// latencyBuckets are linkerd's.
func latencyBuckets() []float64 {
	return []float64{
		1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500,
		1000, 2000, 3000, 4000, 5000, 10_000, 20_000, 30_000, 40_000, 50_000,
	}
}

// endpoint binds the instruments of one endpoint. Its series are dropped a
// while after ctx ended, unless the endpoint is back by then.
func (m *meters) endpoint(ctx context.Context, t discover.Target) layer.Instruments {
	type key struct{ authority, addr string }
	k := key{t.Name, t.Endpoint.Addr.String()}
	labels := prometheus.Labels{"direction": "outbound", "authority": k.authority, "target_addr": k.addr}
	m.hold(ctx, k, func() {
		m.requests.Delete(labels)
		m.refusals.Delete(labels)
		m.inFlight.Delete(labels)
		m.latency.Delete(labels)
		m.responses.DeletePartialMatch(labels)
	})
	responses := m.responses.MustCurryWith(labels)
	return layer.Instruments{
		Requests:  counter{m.requests.With(labels)},
		Refusals:  counter{m.refusals.With(labels)},
		Responses: classes{responses},
		InFlight:  gauge{m.inFlight.With(labels)},
		Latency:   histogram{m.latency.With(labels)},
	}
}

// route binds the instruments of one route. Its series are dropped a while
// after ctx ended, unless the target is back by then.
func (m *meters) route(ctx context.Context, target string, route profiles.Route) (requests, tries layer.Instruments) {
	type key struct{ dst, route string }
	labels := prometheus.Labels{"direction": "outbound", "dst": target, "rt_route": route.Name}
	m.hold(ctx, key{target, route.Name}, func() { m.routes.drop(labels) })
	return m.routes.bind(labels)
}

// balancer binds the instruments of one target's balancer, as endpoint does.
func (m *meters) balancer(ctx context.Context, target string) balance.Instruments {
	type key struct{ balanced string }
	m.hold(ctx, key{target}, func() { m.targets.drop(target) })
	return m.targets.bind(target)
}

// retainIdle is how long the series of what is gone are shown, so that a scrape
// sees their last values: linkerd's METRICS_RETAIN_IDLE.
const retainIdle = 10 * time.Minute

// hold calls drop when nobody has used the series of key for retainIdle. It is
// in use until ctx ends.
func (m *meters) hold(ctx context.Context, key any, drop func()) {
	m.mu.Lock()
	m.users[key]++
	m.mu.Unlock()
	letGo := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.users[key]--; m.users[key] == 0 {
			delete(m.users, key)
			drop()
		}
	}
	context.AfterFunc(ctx, func() { time.AfterFunc(retainIdle, letGo) })
}

// counter, gauge and histogram are Prometheus' instruments as go-kit's. Their
// labels are bound already; go-kit's own adapter would look them up each time.
type counter struct{ prometheus.Counter }

func (c counter) With(...string) metrics.Counter { return c }

type gauge struct{ prometheus.Gauge }

func (g gauge) With(...string) metrics.Gauge { return g }

type histogram struct{ prometheus.Observer }

func (h histogram) With(...string) metrics.Histogram { return h }

// classes is linkerd's response_total: a request that told nothing of the
// endpoint, because its caller cancelled, is not held against it.
type classes struct{ *prometheus.CounterVec }

func (c classes) With(label ...string) metrics.Counter {
	switch label[1] {
	case layer.Success.String(), layer.Ignorable.String():
		return counter{c.WithLabelValues("success")}
	}
	return counter{c.WithLabelValues("failure")}
}

func (c classes) Add(float64) {} // it has no series without a class
