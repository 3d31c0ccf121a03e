package meters

import (
	"context"
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
	"github.com/go-kit/kit/metrics/multi"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
)

// routeFamilies are the metrics of the routes of profiles: route_* counts requests,
// route_actual_* attempts.
type routeFamilies struct {
	requests, responses *family[prometheus.Counter]
	tries, answers      *family[prometheus.Counter] // answers are those to tries
	latency             *family[prometheus.Histogram]
	retryable, expired  *family[prometheus.Counter]
}

func (m *Meters) routeFamilies() routeFamilies {
	return routeFamilies{
		requests:  m.counters("route_request_total", "Total count of HTTP requests."),
		responses: m.counters("route_response_total", "Total count of HTTP responses."),
		tries:     m.counters("route_actual_request_total", "Total count of HTTP requests, each try of one."),
		answers:   m.counters("route_actual_response_total", "Total count of HTTP responses to tries."),
		retryable: m.counters("route_retryable_total", "Total count of retryable HTTP responses."),
		expired:   m.counters("route_timeout_total", "Time limits of a route that ran out."),
		latency: m.histograms("route_response_latency_ms",
			"Elapsed times between a request's headers being received and its response stream completing", latencyBuckets()...),
	}
}

// Route returns the instruments of a profile's route, for its requests and for its
// attempts, see profiles.WithMetrics. dst is "name:port". route is the name of the route and
// becomes the label rt_route, unless labels, the labels of the route, contain one. A
// request that failed by the route's timeout, also in a queue, has error="timeout".
// Refused requests have no latency. The series are shown for the retention time after ctx
// and after the last request.
func (m *Meters) Route(
	ctx context.Context, d Direction, dst, route string, labels map[string]string,
) (requests, tries layer.Instruments) {
	l, f := m.seriesLease(ctx), m.routes
	all := Labels{"direction": string(d), "dst": dst}
	if route != "" {
		all["rt_route"] = route
	}
	all = all.With(Prefixed("rt", labels))
	b := binder{l, all}
	o := overdue{
		failures: b.counter(f.responses, Labels{"classification": "failure"}),
		late:     b.lazy(f.responses, Labels{"classification": "failure", "error": "timeout"}),
		pending:  new(atomic.Int64),
	}
	open := leasedGauge{discard.NewGauge(), l}
	successes := b.lazy(f.responses, Labels{"classification": "success"})
	requests = layer.Instruments{
		InFlight:       open,
		Requests:       b.counter(f.requests, nil),
		Rejections:     multi.NewCounter(b.counter(f.requests, nil), o), // the time may be over in a queue
		Responses:      classes{successes, ignored{successes, o.pending}, o},
		Latency:        histogram{f.latency.bind(l, all)},
		Retries:        b.lazy(f.retryable, nil),
		RetriesSkipped: newLabelled("skipped", b.counters(f.retryable), skipped),
		Timeouts:       limits{newLabelled("limit", b.counters(f.expired), asItIs), o.pending},
	}
	answered, failures := b.lazy(f.answers, Labels{"classification": "success"}), b.lazy(f.answers, Labels{"classification": "failure"})
	tries = layer.Instruments{
		InFlight:   open,
		Requests:   b.counter(f.tries, nil),
		Rejections: multi.NewCounter(b.counter(f.tries, nil), failures),
		Responses:  classes{answered, answered, failures},
	}
	return requests, tries
}

// skipped returns linkerd's word for the reason why there was no retry.
func skipped(reason string) string {
	if reason == "budget" {
		return "no_budget"
	}
	return reason
}

// binder binds series for one seriesLease.
type binder struct {
	seriesLease *seriesLease
	labels      Labels
}

func (b binder) counters(f *family[prometheus.Counter]) func(Labels) prometheus.Counter {
	return func(more Labels) prometheus.Counter { return f.bind(b.seriesLease, b.labels.With(more)) }
}

func (b binder) counter(f *family[prometheus.Counter], more Labels) metrics.Counter {
	return counter{b.counters(f)(more)}
}

// lazy returns a counter that is not shown before it counts.
func (b binder) lazy(f *family[prometheus.Counter], more Labels) metrics.Counter {
	return &lazy{bind: func() prometheus.Counter { return b.counters(f)(more) }}
}

// classes counts responses by class. As in linkerd's response_total, a request canceled by
// its caller is not a failure.
type classes struct{ successes, ignored, failures metrics.Counter }

func (c classes) With(label ...string) metrics.Counter {
	switch label[1] {
	case layer.Success.String():
		return c.successes
	case layer.Ignorable.String():
		return c.ignored
	}
	return c.failures
}

func (classes) Add(float64) {} // there is no series without a class

// overdue counts failures, and those by a time limit apart. A limit counts before the
// failure that it causes. Of two concurrent failures it is unknown which was caused by
// the limit, which makes no difference to the numbers.
type overdue struct {
	failures, late metrics.Counter
	pending        *atomic.Int64
}

func (o overdue) With(...string) metrics.Counter { return o }

func (o overdue) Add(delta float64) {
	switch {
	case delta == 0: // nothing failed: what is pending waits for what does
	case take(o.pending):
		o.late.Add(delta)
	default:
		o.failures.Add(delta)
	}
}

// ignored counts requests whose callers left. If a limit ran out for one, that limit is
// not left for a later failure.
type ignored struct {
	metrics.Counter
	pending *atomic.Int64
}

func (i ignored) Add(delta float64) {
	if delta != 0 {
		take(i.pending)
	}
	i.Counter.Add(delta)
}

// take decrements pending if it is above 0.
func take(pending *atomic.Int64) bool {
	for n := pending.Load(); n > 0; n = pending.Load() {
		if pending.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// limits counts expired limits by name. A limit on the whole request fails the request; a
// limit on an attempt does not, because another attempt may follow.
type limits struct {
	labelled
	pending *atomic.Int64
}

func (l limits) With(label ...string) metrics.Counter {
	if label[1] == "head" || label[1] == "total" {
		return multi.NewCounter(l.labelled.With(label...), ending{l.pending})
	}
	return l.labelled.With(label...)
}

type ending struct{ pending *atomic.Int64 }

func (e ending) With(...string) metrics.Counter { return e }
func (e ending) Add(delta float64)              { e.pending.Add(int64(delta)) }
