package meters

import (
	"math"
	"slices"
	"sync/atomic"

	dto "github.com/prometheus/client_model/go"
)

// value is a series's current value: a counter, gauge or histogram. It is safe for concurrent use.
type value interface {
	write(out *dto.Metric)
}

// number is a float64 that several goroutines may change concurrently.
type number struct{ bits atomic.Uint64 } // a float64's

func (n *number) load() float64 { return math.Float64frombits(n.bits.Load()) }

// Add adds delta. It is safe for concurrent use.
func (n *number) Add(delta float64) {
	// There is no atomic addition for floats. Retry until no other goroutine has changed the number in between.
	for {
		old := n.bits.Load()
		if n.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+delta)) {
			return
		}
	}
}

// Inc adds 1.
func (n *number) Inc() { n.Add(1) }

// counterValue is a counter's value, which only increases.
type counterValue struct{ number }

func (c *counterValue) write(metric *dto.Metric) { metric.Counter = &dto.Counter{Value: new(c.load())} }

// gaugeValue is a gauge's value.
type gaugeValue struct{ number }

func (g *gaugeValue) Set(value float64) { g.bits.Store(math.Float64bits(value)) }

func (g *gaugeValue) write(metric *dto.Metric) { metric.Gauge = &dto.Gauge{Value: new(g.load())} }

// isGauge reports whether v is a gauge.
func isGauge(v value) bool {
	_, ok := v.(*gaugeValue)
	return ok
}

// isOpen reports whether v is a gauge that is not 0, such as the number of open connections.
func isOpen(v value) bool {
	g, ok := v.(*gaugeValue)
	return ok && g.load() != 0
}

// histogramValue contains how many values were observed in each of a histogram's buckets, and their
// sum.
type histogramValue struct {
	bounds []float64       // upper bounds, ascending
	counts []atomic.Uint64 // by the bound's index; the last one counts larger values
	sum    number
}

func newHistogramValue(bounds []float64) *histogramValue {
	return &histogramValue{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Observe counts a value.
func (h *histogramValue) Observe(value float64) {
	i, _ := slices.BinarySearch(h.bounds, value)
	h.counts[i].Add(1)
	h.sum.Add(value)
}

// write stores the histogram in metric, in Prometheus's format.
func (h *histogramValue) write(metric *dto.Metric) {
	// Prometheus's buckets are cumulative: each also contains all smaller values.
	var total uint64
	buckets := make([]*dto.Bucket, len(h.bounds))
	for i := range h.bounds {
		total += h.counts[i].Load()
		buckets[i] = &dto.Bucket{UpperBound: &h.bounds[i], CumulativeCount: new(total)}
	}
	// The last count has no bound of its own, and only adds to the total.
	total += h.counts[len(h.bounds)].Load()
	metric.Histogram = &dto.Histogram{SampleCount: &total, SampleSum: new(h.sum.load()), Bucket: buckets}
}
