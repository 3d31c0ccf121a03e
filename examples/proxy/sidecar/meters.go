package sidecar

import (
	"context"
	"sync"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

// meters are the proxy's metrics, by linkerd's names.
type meters struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	responses *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	inFlight  *prometheus.GaugeVec
	latency   *prometheus.HistogramVec

	mu    sync.Mutex
	users map[seriesKey]int // endpoints that write to a series, or did lately
}

func newMeters() *meters {
	labels := []string{"direction", "authority", "target_addr"}
	m := &meters{
		registry: prometheus.NewRegistry(),
		users:    map[seriesKey]int{},
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
			Buckets: []float64{
				1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500,
				1000, 2000, 3000, 4000, 5000, 10_000, 20_000, 30_000, 40_000, 50_000,
			},
		}, labels),
	}
	m.registry.MustRegister(m.requests, m.responses, m.refusals, m.inFlight, m.latency,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// endpoint binds the instruments of one endpoint. Its series are dropped a
// while after ctx ended, unless the endpoint is back by then.
func (m *meters) endpoint(ctx context.Context, t discover.Target) layer.Instruments {
	k := seriesKey{t.Name, t.Endpoint.Addr.String()}
	labels := prometheus.Labels{"direction": "outbound", "authority": k.authority, "target_addr": k.addr}
	m.hold(k)
	context.AfterFunc(ctx, func() { m.letGo(k, labels) })
	responses := m.responses.MustCurryWith(labels)
	return layer.Instruments{
		Requests:  counter{m.requests.With(labels)},
		Refusals:  counter{m.refusals.With(labels)},
		Responses: classes{responses},
		InFlight:  gauge{m.inFlight.With(labels)},
		Latency:   histogram{m.latency.With(labels)},
	}
}

// retainIdle is how long the series of an endpoint that is gone are shown, so
// that a scrape sees its last values: linkerd's METRICS_RETAIN_IDLE.
const retainIdle = 10 * time.Minute

type seriesKey struct{ authority, addr string }

func (m *meters) hold(k seriesKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users[k]++
}

func (m *meters) letGo(k seriesKey, labels prometheus.Labels) {
	time.AfterFunc(retainIdle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.users[k]--; m.users[k] > 0 {
			return
		}
		delete(m.users, k)
		m.requests.Delete(labels)
		m.refusals.Delete(labels)
		m.inFlight.Delete(labels)
		m.latency.Delete(labels)
		m.responses.DeletePartialMatch(labels)
	})
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
