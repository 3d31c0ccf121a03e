package meters

import (
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"

	"github.com/gotower/gotower/layer"
)

// routeFamilies contains the metrics of profiles' routes. A request counts once in route_*, and
// each of its attempts in route_actual_*.
type routeFamilies struct {
	requests, responses *family[*counterValue]
	attempts            *family[*counterValue]
	attemptResponses    *family[*counterValue]
	latency             *family[*histogramValue]
	retryable, expired  *family[*counterValue]
}

// routeFamilies makes the metrics for the routes of ServiceProfiles.
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

// Route returns the instruments for a route's requests and attempts, for profiles.Config.Metrics. dst
// is the destination as name:port. labels are the route's labels in the profile, which get the
// prefix rt_. The default for rt_route is route, the route's name.
//
// If the route's timeout expires, the request has the label error="timeout", even while it waits in
// a queue. A rejected request has no latency. Only 200 outbound or a thousand inbound destinations
// get series of their own. All others share series with an empty dst and without rt_*.
func (m *Meters) Route(d Direction, dst, route string, labels map[string]string) (requests, attempts layer.Instruments) {
	f := m.routes
	// Destinations beyond the limit share series without a name and without the route's labels.
	rest := Labels{"direction": string(d), "dst": ""}
	routeLabels := rest.With(Labels{"dst": dst})
	if route != "" {
		routeLabels["rt_route"] = route
	}
	l := m.limited(routeParents(d), dst, routeLabels.With(Prefixed("rt", labels)), func(Labels) labelSet { return fixed(rest) })
	success := l.with(Labels{"classification": "success"})
	failure := l.with(Labels{"classification": "failure"})
	// The counters of this route share pending, so that an expired timeout meets its failure, see timeoutFailures.
	t := timeoutFailures{
		// eager series are exported from the start with 0. The rarer ones appear with their first write.
		failures: counter{f.responses.eager(failure)},
		timeouts: counter{f.responses.lazy(failure.with(Labels{"error": "timeout"}))},
		pending:  new(atomic.Int64),
	}
	// count is a variable of its own because a rejected request also counts as a request.
	count := counter{f.requests.eager(l)}
	successes := counter{f.responses.lazy(success)}
	requests = layer.Instruments{
		Requests:       count,
		Rejections:     multi.NewCounter(count, t), // the timeout may have expired in a queue
		Responses:      classes{successes, ignored{successes, t.pending}, t},
		Latency:        histogram{f.latency.eager(l)},
		Retries:        counter{f.retryable.lazy(l)},
		RetriesSkipped: skipReasons{newLabelled(f.retryable, l, "skipped")},
		Timeouts:       limits{newLabelled(f.expired, l, "limit"), t.pending},
	}
	// Attempts count separately: one request may need several.
	count = counter{f.attempts.eager(l)}
	answered := counter{f.attemptResponses.lazy(success)}
	failures := counter{f.attemptResponses.lazy(failure)}
	attempts = layer.Instruments{
		Requests:   count,
		Rejections: multi.NewCounter(count, failures),
		Responses:  classes{answered, answered, failures},
	}
	return requests, attempts
}

// routeParents returns the kind of name by which [Meters.limited] limits the series of
// destinations.
func routeParents(d Direction) string { return string(d) + " parents" }

// skipReasons counts failures that are not retried, by reason. The reason "budget" is called
// "no_budget" in linkerd's proxy.
type skipReasons struct{ labelled }

// With returns the counter for a reason. It has the name that linkerd uses.
func (s skipReasons) With(label ...string) metrics.Counter {
	if label[1] == "budget" {
		return s.labelled.With(label[0], "no_budget")
	}
	return s.labelled.With(label...)
}

// classes counts responses by class: success, ignorable or failure. As in linkerd's response_total,
// a request that its caller canceled is not a failure but ignorable.
type classes struct{ successes, ignored, failures metrics.Counter }

// With returns the counter for a class of responses. label[1] is the class.
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

// timeoutFailures counts requests whose timeout expired in timeouts, and other failures in
// failures. Add does not receive a failure's reason. Therefore [limits] increments pending for each
// expired request timeout, and the next failure decrements it and counts as a timeout. Concurrent
// failures may be swapped this way, but the totals are right.
type timeoutFailures struct {
	failures, timeouts metrics.Counter
	pending            *atomic.Int64
}

