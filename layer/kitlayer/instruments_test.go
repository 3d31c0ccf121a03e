package kitlayer_test

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

// strict is a provider in which, as in Prometheus, a name exists once and
// without labels.
type strict struct {
	t        *testing.T
	counters map[string]*count
	others   map[string]bool
}

func newStrict(t *testing.T) *strict {
	return &strict{t: t, counters: make(map[string]*count), others: make(map[string]bool)}
}

func (s *strict) once(name string) {
	assert.NotContains(s.t, s.counters, name)
	assert.NotContains(s.t, s.others, name)
}

func (s *strict) NewCounter(name string) metrics.Counter {
	s.once(name)
	s.counters[name] = &count{t: s.t}
	return s.counters[name]
}

func (s *strict) NewGauge(name string) metrics.Gauge {
	s.once(name)
	s.others[name] = true
	return discard.NewGauge()
}

func (s *strict) NewHistogram(name string, buckets int) metrics.Histogram {
	s.once(name)
	assert.Positive(s.t, buckets)
	s.others[name] = true
	return discard.NewHistogram()
}

// count is a counter without labels.
type count struct {
	t *testing.T
	n atomic.Int64
}

func (c *count) With(labelValues ...string) metrics.Counter {
	c.t.Errorf("a label: %v", labelValues)
	return c
}

func (c *count) Add(delta float64) { c.n.Add(int64(delta)) }

func (c *count) Value() int64 { return c.n.Load() }

func TestInstruments(t *testing.T) {
	p := newStrict(t)
	to := kitlayer.Instruments(p, "web_")
	stack := layer.NewStack[int, int]().Metrics(to)
	ok := stack.Service(kitlayer.Service[int, int](double))
	broken := stack.Service(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errBroken }))

	for range 3 {
		_, err := ok.Call(t.Context(), 1)
		require.NoError(t, err)
	}
	_, err := broken.Call(t.Context(), 1)
	require.ErrorIs(t, err, errBroken)

	assert.EqualValues(t, 4, p.counters["web_requests"].Value())
	assert.EqualValues(t, 3, p.counters["web_responses_success"].Value())
	assert.EqualValues(t, 1, p.counters["web_responses_failure"].Value())
	assert.Equal(t, []string{
		"web_budget", "web_header_latency_ms", "web_in_flight", "web_latency_ms", "web_limit", "web_queue_wait_ms",
		"web_tripped", "web_waiting",
	}, slices.Sorted(maps.Keys(p.others)))
}

// Every instrument is set, also those without labels.
func TestInstrumentsComplete(t *testing.T) {
	p := newStrict(t)
	to := kitlayer.Instruments(p, "")
	to.RetriesSkipped.Add(1)
	to.RetriesSkipped.Add(1)
	assert.EqualValues(t, 2, p.counters["skipped"].Value())
	to.RetriesSkipped.With("reason", "budget").Add(1)
	assert.EqualValues(t, 1, p.counters["skipped_budget"].Value())

	assertFilled(t, to)
}

func TestInstrumentsNilProvider(t *testing.T) {
	assert.Zero(t, kitlayer.Instruments(nil, "web_"))
}
