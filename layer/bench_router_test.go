package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkRouter(b *testing.B) {
	c, long := cacheOfMany(b)
	const short = "web"
	_, _ = c.Service(short).Call(context.Background(), 1)
	b.Run("plain", func(b *testing.B) {
		svc := layer.Service[int, int](layer.Func[int, int](echo))
		call(b, layer.Router(func(int) (int, error) { return 1, nil }, func(int) layer.Service[int, int] { return svc }))
	})
	b.Run("cache hit", func(b *testing.B) {
		call(b, c.Router(func(int) (string, error) { return short, nil }))
	})
	b.Run("cache hit long key", func(b *testing.B) {
		call(b, c.Router(func(int) (string, error) { return long, nil }))
	})
}
