package meters

import (
	"sync"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// counter, gauge and histogram adapt series to the interfaces of go-kit. Their labels are
// bound already; go-kit's own adapter would look them up on each call. A counter is shown
// after its first write.
type counter struct{ *handle[prometheus.Counter] }

func (c counter) With(...string) metrics.Counter { return c }

func (c counter) Add(delta float64) {
	if delta != 0 {
		c.get().Add(delta)
	}
}

type gauge struct{ *handle[prometheus.Gauge] }

func (g gauge) With(...string) metrics.Gauge { return g }
func (g gauge) Set(value float64)            { g.get().Set(value) }
func (g gauge) Add(delta float64)            { g.get().Add(delta) }

type histogram struct{ *handle[prometheus.Histogram] }

func (h histogram) With(...string) metrics.Histogram { return h }
func (h histogram) Observe(value float64)            { h.get().Observe(value) }

// seconds is a histogram in seconds whose observations are in milliseconds.
type seconds struct{ *handle[prometheus.Histogram] }

func (s seconds) With(...string) metrics.Histogram { return s }
func (s seconds) Observe(ms float64)               { s.get().Observe(ms / 1000) }

// clock measures durations. A reading costs half of that of time.Now.
type clock struct{ origin time.Time }

func newClock() clock { return clock{time.Now()} }

// now returns the time since the clock was made.
func (c clock) now() time.Duration { return time.Since(c.origin) }

// labelled is the counters that differ in one label, whose value With binds. Add without
// With counts nothing.
type labelled struct {
	family *family[prometheus.Counter]
	labels labelSet
	name   string // of the label, as Prometheus has it
	bound  *sync.Map
}

func newLabelled(f *family[prometheus.Counter], l labelSet, name string) labelled {
	return labelled{f, l, name, new(sync.Map)}
}

// With binds the value of the one label.
func (l labelled) With(label ...string) metrics.Counter {
	if c, ok := l.bound.Load(label[1]); ok {
		return c.(counter) //nolint:errcheck,forcetypeassert // stored below
	}
	c, _ := l.bound.LoadOrStore(label[1], counter{l.family.now(l.labels.with(Labels{l.name: label[1]}))})
	return c.(counter) //nolint:errcheck,forcetypeassert // stored above
}

func (labelled) Add(float64) {}

// share is the part of a gauge's value that one owner has set, because an owner with the
// same labels may begin before the last one has ended.
type share struct {
	series *handle[prometheus.Gauge]

	mu    sync.Mutex
	own   float64
	ended bool
}

func (s *share) With(...string) metrics.Gauge { return s }

func (s *share) Set(value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(value - s.own)
}

func (s *share) Add(delta float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(delta)
}

func (s *share) add(delta float64) {
	if !s.ended {
		s.series.get().Add(delta)
		s.own += delta
	}
}

// end subtracts the share from the gauge. That is not a write, so it does not delay the
// expiry of the series.
func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bound := s.series.bound.Load(); bound != nil && s.own != 0 {
		bound.metric.Sub(s.own)
	}
	s.own, s.ended = 0, true
}
