package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkAdaptiveLimit(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	l := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{})
	b.Run("serial", func(b *testing.B) { call(b, l(leaf)) })
	b.Run("full", func(b *testing.B) {
		inside, done := make(chan struct{}), make(chan struct{})
		svc := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{Max: 1})(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
			inside <- struct{}{}
			<-inside
			return req, nil
		}))
		go func() {
			defer close(done)
			_, _ = svc.Call(context.Background(), 1)
		}()
		<-inside
		benchRefusals(b, context.Background(), svc)
		inside <- struct{}{}
		<-done
	})
	b.Run("parallel", func(b *testing.B) { benchParallel(b, context.Background(), l(leaf)) })
}
