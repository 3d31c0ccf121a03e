package meters

import (
	"sync"
	"time"

	"github.com/go-kit/kit/metrics"
)

// counter adapts a series to the interface Counter of go-kit. The method With returns the
// same counter, because the series has all its labels. go-kit's own adapter would look up
// the labels at each call.
type counter struct{ *handle[*counterValue] }

func (c counter) With(...string) metrics.Counter { return c }

func (c counter) Add(delta float64) {
	if delta != 0 {
		c.get().Add(delta)
	}
}

// gauge adapts a series to the Gauge of go-kit. With has no effect, because the series has
// all its labels.
type gauge struct{ *handle[*gaugeValue] }

func (g gauge) With(...string) metrics.Gauge { return g }
func (g gauge) Set(value float64)            { g.get().Set(value) }

func (g gauge) Add(delta float64) {
	if delta != 0 {
		g.get().Add(delta)
	}
}

// histogram adapts a series to the Histogram of go-kit. With has no effect, because the
// series has all its labels.
type histogram struct{ *handle[*histogramValue] }

func (h histogram) With(...string) metrics.Histogram { return h }
func (h histogram) Observe(value float64)            { h.get().Observe(value) }

// seconds is a histogram in seconds. Observe takes milliseconds, as the layers of gotower
// pass them, and converts them.
type seconds struct{ *handle[*histogramValue] }

func (s seconds) With(...string) metrics.Histogram { return s }
func (s seconds) Observe(ms float64)               { s.get().Observe(ms / 1000) }

// clock measures durations by the monotonic clock, which costs half as much as time.Now.
type clock struct{ origin time.Time }

func newClock() clock { return clock{time.Now()} }

// now returns the time since c was made.
func (c clock) now() time.Duration { return time.Since(c.origin) }

// bindable is a go-kit counter for series that differ in one label, such as the cause. With
// returns the counter for one value of this label. Add has no effect without With.
type bindable struct {
	family *family[*counterValue]
	labels labelSet
	name   string // of the label, in Prometheus
}

// With returns a new counter for a value of the label. label has two elements: the name,
// which is ignored, and the value.
func (b bindable) With(label ...string) metrics.Counter {
	return counter{b.family.lazy(b.labels.with(Labels{b.name: label[1]}))}
}

func (bindable) Add(float64) {}

// labelled is a counter for each value of one label. With returns the counter of a value
// from a cache, so that it may be called for each request. The first call for a value
// makes the counter, which is then exported with the value 0.
type labelled struct{ *lookup[string, counter] }

func newLabelled(f *family[*counterValue], l labelSet, name string) labelled {
	return labelled{newLookup(func(value string) counter { return counter{f.now(l.with(Labels{name: value}))} })}
}

func (l labelled) With(label ...string) metrics.Counter { return l.of(label[1]) }

func (labelled) Add(float64) {}

// share is the part of a gauge that one owner, such as a balancer, has added. Several
// owners may use the same gauge at the same time. The gauge is the sum of their shares.
type share struct {
	series *handle[*gaugeValue]

	mu    sync.Mutex
	own   float64 // value that the owner has added
	ended bool
}

func (s *share) With(...string) metrics.Gauge { return s }

// Set changes the share to value. The gauge changes by the same difference.
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

// add adds delta to the share and to the gauge. s.mu must be held.
func (s *share) add(delta float64) {
	if !s.ended && delta != 0 {
		s.series.get().Add(delta)
		s.own += delta
	}
}

// end subtracts the share from the gauge. Later writes to the share have no effect. The
// subtraction does not count as a write to the series, because a write would delay the
// expiry of the series.
func (s *share) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bound := s.series.bound.Load(); bound != nil && s.own != 0 {
		bound.value.Add(-s.own)
	}
	s.own, s.ended = 0, true
}
