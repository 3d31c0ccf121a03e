package meters

import (
	"sync"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// counter, gauge and histogram are Prometheus' instruments as go-kit's. Their
// labels are bound already; go-kit's own adapter would look them up each time.
type counter struct{ prometheus.Counter }

func (c counter) With(...string) metrics.Counter { return c }

type gauge struct{ prometheus.Gauge }

func (g gauge) With(...string) metrics.Gauge { return g }

type histogram struct{ prometheus.Observer }

func (h histogram) With(...string) metrics.Histogram { return h }

// seconds is a histogram of seconds that is given milliseconds.
type seconds struct{ prometheus.Observer }

func (s seconds) With(...string) metrics.Histogram { return s }
func (s seconds) Observe(ms float64)               { s.Observer.Observe(ms / 1000) }

// labelled is counters of which one label is not bound yet. There is no series
// without it.
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

// With takes one label; its name is the library's.
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

// states is labelled for gauges. Who binds one has a share of the series, as another
// with the same labels may come before who had them last is done.
type states struct {
	name string
	bind func(Labels) prometheus.Gauge
}

func (s states) With(label ...string) metrics.Gauge {
	return &share{all: s.bind(Labels{s.name: label[1]})}
}

func (states) Set(float64) {}
func (states) Add(float64) {}

// share is what one of those who write to a gauge has of its value.
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
