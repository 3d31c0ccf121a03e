package balance

import (
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"

	"github.com/gotower/gotower/layer"
)

// Instruments are where a balancer writes. The labels of the target are bound
// before they are given; those that are named here when the balancer is made,
// and none for each request. What is nil is not recorded.
//
// Of Updates the label "op" is Reset, once for each time that all endpoints were
// told, if that changed anything; else, for each endpoint, Add, also of one that
// is changed or replaced, or Remove.
//
// Whoever makes a metric declares the label that is named here. The balancer adds
// 0 to each when it is made: so all series are there from the start, and go-kit's
// Prometheus, which panics where a label is missing, does so in the goroutine that
// makes the balancer. A panic after that is ignored, and the value is lost.
type Instruments struct {
	Endpoints        metrics.Gauge   // endpoints; label "endpoint_state": ready, pending (which is all that are not)
	Updates          metrics.Counter // label "op": Reset, Add, Remove
	Rejections       metrics.Counter // requests that no endpoint took
	Ejections        metrics.Counter // endpoints taken out; label "cause": consecutive, outlier
	EjectionsSkipped metrics.Counter // endpoints that were not, because of the floor
	Readmissions     metrics.Counter // endpoints that came back before their time, because of the floor
}

func (i Instruments) orDiscard() Instruments {
	for _, c := range []*metrics.Counter{&i.Updates, &i.Rejections, &i.Ejections, &i.EjectionsSkipped, &i.Readmissions} {
		if *c == nil {
			*c = discard.NewCounter()
		}
	}
	if i.Endpoints == nil {
		i.Endpoints = discard.NewGauge()
	}
	return i
}

// meters are the Instruments of one balancer with all labels bound.
type meters struct {
	ready, pending       metrics.Gauge
	reset, added, gone   metrics.Counter
	refused              metrics.Counter
	consecutive, outlier metrics.Counter
	spared, recalled     metrics.Counter
}

func (i Instruments) bind() meters {
	m := meters{
		ready:       i.Endpoints.With("endpoint_state", "ready"),
		pending:     i.Endpoints.With("endpoint_state", "pending"),
		reset:       i.Updates.With("op", "Reset"),
		added:       i.Updates.With("op", "Add"),
		gone:        i.Updates.With("op", "Remove"),
		refused:     i.Rejections,
		consecutive: i.Ejections.With("cause", "consecutive"),
		outlier:     i.Ejections.With("cause", "outlier"),
		spared:      i.EjectionsSkipped,
		recalled:    i.Readmissions,
	}
	for _, g := range []metrics.Gauge{m.ready, m.pending} {
		g.Add(0)
	}
	for _, c := range []metrics.Counter{m.reset, m.added, m.gone, m.refused, m.consecutive, m.outlier, m.spared, m.recalled} {
		c.Add(0)
	}
	for _, g := range []*metrics.Gauge{&m.ready, &m.pending} {
		*g = safeGauge{*g}
	}
	for _, c := range []*metrics.Counter{
		&m.reset, &m.added, &m.gone, &m.refused, &m.consecutive, &m.outlier, &m.spared, &m.recalled,
	} {
		*c = safeCounter{*c}
	}
	return m
}

// safeGauge and safeCounter lose the value if the metric panics, because metrics are
// written with the balancer's mutex held, often in a goroutine without a caller.
type (
	safeGauge   struct{ metrics.Gauge }
	safeCounter struct{ metrics.Counter }
)

func (g safeGauge) Set(value float64) {
	defer func() { _ = recover() }()
	g.Gauge.Set(value)
}

func (c safeCounter) Add(delta float64) {
	defer func() { _ = recover() }()
	c.Counter.Add(delta)
}

// updated counts a change by the rules of linkerd's proxy: a message with all
// endpoints once, if it changed anything, any other for each endpoint. Of removed
// those are left out that were replaced.
func (m *meters) updated(reset bool, added, changed, removed int) {
	switch {
	case added+changed+removed == 0:
	case reset:
		m.reset.Add(1)
	default:
		m.added.Add(float64(added + changed))
		m.gone.Add(float64(removed))
	}
}

// Option sets how a [Balancer] works.
type Option[Rsp any] interface {
	apply(o *options[Rsp])
}

type options[Rsp any] struct {
	policy     Policy
	complete   layer.Completion[Rsp] // nil if a response is over when Call returns
	classify   layer.Classifier[Rsp] // nil: that of the endpoints
	retryAfter func(Rsp, error) (time.Duration, bool)
	random     func() uint64
	to         Instruments
}

func newOptions[Rsp any](opts []Option[Rsp]) options[Rsp] {
	var o options[Rsp]
	if layer.HasBody[Rsp]() {
		o.complete = layer.AtEnd[Rsp]()
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if err := o.policy.Validate(); err != nil {
		panic(err.Error())
	}
	o.policy = o.policy.orDefault()
	o.to = o.to.orDiscard()
	return o
}

type optionFunc[Rsp any] func(*options[Rsp])

func (f optionFunc[Rsp]) apply(o *options[Rsp]) { f(o) }

// WithPolicy sets the policy. [New] panics if it is not valid.
func WithPolicy[Rsp any](p Policy) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.policy = p })
}

// WithCompletion says where a response ends: until then it counts as in flight. The
// default is [layer.AtEnd].
func WithCompletion[Rsp any](c layer.Completion[Rsp]) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.complete = c })
}

// WithRand sets where random numbers come from, 64 bits at a time: for a
// simulation that shall be the same each time. It must be safe for concurrent
// use, as the balancer is. The default is that of math/rand/v2.
func WithRand[Rsp any](random func() uint64) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.random = random })
}

// WithMetrics sets where the balancer writes its metrics.
func WithMetrics[Rsp any](to Instruments) Option[Rsp] {
	return optionFunc[Rsp](func(o *options[Rsp]) { o.to = to })
}
