package oteltower

import (
	"context"
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

// Metrics makes instruments that write to one meter provider. It implements
// httpclient.Metrics and is safe for concurrent use. The names are those of package
// instrument with the prefix "gotower.". The attributes are target, route and the label of
// the instrument. Histograms are in seconds.
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

// Layer returns the instruments of the layers of a target.
func (m *Metrics) Layer(target string) layer.Instruments { return m.Route("", target) }

// Route returns the instruments of the layers of a route. target is the target of the
// route, or "" if the route splits its requests over several targets.
func (m *Metrics) Route(route, target string) layer.Instruments {
	return instrument.Layer(bound{m, attributes(target, route)})
}

// Balance returns the instruments of the balancer of a target.
func (m *Metrics) Balance(target string) balance.Instruments {
	return instrument.Balance(bound{m, attributes(target, "")})
}

func attributes(target, route string) (all []attribute.KeyValue) {
	if target != "" {
		all = append(all, attribute.String("target", target))
	}
	if route != "" {
		all = append(all, attribute.String("route", route))
	}
	return all
}

// bound is an instrument.Provider. Each instrument that it makes has the attributes of one
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

func (b bound) Counter(name, help, _ string) metrics.Counter {
	c := must(b.meter.Float64Counter("gotower."+name, metric.WithDescription(help)))
	return newCounter(c, b.attrs)
}

func newCounter(to metric.Float64Counter, attrs []attribute.KeyValue) counter {
	return counter{to, attrs, []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}}
}

type counter struct {
	to    metric.Float64Counter
	attrs []attribute.KeyValue
	opts  []metric.AddOption // made once, because that allocates
}

// With returns a counter with additional attributes. labelValues are pairs of names and values.
// Layers and balancers call With when they are created.
func (c counter) With(labelValues ...string) metrics.Counter {
	return newCounter(c.to, with(c.attrs, labelValues))
}

func (c counter) Add(delta float64) { c.to.Add(context.Background(), delta, c.opts...) }

func with(attrs []attribute.KeyValue, labelValues []string) []attribute.KeyValue {
	attrs = attrs[:len(attrs):len(attrs)]
	for i := 0; i+1 < len(labelValues); i += 2 {
		attrs = append(attrs, attribute.String(labelValues[i], labelValues[i+1]))
	}
	return attrs
}

func (b bound) Histogram(name, help string) metrics.Histogram {
	h := must(b.meter.Float64Histogram("gotower."+name, metric.WithDescription(help), metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)))
	return histogram{h, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(b.attrs...))}}
}

type histogram struct {
	to   metric.Float64Histogram
	opts []metric.RecordOption
}

func (h histogram) With(...string) metrics.Histogram { return h }

// Observe records a duration in milliseconds.
func (h histogram) Observe(ms float64) { h.to.Record(context.Background(), ms/1000, h.opts...) }

// gaugeVec has the values of one gauge, one for each set of attributes. The values are read
// when metrics are collected, because OpenTelemetry has no gauge that can both be set and
// be added to.
type gaugeVec struct {
	mu     sync.Mutex
	values map[attribute.Distinct]*gaugeValue
}

type gaugeValue struct {
	bits atomic.Uint64 // the bits of a float64
	opt  metric.ObserveOption
}

func (v *gaugeVec) observe(_ context.Context, o metric.Float64Observer) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, value := range v.values {
		o.Observe(math.Float64frombits(value.bits.Load()), value.opt)
	}
	return nil
}

func (v *gaugeVec) value(attrs []attribute.KeyValue) *gaugeValue {
	set := attribute.NewSet(attrs...)
	v.mu.Lock()
	defer v.mu.Unlock()
	value := v.values[set.Equivalent()]
	if value == nil {
		value = &gaugeValue{opt: metric.WithAttributeSet(set)}
		v.values[set.Equivalent()] = value
	}
	return value
}

func (b bound) Gauge(name, help, label string) metrics.Gauge {
	b.mu.Lock()
	defer b.mu.Unlock()
	vec := b.gauges[name]
	if vec == nil {
		vec = &gaugeVec{values: make(map[attribute.Distinct]*gaugeValue)}
		must(b.meter.Float64ObservableGauge("gotower."+name, metric.WithDescription(help), metric.WithFloat64Callback(vec.observe)))
		b.gauges[name] = vec
	}
	g := gauge{vec: vec, attrs: b.attrs}
	if label == "" {
		g.value = vec.value(b.attrs)
	}
	return g
}

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

func (g gauge) Set(value float64) {
	if g.value != nil {
		g.value.bits.Store(math.Float64bits(value))
	}
}

func (g gauge) Add(delta float64) {
	if g.value == nil {
		return
	}
	for {
		old := g.value.bits.Load()
		if g.value.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+delta)) {
			return
		}
	}
}
