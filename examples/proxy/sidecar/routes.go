package sidecar

import (
	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
)

// routeMeters are the metrics of the routes of profiles, by linkerd's names:
// route_* once for each request, route_actual_* for each try.
type routeMeters struct {
	requests, tries *prometheus.CounterVec
	responses       *prometheus.CounterVec
	answers         *prometheus.CounterVec // of tries
	latency         *prometheus.HistogramVec
	retryable       *prometheus.CounterVec
	expired         *prometheus.CounterVec
}

func newRouteMeters() *routeMeters {
	counters := func(name, help string, more ...string) *prometheus.CounterVec {
		labels := append([]string{"direction", "dst", "rt_route"}, more...)
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &routeMeters{
		requests:  counters("route_request_total", "Requests of a route."),
		responses: counters("route_response_total", "Responses of a route that ended.", "classification"),
		tries:     counters("route_actual_request_total", "Tries of a route's requests."),
		answers:   counters("route_actual_response_total", "Responses to tries that ended.", "classification"),
		retryable: counters("route_retryable_total", "Failures that were tried again, or why they were not.", "skipped"),
		expired:   counters("route_timeout_total", "Time limits of a route that ran out.", "limit"),
		//nolint:promlinter // the name is linkerd's
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "route_response_latency_ms", Help: "Milliseconds from a route's request to the end of its response.",
			Buckets: latencyBuckets(),
		}, []string{"direction", "dst", "rt_route"}),
	}
}

func (r *routeMeters) register(to *prometheus.Registry) {
	to.MustRegister(r.requests, r.responses, r.tries, r.answers, r.retryable, r.expired, r.latency)
}

func (r *routeMeters) drop(labels prometheus.Labels) {
	for _, v := range []interface {
		DeletePartialMatch(labels prometheus.Labels) int
	}{r.requests, r.responses, r.tries, r.answers, r.retryable, r.expired, r.latency} {
		v.DeletePartialMatch(labels)
	}
}

func (r *routeMeters) bind(labels prometheus.Labels) (requests, tries layer.Instruments) {
	retryable := r.retryable.MustCurryWith(labels)
	requests = layer.Instruments{
		Requests:  counter{r.requests.With(labels)},
		Refusals:  refusals(r.requests, r.responses, labels),
		Responses: classes{r.responses.MustCurryWith(labels)},
		Latency:   histogram{r.latency.With(labels)},
		Retries:   counter{retryable.WithLabelValues("")},
		Skipped:   skipped{retryable},
		Expired:   limits{r.expired.MustCurryWith(labels)},
	}
	tries = layer.Instruments{
		Requests:  counter{r.tries.With(labels)},
		Refusals:  refusals(r.tries, r.answers, labels),
		Responses: classes{r.answers.MustCurryWith(labels)},
	}
	return requests, tries
}

// refusals counts what was refused below (fail-fast, no endpoint) as a request
// and a failure: nobody above sends it again, and its client gets a 503 or 504.
func refusals(requests, responses *prometheus.CounterVec, labels prometheus.Labels) metrics.Counter {
	failures := responses.MustCurryWith(labels).WithLabelValues("failure")
	return multi.NewCounter(counter{requests.With(labels)}, counter{failures})
}

// skipped is linkerd's label for why there was no retry.
type skipped struct{ *prometheus.CounterVec }

func (s skipped) With(label ...string) metrics.Counter {
	if label[1] == "budget" {
		return counter{s.WithLabelValues("no_budget")}
	}
	return counter{s.WithLabelValues(label[1])}
}

func (s skipped) Add(float64) {} // it has no series without a reason

// limits counts by which limit it was: head, or that of a try.
type limits struct{ *prometheus.CounterVec }

func (l limits) With(label ...string) metrics.Counter { return counter{l.WithLabelValues(label[1])} }

func (l limits) Add(float64) {}
