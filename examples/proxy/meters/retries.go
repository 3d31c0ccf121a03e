package meters

import (
	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/multi"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
)

// retryFamilies are outbound_http_route_retry_*.
type retryFamilies struct{ requests, successes, limited, overflow *family[prometheus.Counter] }

func (m *Meters) retryFamilies(prefix string) retryFamilies {
	return retryFamilies{
		requests:  m.counters(prefix+"requests_total", "Retry requests emitted."),
		successes: m.counters(prefix+"successes_total", "Successful responses to retry requests."),
		limited:   m.counters(prefix+"limit_exceeded_total", "Retryable requests not sent due to retry limits."),
		overflow:  m.counters(prefix+"overflow_total", "Retryable requests not sent due to circuit breakers."),
	}
}

// retries is the series of one route.
type retries struct{ requests, successes, limited, overflow prometheus.Counter }

func (f retryFamilies) bind(l *seriesLease, labels Labels) retries {
	return retries{
		requests: f.requests.bind(l, labels), successes: f.successes.bind(l, labels),
		limited: f.limited.bind(l, labels), overflow: f.overflow.bind(l, labels),
	}
}

// added returns i extended by the counters of r.
func (r retries) added(i layer.Instruments) layer.Instruments {
	i.Retries = multi.NewCounter(i.Retries, counter{r.requests})
	i.RetriesSkipped = skips{i.RetriesSkipped, r}
	return i
}

// skips counts retries that were not made. An exhausted budget counts as overflow.
type skips struct {
	metrics.Counter
	retries retries
}

func (s skips) With(label ...string) metrics.Counter {
	c := s.Counter.With(label...)
	switch label[1] {
	case "attempts":
		return multi.NewCounter(c, counter{s.retries.limited})
	case "budget":
		return multi.NewCounter(c, counter{s.retries.overflow})
	}
	return c
}
