package layer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// shared is an instrument for concurrent callers.
type shared struct {
	mu   sync.Mutex
	seen []float64
	last float64
}

func (s *shared) With(...string) metrics.Histogram { return s }

func (s *shared) Observe(value float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.last = append(s.seen, value), value
}

func (s *shared) all() []float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// level is a gauge that can be set and added to.
type level struct{ *shared }

func (l level) With(...string) metrics.Gauge { return l }
func (l level) Set(value float64)            { l.Observe(value) }
func (l level) Add(delta float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last += delta
	l.seen = append(l.seen, l.last)
}

func (l level) now() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting, waits := level{new(shared)}, new(shared)
		rejected := byLabel{}
		measured := layer.WithMetrics[int](layer.Instruments{QueueLength: waiting, QueueWait: waits, LayerRejections: rejected})
		svc := layer.NewStack[time.Duration](measured).Queue(2, 5*time.Second).Limit(1).Service(
			layer.Func[time.Duration, int](func(_ context.Context, takes time.Duration) (int, error) {
				time.Sleep(takes)
				return 0, nil
			}))
		results := make(chan error, 4)
		send := func(takes time.Duration) {
			go func() {
				_, err := svc.Call(t.Context(), takes)
				results <- err
			}()
			synctest.Wait()
		}
		send(3 * time.Second)
		require.Zero(t, waiting.now())
		send(10 * time.Second)
		send(10 * time.Second) // of these, either may get the slot
		require.EqualValues(t, 2, waiting.now())
		send(0)
		require.ErrorIs(t, <-results, layer.ErrNotReady, "the queue is full")

		require.NoError(t, <-results)
		synctest.Wait()
		require.EqualValues(t, 1, waiting.now())
		require.ErrorIs(t, <-results, layer.ErrFailFast)
		assert.Zero(t, waiting.now())
		assert.EqualValues(t, 2, *rejected["queue"], "one found it full, one timed out")
		assert.EqualValues(t, 2, layer.Describe(svc).State.Get("rejected"))
		require.NoError(t, <-results)
		synctest.Wait()
		assert.Equal(t, []float64{3000, 5000}, waits.all())
	})
}
