package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

// The four layers that most clients need, without failures: retry, timeout, breaker and
// limit.
func BenchmarkFour(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	b.Run("timeout+retry+breaker+limit", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Timeout(time.Second).
			Retry(layer.RetryPolicy[int, int]{}).
			Breaker(layer.BreakerPolicy{}).
			Limit(100).
			Service(leaf))
	})
	b.Run("timeout+retry+unified breaker+limit", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Timeout(time.Second).
			Retry(layer.RetryPolicy[int, int]{}).
			Breaker(layer.UnifiedBreaker()).
			Limit(100).
			Service(leaf))
	})
	b.Run("per try too", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Timeout(time.Second).
			Retry(layer.RetryPolicy[int, int]{AttemptTimeout: time.Second}).
			Breaker(layer.BreakerPolicy{}).
			Limit(100).
			Service(leaf))
	})
	b.Run("everything", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().
			Drain(layer.NewDrainer()).
			Timeout(time.Second).
			Shed(layer.ShedPolicy{}).
			Retry(layer.RetryPolicy[int, int]{}).
			Queue(100, time.Second).
			RateLimit(1e9, 1e6).
			AdaptiveLimit(layer.AdaptivePolicy{}).
			Breaker(layer.BreakerPolicy{}).
			Limit(100).
			Service(leaf))
	})
}
