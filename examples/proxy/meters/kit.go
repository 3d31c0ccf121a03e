package meters

import (
	"sync"
	"time"

	"github.com/go-kit/kit/metrics"
)

// counter adapts a series to go-kit's Counter. With returns the counter itself, because the series
// already has all its labels. go-kit's own adapter would look them up at each call.
type counter struct{ *handle[*counterValue] }

func (c counter) With(...string) metrics.Counter { return c }

// Add adds delta. An addition of 0 does not create the series.
func (c counter) Add(delta float64) {
	if delta != 0 {
		c.get().Add(delta)
	}
}

// gauge adapts a series to go-kit's Gauge. With has no effect.
type gauge struct{ *handle[*gaugeValue] }

func (g gauge) With(...string) metrics.Gauge { return g }
func (g gauge) Set(value float64)            { g.get().Set(value) }

// Add adds delta. An addition of 0 does not create the series.
func (g gauge) Add(delta float64) {
	if delta != 0 {
		g.get().Add(delta)
	}
}

// histogram adapts a series to go-kit's Histogram. With has no effect.
type histogram struct{ *handle[*histogramValue] }

func (h histogram) With(...string) metrics.Histogram { return h }
func (h histogram) Observe(value float64)            { h.get().Observe(value) }

// seconds is a histogram in seconds. Observe converts from milliseconds, which gotower's layers
// use.
type seconds struct{ *handle[*histogramValue] }

func (s seconds) With(...string) metrics.Histogram { return s }
func (s seconds) Observe(ms float64)               { s.get().Observe(ms / 1000) }

// clock measures durations with the monotonic clock, which costs half as much as time.Now.
type clock struct{ origin time.Time }

func newClock() clock { return clock{time.Now()} }

// now returns the time since c was made.
func (c clock) now() time.Duration { return time.Since(c.origin) }

// bindable is a go-kit counter for series that differ in one label, such as the cause. With selects
// a series, and Add does nothing before that.
type bindable struct {
	family *family[*counterValue]
	labels labelSet
	name   string // the label's name in Prometheus
}

// With returns a new counter. It ignores the label's name, and uses its value.
func (b bindable) With(label ...string) metrics.Counter {
	return counter{b.family.lazy(b.labels.with(Labels{b.name: label[1]}))}
}

func (bindable) Add(float64) {}

// labelled is a go-kit counter for series that differ in one label. With is cached, so it may be
// called for each request. The first call for a value exports the series with the value 0.
type labelled struct{ *lookup[string, counter] }

func newLabelled(f *family[*counterValue], l labelSet, name string) labelled {
	return labelled{newLookup(func(value string) counter { return counter{f.eager(l.with(Labels{name: value}))} })}
}

func (l labelled) With(label ...string) metrics.Counter { return l.get(label[1]) }

func (labelled) Add(float64) {}

// share is what one owner, such as a balancer, has added to a gauge. Several owners may share a
// gauge, whose value is the sum of their shares.
type share struct {
	series *handle[*gaugeValue]

	mu    sync.Mutex
	value float64
	ended bool // the owner has ended, so it adds nothing more
}

func (s *share) With(...string) metrics.Gauge { return s }

// Set changes the share to value, and the gauge by the difference.
func (s *share) Set(value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(value - s.value)
}

// Add adds delta to this share of the series.
func (s *share) Add(delta float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(delta)
}

// add adds delta to the share and the gauge. The caller must hold s.mu.
func (s *share) add(delta float64) {
	// After end, the owner's late writes would otherwise stay in the gauge forever.
	if !s.ended && delta != 0 {
		s.series.get().Add(delta)
		s.value += delta
	}
}

// end subtracts the share from the gauge. Later writes have no effect. The subtraction does not
// count as a write, which would delay the series's expiry.
func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	// bound is nil if nothing was ever written, and the series must not be created now.
	if series := s.series.bound.Load(); series != nil && s.value != 0 {
		series.value.Add(-s.value)
	}
	s.value = 0
	s.ended = true
}
