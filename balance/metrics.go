package balance

import (
	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Instruments holds a balancer's metrics. The caller binds the labels that identify the target.
// [New] binds the remaining labels, which are listed at the fields. A nil metric is not recorded.
//
// Updates needs the label "op". An update with the whole set counts as one Reset, or not at all if
// it changes nothing. Any other update counts one Add for each added or changed endpoint, and one
// Remove for each removed endpoint. An endpoint with a new ID at the same address counts as an Add
// and a Remove.
//
// New adds 0 to each metric, so that all series exist from the start. Therefore New panics if a
// metric lacks its label. After that, a metric must not panic or block, because it is written with
// a lock held.
type Instruments struct {
	Endpoints        metrics.Gauge   // number of endpoints; label "endpoint_state": ready, pending
	Updates          metrics.Counter // changes of the set; label "op": Reset, Add, Remove
	Rejections       metrics.Counter // requests that no endpoint admitted
	Ejections        metrics.Counter // ejections; label "cause": consecutive, outlier
	EjectionsSkipped metrics.Counter // ejections that MinReady prevented
}

// orDiscard returns i with metrics that discard their values in place of nil.
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

// meters holds one balancer's Instruments with all labels bound.
type meters struct {
	ready, pending                          metrics.Gauge
	reset, added, removed                   metrics.Counter
	rejected, consecutive, outlier, skipped metrics.Counter
}

// bind returns the metrics with all labels bound, and adds 0 to each, so that every series exists.
func (i Instruments) bind() meters {
	m := meters{
		ready:       i.Endpoints.With("endpoint_state", "ready"),
		pending:     i.Endpoints.With("endpoint_state", "pending"),
		reset:       i.Updates.With("op", "Reset"),
		added:       i.Updates.With("op", "Add"),
		removed:     i.Updates.With("op", "Remove"),
		rejected:    i.Rejections,
		consecutive: i.Ejections.With("cause", "consecutive"),
		outlier:     i.Ejections.With("cause", "outlier"),
		skipped:     i.EjectionsSkipped,
	}
	// Adding 0 makes each series exist from the start.
	for _, metric := range []interface{ Add(delta float64) }{
		m.ready, m.pending, m.reset, m.added, m.removed, m.rejected, m.consecutive, m.outlier, m.skipped,
	} {
		metric.Add(0)
	}
	return m
}

// updated counts the changed endpoints of one update. reset reports whether the update had the
// whole set.
func (m *meters) updated(reset bool, added, changed, removed int) {
	switch {
	case added+changed+removed == 0:
	// An update that lists all endpoints counts as one, and other updates by endpoint.
	case reset:
		m.reset.Add(1)
	default:
		m.added.Add(float64(added + changed))
		m.removed.Add(float64(removed))
	}
}
