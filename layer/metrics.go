package layer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
)

// Instruments are the metrics in which layers record their measurements. A nil instrument records
// nothing.
//
// When a layer is created, it binds the labels named in the field comments. Before that, the
// application must bind all other labels with With, once per endpoint or route. A metric must
// declare all its labels. For example, with go-kit's Prometheus package, Responses is
//
//	prometheus.NewCounterFrom(stdprometheus.CounterOpts{Name: "responses_total"}, []string{"class"})
//
// When a layer is created, it adds 0 to its counters and gauges, and sets the gauges Budget and
// Limit. Therefore every series exists from the start, and an undeclared label panics at once.
//
// The [Metrics] layer writes the fields from Requests to Latency. Each other field is written by
// the layers named in its comment, if [WithMetrics] is set.
type Instruments struct {
	Requests      metrics.Counter   // admitted requests
	Rejections    metrics.Counter   // requests that inner rejected
	Responses     metrics.Counter   // requests that ended; label "class": see Class
	InFlight      metrics.Gauge     // admitted requests that have not ended
	TimeToHeaders metrics.Histogram // milliseconds from Call to the response headers
	Latency       metrics.Histogram // milliseconds from Call to the end of the response

	LayerRejections metrics.Counter // rejected by a layer itself; label "layer": limit, rate, shed, breaker …
	Timeouts        metrics.Counter // expired time limits; label "limit": total, response_header, idle, attempt, deadline

	QueueLength metrics.Gauge     // Queue: waiting requests
	QueueWait   metrics.Histogram // Queue: milliseconds in the queue, for requests that waited
	Limit       metrics.Gauge     // AdaptiveLimit: the current limit

	Retries        metrics.Counter // Retry: attempts after the first
	RetriesSkipped metrics.Counter // Retry: failures not retried; label "reason": budget, body, attempts, unsafe, pushback, deadline
	Budget         metrics.Gauge   // Retry, Hedge: retries that the budget allows
	Hedges         metrics.Counter // Hedge: second requests; label "outcome": sent, won, skipped

	BreakerOpened   metrics.Counter // Breaker: number of times it opened
	BreakerOpen     metrics.Gauge   // Breaker: number of breakers that are not closed
	ConnectAttempts metrics.Counter // Reconnect: attempts; label "outcome": success, failure

	FaultsInjected metrics.Counter // FaultInjection: faults; label "fault": delay, error
	Mirrored       metrics.Counter // Mirror: requests; label "outcome": answered, failed, rejected, full (not sent), skipped (not copied)
}

// orDiscard returns i with instruments that discard their values in place of nil, so that layers need
// no check. Counters with a label become announcing.
func (i Instruments) orDiscard() Instruments {
	// First, nil counters are replaced. Then those with a label that a layer binds are wrapped.
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

// announcing wraps a counter whose label a layer binds with With. That also adds 0, so that metrics
// show the series before the first event.
type announcing struct{ metrics.Counter }

// With returns the counter with the labels, and adds 0, so that its series exists before the first event.
func (a announcing) With(labels ...string) metrics.Counter {
	c := a.Counter.With(labels...)
	c.Add(0)
	return c
}

// tally counts an event twice: in a number for Describe, and in an instrument.
type tally struct {
	n       atomic.Int64
	counter metrics.Counter
}

// inc counts one event.
func (t *tally) inc() {
	t.n.Add(1)
	t.counter.Add(1)
}

// Metrics counts requests and their outcomes, and measures how long requests take.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: a request canceled by the caller counts as [Ignorable]. A request that exceeded a
// deadline gets the class that the [Classifier] returns.
//
// Body: a request ends when its response ends, see [WithCompletion]. If a body is closed early,
// its response is classified by the headers.
//
// Errors: passed unchanged. Rejections by inner are counted separately, without a class.
//
// Cost: the instruments' updates, three clock readings and one allocation.
func Metrics[Req, Rsp any](i Instruments, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	o.instruments = i.orDiscard()
	ended := new([classes]metrics.Counter)
	for c := range ended {
		ended[c] = o.instruments.Responses.With("class", Class(c).String())
	}
	// Adding 0 makes the series exist from the start, see [Instruments].
	o.instruments.Requests.Add(0)
	o.instruments.Rejections.Add(0)
	o.instruments.InFlight.Add(0)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &measured[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, ended: ended}
	}
}

// Metrics adds a [Metrics] layer, which counts requests and measures their duration.
func (s Stack[Req, Rsp]) Metrics(i Instruments) Stack[Req, Rsp] {
	return s.With("metrics", Metrics[Req](i, s.opts...))
}

// measured is the service of [Metrics].
type measured[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	ended *[classes]metrics.Counter
}

// Call sends req and records it: as rejected, as failed, or until its response has ended.
func (m *measured[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	s := &sample[Req, Rsp]{measured: m, ctx: ctx, start: time.Now()}
	m.instruments.InFlight.Add(1)
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			defer s.done(Failure)
			defer m.instruments.Requests.Add(1)
			m.drop(rsp, err)
		}
	}()
	rsp, err = m.Service.Call(ctx, req)
	switch {
	case err == nil:
		s.rsp = rsp
		m.instruments.TimeToHeaders.Observe(milliseconds(time.Since(s.start)))
		rsp = m.complete(ctx, rsp, s)
		returned = true
		m.instruments.Requests.Add(1)
	case errors.Is(err, ErrNotReady):
		returned = true // not an admitted request, so only the rejection is counted
		m.instruments.Rejections.Add(1)
		m.instruments.InFlight.Add(-1)
	default:
		class := m.classOf(ctx, Outcome[Rsp]{Err: err}) // may panic
		returned = true
		m.instruments.Requests.Add(1)
		s.done(class)
	}
	return rsp, err
}

// Describe returns a node without state, because the metrics system has the values.
func (m *measured[Req, Rsp]) Describe() Node { return Node{Name: "metrics"} }

// sample is the [Observer] of one request. It records the request's class and duration when its
// response ends.
type sample[Req, Rsp any] struct {
	*measured[Req, Rsp]
	ctx      context.Context //nolint:containedctx // the request's; distinguishes a canceled caller from a failed service
	rsp      Rsp
	start    time.Time
	finished atomic.Bool // done was called
}

// Data implements [Observer] and does nothing.
func (s *sample[Req, Rsp]) Data(int) {}

// End implements [Observer]. It classifies the outcome, which err completes.
func (s *sample[Req, Rsp]) End(err error) {
	class := Failure
	// A panic of the classifier must not keep the request in flight.
	defer func() { s.done(class) }()
	class = s.classOf(s.ctx, Outcome[Rsp]{Response: s.rsp, Err: err, Ended: err == nil})
}

// done records that the request has ended with an outcome of class c. Only the first call counts,
// because a response may end before a panic ends the Call.
func (s *sample[Req, Rsp]) done(c Class) {
	if s.finished.Swap(true) {
		return
	}
	defer s.instruments.InFlight.Add(-1) // last, because the request must not end before it is counted
	defer s.ended[c].Add(1)
	s.instruments.Latency.Observe(milliseconds(time.Since(s.start)))
}

// milliseconds returns d as a number of milliseconds, the unit of the histograms.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
