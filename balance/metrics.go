package balance

import (
	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Instruments has the metrics of a balancer. The caller binds the labels of the target.
// The balancer binds the labels below when it is created. A nil metric is not recorded.
//
// Updates has the label "op". An update with the whole set counts once as Reset if it
// changes anything. Any other update counts as Add for each added or changed endpoint,
// and as Remove for each removed one.
//
// When the balancer is created, it adds 0 to each metric. Therefore all series exist
// from the start, and a metric without the label panics then. Later panics are ignored.
type Instruments struct {
	Endpoints        metrics.Gauge   // endpoints; label "endpoint_state": ready, pending
	Updates          metrics.Counter // label "op": Reset, Add, Remove
	Rejections       metrics.Counter // requests that no endpoint admitted
	Ejections        metrics.Counter // label "cause": consecutive, outlier
	EjectionsSkipped metrics.Counter // ejections that MinReady prevented
}

func (i Instruments) orDiscard() Instruments {
	for _, c := range []*metrics.Counter{&i.Updates, &i.Rejections, &i.Ejections, &i.EjectionsSkipped} {
		if *c == nil {
			*c = discard.NewCounter()
		}
	}
	if i.Endpoints == nil {
		i.Endpoints = discard.NewGauge()
	}
	return i
}

// meters has the Instruments of one balancer with all labels bound.
type meters struct {
	ready, pending                          metrics.Gauge
	reset, added, removed                   metrics.Counter
	rejected, consecutive, outlier, skipped metrics.Counter
}

func (i Instruments) bind() meters {
	return meters{
		ready:       newGauge(i.Endpoints.With("endpoint_state", "ready")),
		pending:     newGauge(i.Endpoints.With("endpoint_state", "pending")),
		reset:       newCounter(i.Updates.With("op", "Reset")),
		added:       newCounter(i.Updates.With("op", "Add")),
		removed:     newCounter(i.Updates.With("op", "Remove")),
		rejected:    newCounter(i.Rejections),
		consecutive: newCounter(i.Ejections.With("cause", "consecutive")),
		outlier:     newCounter(i.Ejections.With("cause", "outlier")),
		skipped:     newCounter(i.EjectionsSkipped),
	}
}

// safeGauge and safeCounter ignore a panic of the metric, because metrics are written
// with the balancer's mutex held.
type (
	safeGauge   struct{ metrics.Gauge }
	safeCounter struct{ metrics.Counter }
)

func newGauge(g metrics.Gauge) safeGauge {
	g.Add(0)
	return safeGauge{g}
}

func newCounter(c metrics.Counter) safeCounter {
	c.Add(0)
	return safeCounter{c}
}

func (g safeGauge) Set(value float64) {
	defer func() { _ = recover() }()
	g.Gauge.Set(value)
}

func (c safeCounter) Add(delta float64) {
	defer func() { _ = recover() }()
	c.Counter.Add(delta)
}

// updated counts a change as linkerd's proxy does. removed must not include replaced endpoints.
func (m *meters) updated(reset bool, added, changed, removed int) {
	switch {
	case added+changed+removed == 0:
	case reset:
		m.reset.Add(1)
	default:
		m.added.Add(float64(added + changed))
		m.removed.Add(float64(removed))
	}
}
