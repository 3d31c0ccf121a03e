package layer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

func BenchmarkBreaker(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	consecutive := layer.Breaker[int, int](layer.BreakerPolicy{})(leaf)
	unified := layer.Breaker[int, int](layer.UnifiedBreaker())(leaf)
	b.Run("leaf", func(b *testing.B) { call(b, leaf) })
	b.Run("consecutive", func(b *testing.B) { call(b, consecutive) })
	b.Run("unified", func(b *testing.B) { call(b, unified) })
	for name, svc := range map[string]layer.Service[int, int]{"consecutive": consecutive, "unified": unified} {
		b.Run(name+" parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = svc.Call(context.Background(), 1)
				}
			})
		})
	}
	b.Run("open", func(b *testing.B) {
		svc := layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: time.Hour, Max: time.Hour}})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errors.New("down") }))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(context.Background(), 1)
		}
	})
}

// "no body" has responses without a body. The other case has the cost of observing a body.
func BenchmarkBreakerBodies(b *testing.B) {
	for name, body := range map[string]io.ReadCloser{"no body": nil, "body": breakerBody{io.EOF}} {
		b.Run(name, func(b *testing.B) {
			rsp := &breakerReply{Status: 200}
			svc := newReplyBreaker(func(context.Context) *breakerReply { rsp.Body = body; return rsp })
			buf := make([]byte, 8)
			b.ReportAllocs()
			for b.Loop() {
				got, _ := svc.Call(context.Background(), 1)
				if got.Body != nil {
					_, _ = got.Body.Read(buf)
				}
			}
		})
	}
}
