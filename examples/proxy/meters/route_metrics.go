package meters

import (
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"

	"github.com/gotower/gotower/layer"
)

// routeFamilies has the metrics of the routes of profiles. A request counts once in
// route_*, and each of its attempts counts in route_actual_*.
type routeFamilies struct {
	requests, responses *family[*counterValue]
	attempts            *family[*counterValue]
	attemptResponses    *family[*counterValue]
	latency             *family[*histogramValue]
	retryable, expired  *family[*counterValue]
}

func (m *Meters) routeFamilies() routeFamilies {
	return routeFamilies{
		requests:         m.counters("route_request_total", "Total count of HTTP requests."),
		responses:        m.counters("route_response_total", "Total count of HTTP responses."),
		attempts:         m.counters("route_actual_request_total", "Total count of HTTP requests, including retries."),
		attemptResponses: m.counters("route_actual_response_total", "Total count of HTTP responses, including those to retries."),
		retryable:        m.counters("route_retryable_total", "Total count of retryable HTTP responses."),
		expired:          m.counters("route_timeout_total", "Expired timeouts of a route."),
		latency: m.histograms("route_response_latency_ms",
			"Elapsed times between a request's headers being received and its response stream completing", latencyBuckets()...),
	}
}

// Route returns the instruments for the requests and for the attempts of a route, for
// profiles.WithMetrics. dst is the destination as name:port. labels are the labels of the
// route in the profile. In metrics, their names have the prefix rt_. If labels do not
// contain "route", the value of rt_route is the argument route, the name of the route.
//
// If the timeout of the route expires, the request has the label error="timeout", even if
// it was still in a queue. A rejected request has no latency. Only 200 outbound or a
// thousand inbound destinations have separate series. Others share series with an empty dst
// and without rt_*.
func (m *Meters) Route(d Direction, dst, route string, labels map[string]string) (requests, attempts layer.Instruments) {
	f, rest := m.routes, Labels{"direction": string(d), "dst": ""}
	own := rest.With(Labels{"dst": dst})
	if route != "" {
		own["rt_route"] = route
	}
	l := m.limited(routeParents(d), dst, own.With(Prefixed("rt", labels)), func(Labels) labelSet { return fixed(rest) })
	success, failure := l.with(Labels{"classification": "success"}), l.with(Labels{"classification": "failure"})
	t := timeoutFailures{
		failures: counter{f.responses.now(failure)},
		timeouts: counter{f.responses.lazy(failure.with(Labels{"error": "timeout"}))},
		pending:  new(atomic.Int64),
	}
	count := counter{f.requests.now(l)}
	successes := counter{f.responses.lazy(success)}
	requests = layer.Instruments{
		Requests:       count,
		Rejections:     multi.NewCounter(count, t), // the timeout may have expired in a queue
		Responses:      classes{successes, ignored{successes, t.pending}, t},
		Latency:        histogram{f.latency.now(l)},
		Retries:        counter{f.retryable.lazy(l)},
		RetriesSkipped: skipReasons{newLabelled(f.retryable, l, "skipped")},
		Timeouts:       limits{newLabelled(f.expired, l, "limit"), t.pending},
	}
	count = counter{f.attempts.now(l)}
	answered, failures := counter{f.attemptResponses.lazy(success)}, counter{f.attemptResponses.lazy(failure)}
	attempts = layer.Instruments{
		Requests:   count,
		Rejections: multi.NewCounter(count, failures),
		Responses:  classes{answered, answered, failures},
	}
	return requests, attempts
}

// routeParents returns the kind of name with which [Meters.limited] limits the series of
// the destinations in the direction d. Destinations beyond the limit share series.
func routeParents(d Direction) string { return string(d) + " parents" }

// skipReasons counts failures that are not retried, by reason. If the retry budget is
// empty, the reason is "no_budget", the name in linkerd's proxy, instead of "budget".
type skipReasons struct{ labelled }

func (s skipReasons) With(label ...string) metrics.Counter {
	if label[1] == "budget" {
		return s.labelled.With(label[0], "no_budget")
	}
	return s.labelled.With(label...)
}

// classes counts responses by class: success, ignorable or failure. As in linkerd's
// response_total, a request that its caller canceled is ignorable and not a failure.
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