func (t timeoutFailures) With(...string) metrics.Counter { return t }

// Add counts a failed response, or a timeout if one has expired for this request.
func (t timeoutFailures) Add(delta float64) {
	switch {
	// A go-kit counter may be called with 0, which must not consume a pending timeout.
	case delta == 0:
	case take(t.pending):
		t.timeouts.Add(delta)
	default:
		t.failures.Add(delta)
	}
}

// ignored counts requests that their callers canceled. Their timeouts may have expired too, so each
// also decrements pending if it is above 0. Otherwise [timeoutFailures] would count a later failure
// as a timeout.
type ignored struct {
	metrics.Counter
	pending *atomic.Int64
}

// Add counts an ignored response, for which a timeout does not count.
func (i ignored) Add(delta float64) {
	// A go-kit counter may be called with 0, which must not consume a pending timeout.
	if delta != 0 {
		take(i.pending)
	}
	i.Counter.Add(delta)
}

// take decrements pending and returns true, or returns false if pending is 0.
func take(pending *atomic.Int64) bool {
	// Retry until no other goroutine has changed pending in between.
	for n := pending.Load(); n > 0; n = pending.Load() {
		if pending.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// limits counts expired timeouts by the label "limit". A timeout that fails the whole request
// increments pending, so that [timeoutFailures] counts the failure as a timeout. An attempt's
// timeout does not, because another attempt may follow.
type limits struct {
	labelled
	pending *atomic.Int64
}

// With returns the counter for a kind of timeout. label[1] is the kind.
func (l limits) With(label ...string) metrics.Counter {
	// Only these limits fail the whole request. An attempt's timeout may be followed by another attempt.
	if label[1] == "response_header" || label[1] == "total" {
		return multi.NewCounter(l.labelled.With(label...), pendingTimeout{l.pending})
	}
	return l.labelled.With(label...)
}

// pendingTimeout is a go-kit counter that adds to pending, the number of expired timeouts whose
// failure has not been counted yet.
type pendingTimeout struct{ pending *atomic.Int64 }

func (e pendingTimeout) With(...string) metrics.Counter { return e }
func (e pendingTimeout) Add(delta float64)              { e.pending.Add(int64(delta)) }

// retryFamilies contains the metrics of routes' retries.
type retryFamilies struct{ requests, successes, limited, overflow *family[*counterValue] }

// retryFamilies makes the metrics for retries. prefix is the beginning of their names.
func (m *Meters) retryFamilies(prefix string) retryFamilies {
	return retryFamilies{
		requests:  m.counters(prefix+"requests_total", "Retry requests emitted."),
		successes: m.counters(prefix+"successes_total", "Successful responses to retry requests."),
		limited:   m.counters(prefix+"limit_exceeded_total", "Retryable requests not sent due to retry limits."),
		overflow:  m.counters(prefix+"overflow_total", "Retryable requests not sent due to circuit breakers."),
	}
}

// retries contains the series for one route's retries.
type retries struct{ requests, successes, limited, overflow counter }

// eager returns the series with the labels l. They are exported immediately, with the value 0.
func (f retryFamilies) eager(l labelSet) *retries {
	return &retries{
		counter{f.requests.eager(l)}, counter{f.successes.eager(l)}, counter{f.limited.eager(l)}, counter{f.overflow.eager(l)},
	}
}

// added returns a copy of i whose counters for retries and skipped retries also count in r.
func (r *retries) added(i layer.Instruments) layer.Instruments {
	i.Retries = multi.NewCounter(i.Retries, r.requests)
	i.RetriesSkipped = skippedRetries{i.RetriesSkipped, r}
	return i
}

// skippedRetries counts failures that are not retried in the embedded Counter. Those for which the
// limit of attempts is the reason also count in retries.limited, and those for which the retry
// budget is, in retries.overflow.
type skippedRetries struct {
	metrics.Counter
	retries *retries
}

// With returns the counter for retries that were not sent. label[1] is the reason.
func (s skippedRetries) With(label ...string) metrics.Counter {
	c := s.Counter.With(label...)
	// The layer passes the reason as the label's value.
	switch label[1] {
	case "attempts":
		return multi.NewCounter(c, s.retries.limited)
	case "budget":
		return multi.NewCounter(c, s.retries.overflow)
	}
	return c
}
