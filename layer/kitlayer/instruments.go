package kitlayer

import (
	"strings"
	"sync"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/layer"
)

// MetricsProvider makes instruments. The providers of go-kit's package
// metrics/provider implement it. That package is not imported, because it imports
// the clients of all metrics systems.
type MetricsProvider interface {
	NewCounter(name string) metrics.Counter
	NewGauge(name string) metrics.Gauge
	NewHistogram(name string, buckets int) metrics.Histogram
}

// buckets is the number of buckets for providers that need one.
const buckets = 50

// Instruments makes all instruments of the layers with p. Call it once, because many
// providers do not allow a name twice. The names are the prefix and:
//
//	requests, rejections, retries, trips   counters
//	responses_<class>                      success, failure, retryable, throttled, ignorable
//	rejected_<layer>                       limit, rate, shed, breaker …
//	expired_<limit>                        total, head, idle, attempt, deadline
//	skipped_<reason>                       budget, body, attempts, unsafe, pushback, deadline
//	hedges_<outcome>                       sent, won, skipped
//	connects_<outcome>                     success, failure
//	injected_<fault>                       delay, error
//	mirrored_<outcome>                     answered, failed, rejected, full, skipped
//	in_flight, waiting, limit,             gauges; tripped is 0 or 1
//	budget, tripped
//	header_latency_ms, latency_ms,         histograms, in milliseconds
//	queue_wait_ms
//
// A provider has no labels, so that label values are parts of names. Such a counter is made at
// its first use. For other labels use the prefix, or set [layer.Instruments] directly.
//
// A nil p returns the zero Instruments, which record nothing. The instruments are as
// safe for concurrent use as those of p.
func Instruments(p MetricsProvider, prefix string) layer.Instruments {
	if p == nil {
		return layer.Instruments{}
	}
	counter := func(name string) metrics.Counter { return p.NewCounter(prefix + name) }
	gauge := func(name string) metrics.Gauge { return p.NewGauge(prefix + name) }
	histogram := func(name string) metrics.Histogram { return p.NewHistogram(prefix+name, buckets) }
	labeled := func(name string) metrics.Counter {
		return &family{provider: p, name: prefix + name, members: make(map[string]metrics.Counter)}
	}
	return layer.Instruments{
		Requests:        counter("requests"),
		Rejections:      counter("rejections"),
		Responses:       labeled("responses"),
		InFlight:        gauge("in_flight"),
		TimeToHeaders:   histogram("header_latency_ms"),
		Latency:         histogram("latency_ms"),
		LayerRejections: labeled("rejected"),
		Timeouts:        labeled("expired"),
		QueueLength:     gauge("waiting"),
		QueueWait:       histogram("queue_wait_ms"),
		Limit:           gauge("limit"),
		Retries:         counter("retries"),
		RetriesSkipped:  labeled("skipped"),
		Budget:          gauge("budget"),
		Hedges:          labeled("hedges"),
		BreakerOpened:   counter("trips"),
		BreakerOpen:     gauge("tripped"),
		ConnectAttempts: labeled("connects"),
		FaultsInjected:  labeled("injected"),
		Mirrored:        labeled("mirrored"),
	}
}

// family is a counter with labels, made of counters without labels.
type family struct {
	provider MetricsProvider
	name     string
	mu       sync.Mutex
	members  map[string]metrics.Counter // by name
}

// With returns the counter whose name ends in the label values.
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
