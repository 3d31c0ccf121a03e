// Package promtower measures layers and balancers with Prometheus:
//
//	m := promtower.New(prometheus.DefaultRegisterer)
//	web := httpclient.New(ctx, "web.default:80", httpclient.WithMetrics(m))
//
// Metrics are named as in package instrument, with the prefix gotower_. The labels are target,
// route and the instrument's own. Counter names end in _total, and histogram names in _seconds.
// The file grafana.json is a dashboard for them.
//
// go.mod requires a low version of client_golang, so that this module does not raise the version
// for programs that import only its other packages.
package promtower

import (
	"sync"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/instrument"
	"github.com/gotower/gotower/layer"
)

// Metrics makes instruments that write to one registry. It implements
// httpclient.Metrics. It is safe for concurrent use.
type Metrics struct {
	reg prometheus.Registerer

	mu         sync.Mutex
	counters   map[string]*prometheus.CounterVec
	gauges     map[string]*prometheus.GaugeVec
	histograms map[string]*prometheus.HistogramVec
}

// New returns Metrics that write to reg. A metric is registered at its first use. You should make
// one Metrics for each registry, because a registry does not allow a metric twice. New panics if
// reg is nil.
func New(reg prometheus.Registerer) *Metrics {
	if reg == nil {
		panic("promtower: nil Registerer")
	}
	return &Metrics{
		reg: reg, counters: make(map[string]*prometheus.CounterVec), gauges: make(map[string]*prometheus.GaugeVec),
		histograms: make(map[string]*prometheus.HistogramVec),
	}
}

// Layer returns the instruments for a target's layers.
func (m *Metrics) Layer(target string) layer.Instruments { return m.Route("", target) }

// Route returns the instruments for a route's layers. target is the route's target, or "" if the
// route splits its requests over several targets.
func (m *Metrics) Route(route, target string) layer.Instruments {
	// The values are in the order of the names that the function labels returns.
	return instrument.Layer(bound{m, []string{target, route}})
}

// Balance returns the instruments of a target's balancer.
func (m *Metrics) Balance(target string) balance.Instruments {
	// A balancer belongs to a target and to no route.
	return instrument.Balance(bound{m, []string{target, ""}})
}

// Forget removes all series about target, from its layers, routes and balancer, for a target that is gone. Existing
// instruments no longer record; those made later start at 0. A Transport in httpclient calls Forget for the hosts that
// it removes.
func (m *Metrics) Forget(target string) {
	labels := prometheus.Labels{"target": target}
	// Other targets may be making their instruments at the same time.
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, vec := range m.counters {
		vec.DeletePartialMatch(labels)
	}
	for _, vec := range m.gauges {
		vec.DeletePartialMatch(labels)
	}
	for _, vec := range m.histograms {
		vec.DeletePartialMatch(labels)
	}
}

// buckets are the upper bounds in seconds for histograms, from 1 ms to 1 min.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} //nolint:gochecknoglobals // a constant

// bound is an instrument.Provider for one route and one target. Each instrument that it makes
// carries the labels target and route with these values.
type bound struct {
	*Metrics
	values []string
}

// labels returns the names of the labels of an instrument that varies in label, which may be "".
func labels(label string) []string {
	names := []string{"target", "route"}
	if label != "" {
		names = append(names, label)
	}
	return names
}

// once returns the vector with the given name in vectors. At the first use of a name, it
// calls mk to make the vector, registers the vector, and stores it in vectors.
func once[V prometheus.Collector](m *Metrics, vectors map[string]V, name string, mk func() V) V {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := vectors[name]
	// A registry rejects a second metric with the same name, so all targets share one vector.
	if !ok {
		v = mk()
		m.reg.MustRegister(v)
		vectors[name] = v
	}
	return v
}

// Counter implements instrument.Provider.
func (b bound) Counter(name, help, label string) metrics.Counter {
	vec := once(b.Metrics, b.counters, name, func() *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gotower", Name: name + "_total", Help: help}, labels(label))
	})
	// Without a label, the series exists from now on, with the value 0.
	if label == "" {
		return counter{Counter: vec.WithLabelValues(b.values...)}
	}
	// The slice is limited to its two values, so that append copies it: several labels share b.
	return counter{with: func(value string) prometheus.Counter { return vec.WithLabelValues(append(b.values[:2:2], value)...) }}
}

// Gauge implements instrument.Provider.
func (b bound) Gauge(name, help, label string) metrics.Gauge {
	vec := once(b.Metrics, b.gauges, name, func() *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "gotower", Name: name, Help: help}, labels(label))
	})
	if label == "" {
		return gauge{Gauge: vec.WithLabelValues(b.values...)}
	}
	return gauge{with: func(value string) prometheus.Gauge { return vec.WithLabelValues(append(b.values[:2:2], value)...) }}
}

// Histogram implements instrument.Provider. The unit in Prometheus is seconds.
func (b bound) Histogram(name, help string) metrics.Histogram {
	// Histograms have no label of their own.
	vec := once(b.Metrics, b.histograms, name, func() *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: "gotower", Name: name + "_seconds", Help: help, Buckets: buckets}, labels(""))
	})
	return histogram{vec.WithLabelValues(b.values...)}
}

// counter is a metrics.Counter that adds to a Prometheus counter. While its label, such as "op", is
// not chosen, the embedded Counter is nil, and Add does nothing. With chooses a value: it calls
// the function with, which returns the Counter for it.
type counter struct {
	prometheus.Counter
	with func(value string) prometheus.Counter
}

// With returns the counter for one value of the label. Layers and balancers call With when
// they are created. labelValues are the label's name and its value.
func (c counter) With(labelValues ...string) metrics.Counter {
	// The field with is nil if the counter has no label or its value is chosen.
	if c.with == nil || len(labelValues) != 2 {
		return c
	}
	return counter{Counter: c.with(labelValues[1])}
}

// Add adds delta. If the label is not chosen, it does nothing: call With first.
func (c counter) Add(delta float64) {
	// Without this check, a call before With would panic.
	if c.Counter != nil {
		c.Counter.Add(delta)
	}
}

// gauge is a metrics.Gauge that sets a Prometheus gauge. It uses its fields as counter does.
type gauge struct {
	prometheus.Gauge
	with func(value string) prometheus.Gauge
}

// With returns the gauge for one value of the label.
func (g gauge) With(labelValues ...string) metrics.Gauge {
	if g.with == nil || len(labelValues) != 2 {
		return g
	}
	return gauge{Gauge: g.with(labelValues[1])}
}

// Set sets the value. If the label is not chosen, it does nothing.
func (g gauge) Set(value float64) {
	if g.Gauge != nil {
		g.Gauge.Set(value)
	}
}

// Add adds delta to the value. If the label is not chosen, it does nothing.
func (g gauge) Add(delta float64) {
	if g.Gauge != nil {
		g.Gauge.Add(delta)
	}
}

// histogram is a metrics.Histogram that records in a Prometheus histogram, in seconds.
type histogram struct{ prometheus.Observer }

// With returns h, because histograms have no label.
func (h histogram) With(...string) metrics.Histogram { return h }

// Observe records a duration in milliseconds.
func (h histogram) Observe(ms float64) { h.Observer.Observe(ms / 1000) }
