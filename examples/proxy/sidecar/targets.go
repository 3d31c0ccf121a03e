package sidecar

import (
	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/balance"
)

// targetMeters are the metrics of the balancers, by linkerd's names.
type targetMeters struct {
	endpoints *prometheus.GaugeVec
	updates   *prometheus.CounterVec
}

func newTargetMeters() *targetMeters {
	return &targetMeters{
		endpoints: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outbound_http_balancer_endpoints", Help: "Endpoints of a target.",
		}, []string{"dst", "endpoint_state"}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outbound_http_balancer_p2c_updates_total", Help: "News of a target's endpoints: Reset for all of them, else for each.",
		}, []string{"dst", "op"}),
	}
}

func (t *targetMeters) register(to *prometheus.Registry) { to.MustRegister(t.endpoints, t.updates) }

func (t *targetMeters) drop(target string) {
	t.endpoints.DeletePartialMatch(prometheus.Labels{"dst": target})
	t.updates.DeletePartialMatch(prometheus.Labels{"dst": target})
}

func (t *targetMeters) bind(target string) balance.Instruments {
	dst := prometheus.Labels{"dst": target}
	return balance.Instruments{
		Endpoints: gauges{t.endpoints.MustCurryWith(dst)},
		Updates:   counters{t.updates.MustCurryWith(dst)},
	}
}

// gauges and counters have one label that is not bound yet.
type gauges struct{ *prometheus.GaugeVec }

func (g gauges) With(label ...string) metrics.Gauge { return gauge{g.WithLabelValues(label[1])} }
func (gauges) Set(float64)                          {}
func (gauges) Add(float64)                          {}

type counters struct{ *prometheus.CounterVec }

func (c counters) With(label ...string) metrics.Counter { return counter{c.WithLabelValues(label[1])} }
func (counters) Add(float64)                            {}
