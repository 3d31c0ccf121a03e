package oteltower

import (
	"context"
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/instrument"
	"github.com/gotower/gotower/layer"
)

// Metrics makes instruments that write to one meter provider. It implements httpclient.Metrics
// and is safe for concurrent use. The names are those of package instrument with the prefix
// "gotower.". The attributes are target, route and the instrument's label. Histograms are in
// seconds.
type Metrics struct {
	meter metric.Meter

	mu     sync.Mutex
	gauges map[string]*gaugeVec
}

// NewMetrics returns Metrics that write to p. It panics if p is nil.
func NewMetrics(p metric.MeterProvider) *Metrics {
	if p == nil {
		panic("oteltower: nil MeterProvider")
	}
	return &Metrics{meter: p.Meter(scope), gauges: make(map[string]*gaugeVec)}
}

// Layer returns the instruments for a target's layers.
func (m *Metrics) Layer(target string) layer.Instruments { return m.Route("", target) }

// Route returns the instruments for a route's layers. target is the route's target, or "" if the
// route splits its requests over several targets.
func (m *Metrics) Route(route, target string) layer.Instruments {
	return instrument.Layer(bound{m, attributes(target, route)})
}

// Balance returns the instruments of a target's balancer.
func (m *Metrics) Balance(target string) balance.Instruments {
	return instrument.Balance(bound{m, attributes(target, "")})
}

// Forget removes the gauges of target, for a target that is gone. Those made later start at 0. OpenTelemetry's API
// cannot remove counters and histograms; the SDK limits how many there are (OTEL_GO_X_CARDINALITY_LIMIT), and a
// provider with delta temporality drops those without new values. A Transport in httpclient calls Forget for the hosts
// that it removes.
func (m *Metrics) Forget(target string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, vec := range m.gauges {
		vec.forget(target)
	}
}

// attributes returns the fixed attributes of an instrument.
// Empty values are left out, because attributes, unlike Prometheus labels, are optional.
func attributes(target, route string) (all []attribute.KeyValue) {
	if target != "" {
		all = append(all, attribute.String("target", target))
	}
	if route != "" {
		all = append(all, attribute.String("route", route))
	}
	return all
}

// bound is an instrument.Provider. Each instrument that it makes carries the attributes for one
// target and one route.
type bound struct {
	*Metrics
	attrs []attribute.KeyValue
}

// must returns v. It panics if err is not nil, because the only error is an invalid
// instrument name, a defect of package instrument.
func must[T any](v T, err error) T {
	if err != nil {
		panic("oteltower: " + err.Error())
	}
	return v
}

// Counter implements instrument.Provider. The label is not needed: With adds it as an attribute.
func (b bound) Counter(name, help, _ string) metrics.Counter {
	// OpenTelemetry returns the same instrument for equal arguments.
	c := must(b.meter.Float64Counter("gotower."+name, metric.WithDescription(help)))
	return newCounter(c, b.attrs)
}

// newCounter returns a counter that adds to inner with the attributes attrs.
func newCounter(inner metric.Float64Counter, attrs []attribute.KeyValue) counter {
	return counter{inner, attrs, []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}}
}

// counter is a metrics.Counter that adds to an OpenTelemetry counter.
type counter struct {
	inner metric.Float64Counter
	attrs []attribute.KeyValue
	opts  []metric.AddOption // made once, because that allocates
}

// With returns a counter with additional attributes. labelValues are pairs of names and values.
// Layers and balancers call With when they are created.
func (c counter) With(labelValues ...string) metrics.Counter {
	return newCounter(c.inner, with(c.attrs, labelValues))
}

func (c counter) Add(delta float64) { c.inner.Add(context.Background(), delta, c.opts...) }

// with returns attrs with the pairs of name and value in labelValues. It does not modify attrs.
func with(attrs []attribute.KeyValue, labelValues []string) []attribute.KeyValue {
	// With its capacity limited, append copies attrs, which other instruments share.
	attrs = attrs[:len(attrs):len(attrs)]
	// A name without a value at the end is ignored.
	for i := 0; i+1 < len(labelValues); i += 2 {
		attrs = append(attrs, attribute.String(labelValues[i], labelValues[i+1]))
	}
	return attrs
}

