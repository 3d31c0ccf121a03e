package balance

import (
	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Instruments are the metrics of a balancer. The labels of the target are bound by the
// caller; the labels below are bound when the balancer is made. A nil metric is not
// recorded.
//
// Updates has the label "op": Reset once for each update with the whole set that changed
// anything, else Add for each added or changed endpoint and Remove for each removed one.
//
// The balancer adds 0 to each metric when it is made. So all series exist, and a metric
// without its label panics then. A later panic is ignored and the value is lost.
type Instruments struct {
	Endpoints        metrics.Gauge   // endpoints; label "endpoint_state": ready, pending
	Updates          metrics.Counter // label "op": Reset, Add, Remove
	Rejections       metrics.Counter // requests that no endpoint admitted
	Ejections        metrics.Counter // label "cause": consecutive, outlier
	EjectionsSkipped metrics.Counter // because of MinReady
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

// meters are the Instruments of one balancer with all labels bound.
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
// with the balancer's mutex held, often on a goroutine without a caller.
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

// updated counts a change as linkerd's proxy does. A replaced endpoint is not in removed.
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