func (classes) Add(float64) {} // each series has a class

// timeoutFailures counts failed requests in two counters. The counter timeouts is for
// requests with an expired timeout, and the counter failures is for all others. Add does
// not receive the reason of a failure, and therefore uses pending. [limits] adds 1 to
// pending for each request timeout that expires. While pending is above 0, each failure
// subtracts 1 and counts in timeouts. With concurrent failures, two requests may exchange
// their counters, but the totals are correct.
type timeoutFailures struct {
	failures, timeouts metrics.Counter
	pending            *atomic.Int64
}

func (t timeoutFailures) With(...string) metrics.Counter { return t }

func (t timeoutFailures) Add(delta float64) {
	switch {
	case delta == 0:
	case take(t.pending):
		t.timeouts.Add(delta)
	default:
		t.failures.Add(delta)
	}
}

// ignored counts requests that their callers canceled. Each also subtracts 1 from pending,
// if pending is above 0, because the timeout of the request may have expired too. Without
// this, [timeoutFailures] would count a later failure as a timeout.
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

// take subtracts 1 from pending and returns true. If pending is 0, take returns false.
func take(pending *atomic.Int64) bool {
	for n := pending.Load(); n > 0; n = pending.Load() {
		if pending.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// limits counts expired timeouts by the label "limit". If a timeout fails the whole
// request, limits also adds 1 to pending, so that [timeoutFailures] counts the failure as a
// timeout. The timeout of one attempt does not add 1, because another attempt may follow.
type limits struct {
	labelled
	pending *atomic.Int64
}

func (l limits) With(label ...string) metrics.Counter {
	if label[1] == "response_header" || label[1] == "total" {
		return multi.NewCounter(l.labelled.With(label...), pendingTimeout{l.pending})
	}
	return l.labelled.With(label...)
}

// pendingTimeout is a go-kit counter. Add adds 1 to pending, the number of expired
// timeouts for which no failure has been counted yet.
type pendingTimeout struct{ pending *atomic.Int64 }

func (e pendingTimeout) With(...string) metrics.Counter { return e }
func (e pendingTimeout) Add(delta float64)              { e.pending.Add(int64(delta)) }

// retryFamilies has the metrics of the retries of routes.
type retryFamilies struct{ requests, successes, limited, overflow *family[*counterValue] }

func (m *Meters) retryFamilies(prefix string) retryFamilies {
	return retryFamilies{
		requests:  m.counters(prefix+"requests_total", "Retry requests emitted."),
		successes: m.counters(prefix+"successes_total", "Successful responses to retry requests."),
		limited:   m.counters(prefix+"limit_exceeded_total", "Retryable requests not sent due to retry limits."),
		overflow:  m.counters(prefix+"overflow_total", "Retryable requests not sent due to circuit breakers."),
	}
}

// retries has the series of the retries of one route.
type retries struct{ requests, successes, limited, overflow counter }

// now returns the series, with the labels l, in which retries are counted. They are
// exported at once, with the value 0.
func (f retryFamilies) now(l labelSet) *retries {
	return &retries{
		counter{f.requests.now(l)}, counter{f.successes.now(l)}, counter{f.limited.now(l)}, counter{f.overflow.now(l)},
	}
}

// added returns a copy of i with counters that also add to r. These are the counters of
// retries and of skipped retries. A retry is skipped if the retry budget is empty, for
// example.
func (r *retries) added(i layer.Instruments) layer.Instruments {
	i.Retries = multi.NewCounter(i.Retries, r.requests)
	i.RetriesSkipped = skippedRetries{i.RetriesSkipped, r}
	return i
}

// skippedRetries counts skipped retries, which are failures that are not retried, in the
// embedded Counter. If the reason is the limit of attempts, it also counts in
// retries.limited. If the reason is the retry budget, it also counts in retries.overflow.
type skippedRetries struct {
	metrics.Counter
	retries *retries
}

func (s skippedRetries) With(label ...string) metrics.Counter {
	c := s.Counter.With(label...)
	switch label[1] {
	case "attempts":
		return multi.NewCounter(c, s.retries.limited)
	case "budget":
		return multi.NewCounter(c, s.retries.overflow)
	}
	return c
}
