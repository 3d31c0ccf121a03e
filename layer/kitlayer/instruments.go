package kitlayer

import (
	"strings"
	"sync"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/layer"
)

// MetricsProvider makes instruments. Every provider of go-kit's package
// metrics/provider is one; it is not named here, because it brings the client
// of every metrics system with it.
type MetricsProvider interface {
	NewCounter(name string) metrics.Counter
	NewGauge(name string) metrics.Gauge
	NewHistogram(name string, buckets int) metrics.Histogram
}

// buckets is how finely a provider that has buckets of its own divides them.
const buckets = 50

// Instruments makes all instruments of the layers with p, once, because many
// providers do not allow a name twice. Their names are prefix and:
//
//	requests, refusals, retries, trips     counters
//	responses_<class>                      success, failure, retryable, throttled, ignorable
//	refused_<layer>                        limit, rate, shed, breaker …
//	expired_<limit>                        total, head, idle, attempt, deadline
//	skipped_<reason>                       budget, body, attempts, unsafe, pushback, deadline
//	hedges_<outcome>                       sent, won, skipped
//	connects_<outcome>                     success, failure
//	injected_<fault>                       delay, error
//	mirrored_<outcome>                     answered, failed, rejected, full, skipped
//	in_flight, waiting, limit,             gauges; tripped is 0 or 1
//	budget, tripped
//	head_latency_ms, latency_ms,           histograms, in milliseconds
//	queue_wait_ms
//
// A provider has no labels, so their values are part of the names. Such a
// counter is made at its first use. Put labels of your own into the prefix, or
// fill in [layer.Instruments] by hand.
//
// A nil p returns the zero Instruments, which record nothing. The instruments are
// as safe for concurrent use as those of p.
func Instruments(p MetricsProvider, prefix string) layer.Instruments {
	if p == nil {
		return layer.Instruments{}
	}
	counter := func(name string) metrics.Counter { return p.NewCounter(prefix + name) }
	gauge := func(name string) metrics.Gauge { return p.NewGauge(prefix + name) }
	histogram := func(name string) metrics.Histogram { return p.NewHistogram(prefix+name, buckets) }
	labelled := func(name string) metrics.Counter {
		return &family{provider: p, name: prefix + name, members: make(map[string]metrics.Counter)}
	}
	return layer.Instruments{
		Requests:        counter("requests"),
		Rejections:      counter("refusals"),
		Responses:       labelled("responses"),
		InFlight:        gauge("in_flight"),
		TimeToHeaders:   histogram("head_latency_ms"),
		Latency:         histogram("latency_ms"),
		LayerRejections: labelled("refused"),
		Timeouts:        labelled("expired"),
		QueueLength:     gauge("waiting"),
		QueueWait:       histogram("queue_wait_ms"),
		Limit:           gauge("limit"),
		Retries:         counter("retries"),
		RetriesSkipped:  labelled("skipped"),
		Budget:          gauge("budget"),
		Hedges:          labelled("hedges"),
		BreakerOpened:   counter("trips"),
		BreakerOpen:     gauge("tripped"),
		ConnectAttempts: labelled("connects"),
		FaultsInjected:  labelled("injected"),
		Mirrored:        labelled("mirrored"),
	}
}

// family is a counter with labels, as counters without.
type family struct {
	provider MetricsProvider
	name     string
	mu       sync.Mutex
	members  map[string]metrics.Counter // by name
}

// With returns the counter whose name ends in the values; the keys are known
// from the name of the family.
func (f *family) With(labelValues ...string) metrics.Counter {
	parts := []string{f.name}
	for i := 1; i < len(labelValues); i += 2 {
		parts = append(parts, labelValues[i])
	}
	name := strings.Join(parts, "_")
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.members[name]
	if c == nil {
		c = f.provider.NewCounter(name)
		f.members[name] = c
	}
	return c
}

// Add counts without a label.
func (f *family) Add(delta float64) { f.With().Add(delta) }
