package layer

import (
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Instruments are where layers write. Their labels are bound before they are
// given (With of go-kit's metrics), once for each endpoint or route and never
// for each request; the labels that are named here are bound when the layer is
// made. What is nil is not recorded.
//
// Whoever makes a metric declares its labels, those named here as well. With
// go-kit's Prometheus, Responses is
//
//	prometheus.NewCounterFrom(stdprometheus.CounterOpts{Name: "responses_total"}, []string{"class"})
//
// A layer adds 0 to its counters and gauges when it is made, and sets Budget and
// Limit to what they are. So every series that it may write is there from the
// start; and one whose labels were not declared panics there and then, as go-kit's
// Prometheus does when it is written, and not when there is the first failure.
// Histograms have no such beginning: try what those have that are new.
//
// The first group is written by [Metrics]; the rest by the layers named, when
// they are given instruments by [WithMetrics].
type Instruments struct {
	Requests      metrics.Counter   // admitted requests
	Rejections    metrics.Counter   // refused by inner, untouched
	Responses     metrics.Counter   // requests that ended; label "class": see Class
	InFlight      metrics.Gauge     // admitted and not ended
	TimeToHeaders metrics.Histogram // milliseconds from Call to the head of the response
	Latency       metrics.Histogram // milliseconds from Call to the end of the response

	LayerRejections metrics.Counter // refused by a layer itself; label "layer": limit, rate, shed, breaker …
	Timeouts        metrics.Counter // time limits that ran out; label "limit": total, head, idle, try, deadline

	QueueLength metrics.Gauge     // Queue: requests in line
	QueueWait   metrics.Histogram // Queue: milliseconds in line, of those who stood in it
	Limit       metrics.Gauge     // AdaptiveLimit: the limit as it is now

	Retries        metrics.Counter // Retry: tries after the first
	RetriesSkipped metrics.Counter // Retry: failures not tried again; label "reason": budget, body, tries, unsafe, pushback, deadline
	Budget         metrics.Gauge   // Retry, Hedge: retries that the budget allows; set when one is taken, and by requests within its ttl
	Hedges         metrics.Counter // Hedge: second requests; label "outcome": sent, won, skipped

	BreakerOpened   metrics.Counter // Breaker: times it opened
	BreakerOpen     metrics.Gauge   // Breaker: 1 while it is not closed, until it is no longer used and collected
	ConnectAttempts metrics.Counter // Reconnect: attempts; label "outcome": success, failure

	FaultsInjected metrics.Counter // Chaos: label "fault": delay, error
	Mirrored       metrics.Counter // Mirror: label "outcome": answered, failed, refused, full (not sent), skipped (not copied)
}

func (i Instruments) orDiscard() Instruments {
	for _, c := range []*metrics.Counter{
		&i.Requests, &i.Rejections, &i.Responses, &i.LayerRejections, &i.Timeouts, &i.Retries,
		&i.RetriesSkipped, &i.Hedges, &i.BreakerOpened, &i.ConnectAttempts, &i.FaultsInjected, &i.Mirrored,
	} {
		if *c == nil {
			*c = discard.NewCounter()
		}
	}
	for _, c := range []*metrics.Counter{
		&i.Responses, &i.LayerRejections, &i.Timeouts, &i.RetriesSkipped, &i.Hedges, &i.ConnectAttempts, &i.FaultsInjected, &i.Mirrored,
	} {
		*c = announcing{*c}
	}
	for _, g := range []*metrics.Gauge{&i.InFlight, &i.QueueLength, &i.Limit, &i.Budget, &i.BreakerOpen} {
		if *g == nil {
			*g = discard.NewGauge()
		}
	}
	for _, h := range []*metrics.Histogram{&i.TimeToHeaders, &i.Latency, &i.QueueWait} {
		if *h == nil {
			*h = discard.NewHistogram()
		}
	}
	return i
}

// announcing is a counter with a label to bind. It is gone once that is bound:
// what With returns was announced, and is the metric itself.
type announcing struct{ metrics.Counter }

func (a announcing) With(labels ...string) metrics.Counter {
	c := a.Counter.With(labels...)
	c.Add(0)
	return c
}

// tally counts an event twice: for Describe, and for an instrument.
type tally struct {
	n  atomic.Int64
	to metrics.Counter
}

func (t *tally) inc() {
	t.n.Add(1)
	t.to.Add(1)
}
