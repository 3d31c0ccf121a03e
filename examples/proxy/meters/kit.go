package meters

import (
	"sync"
	"sync/atomic"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// counter, gauge and histogram adapt Prometheus instruments to go-kit. Their labels are
// bound; go-kit's own adapter would look them up on each call.
type counter struct{ prometheus.Counter }

func (c counter) With(...string) metrics.Counter { return c }

type gauge struct{ prometheus.Gauge }

func (g gauge) With(...string) metrics.Gauge { return g }

type histogram struct{ prometheus.Observer }

func (h histogram) With(...string) metrics.Histogram { return h }

// seconds is a histogram of seconds that observes milliseconds.
type seconds struct{ prometheus.Observer }

func (s seconds) With(...string) metrics.Histogram { return s }
func (s seconds) Observe(ms float64)               { s.Observer.Observe(ms / 1000) }

// labelled is counters with one unbound label. Without the label it counts nothing.
type labelled struct {
	name  string // of the label, as Prometheus has it
	value func(string) string
	bind  func(Labels) prometheus.Counter
	bound *sync.Map // value of the label → counter
}

func newLabelled(name string, bind func(Labels) prometheus.Counter, value func(string) string) labelled {
	return labelled{name, value, bind, new(sync.Map)}
}

func asItIs(s string) string { return s }

// With binds the value of the one label.
func (l labelled) With(label ...string) metrics.Counter {
	value := l.value(label[1])
	if c, ok := l.bound.Load(value); ok {
		return counter{c.(prometheus.Counter)} //nolint:errcheck,forcetypeassert // stored below
	}
	c := l.bind(Labels{l.name: value})
	l.bound.Store(value, c)
	return counter{c}
}

func (labelled) Add(float64) {}

// states is labelled for gauges. Each bound gauge is a share of the series, because an
// owner with the same labels may begin before the last one has ended.
type states struct {
	name string
	bind func(Labels) prometheus.Gauge
}

func (s states) With(label ...string) metrics.Gauge {
	return &share{all: s.bind(Labels{s.name: label[1]})}
}

func (states) Set(float64) {}
func (states) Add(float64) {}

// share is the part of a gauge's value that one owner has set.
type share struct {
	all prometheus.Gauge

	mu  sync.Mutex
	own float64
}

func (s *share) With(...string) metrics.Gauge { return s }

func (s *share) Set(value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Add(value - s.own)
	s.own = value
}

func (s *share) Add(delta float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Add(delta)
	s.own += delta
}

// lazy is a counter whose series is bound at the first Add above 0, because linkerd's
// proxy does not show such series before.
type lazy struct {
	bind  func() prometheus.Counter
	bound atomic.Pointer[counter]
}

func (l *lazy) With(...string) metrics.Counter { return l }

func (l *lazy) Add(delta float64) {
	c := l.bound.Load()
	if c == nil {
		if delta == 0 {
			return
		}
		// Concurrent calls bind the same series.
		c = &counter{l.bind()}
		l.bound.Store(c)
	}
	c.Add(delta)
}