// Histogram implements instrument.Provider. The unit in OpenTelemetry is seconds.
func (b bound) Histogram(name, help string) metrics.Histogram {
	// The bounds are those of promtower, so that both work with the same dashboard.
	h := must(b.meter.Float64Histogram("gotower."+name, metric.WithDescription(help), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)))
	return histogram{h, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(b.attrs...))}}
}

// histogram is a metrics.Histogram that records in an OpenTelemetry histogram.
type histogram struct {
	inner metric.Float64Histogram
	opts  []metric.RecordOption
}

// With returns h, because histograms have no label.
func (h histogram) With(...string) metrics.Histogram { return h }

// Observe records a duration in milliseconds.
func (h histogram) Observe(ms float64) { h.inner.Record(context.Background(), ms/1000, h.opts...) }

// gaugeVec holds a gauge's values, one for each set of attributes. The values are read when
// metrics are collected, because OpenTelemetry has no gauge that can both be set and be added to.
type gaugeVec struct {
	mu     sync.Mutex
	values map[attribute.Distinct]*gaugeValue
}

// gaugeValue is the current value of a gauge with one set of attributes.
type gaugeValue struct {
	bits atomic.Uint64 // the bits of a float64
	opt  metric.ObserveOption

	target string // the attribute target, or ""
}

// observe reports all values. OpenTelemetry calls it when it collects.
func (v *gaugeVec) observe(_ context.Context, o metric.Float64Observer) error {
	// Values may be added or forgotten meanwhile.
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, value := range v.values {
		o.Observe(math.Float64frombits(value.bits.Load()), value.opt)
	}
	return nil
}

// forget removes the values with the attribute target.
func (v *gaugeVec) forget(target string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.values, func(_ attribute.Distinct, value *gaugeValue) bool { return value.target == target })
}

// value returns the value with the given attributes, which it makes if there is none.
func (v *gaugeVec) value(attrs []attribute.KeyValue) *gaugeValue {
	set := attribute.NewSet(attrs...)
	v.mu.Lock()
	defer v.mu.Unlock()
	value := v.values[set.Equivalent()]
	if value == nil {
		target, _ := set.Value("target")
		value = &gaugeValue{opt: metric.WithAttributeSet(set), target: target.AsString()}
		v.values[set.Equivalent()] = value
	}
	return value
}

// Gauge implements instrument.Provider. Gauges of all targets with the same name share one
// OpenTelemetry instrument.
func (b bound) Gauge(name, help, label string) metrics.Gauge {
	b.mu.Lock()
	defer b.mu.Unlock()
	vec := b.gauges[name]
	// The first gauge with this name registers the callback that reports those of all targets.
	if vec == nil {
		vec = &gaugeVec{values: make(map[attribute.Distinct]*gaugeValue)}
		must(b.meter.Float64ObservableGauge("gotower."+name, metric.WithDescription(help), metric.WithFloat64Callback(vec.observe)))
		b.gauges[name] = vec
	}
	g := gauge{vec: vec, attrs: b.attrs}
	// With a label, With makes the value, so that no value without the label is reported.
	if label == "" {
		g.value = vec.value(b.attrs)
	}
	return g
}

// gauge is a metrics.Gauge that stores its value in vec. OpenTelemetry reads it from there.
type gauge struct {
	vec   *gaugeVec
	attrs []attribute.KeyValue
	value *gaugeValue // nil until the label has a value
}

// With returns a gauge with additional attributes. labelValues are pairs of names and values.
// Layers and balancers call With when they are created.
func (g gauge) With(labelValues ...string) metrics.Gauge {
	attrs := with(g.attrs, labelValues)
	return gauge{vec: g.vec, attrs: attrs, value: g.vec.value(attrs)}
}

// Set sets the value. If the label has no value yet, it does nothing.
func (g gauge) Set(value float64) {
	if g.value != nil {
		g.value.bits.Store(math.Float64bits(value))
	}
}

// Add adds delta to the value.
func (g gauge) Add(delta float64) {
	if g.value == nil {
		return
	}
	// Repeated if another goroutine has changed the value between Load and CompareAndSwap.
	for {
		old := g.value.bits.Load()
		if g.value.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+delta)) {
			return
		}
	}
}
