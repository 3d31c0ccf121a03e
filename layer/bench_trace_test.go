package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

type deafSpan struct{}

func (deafSpan) Head(int)               {}
func (deafSpan) End(layer.Class, error) {}

func BenchmarkTrace(b *testing.B) {
	var span layer.Span[int]
	svc := layer.Trace(func(ctx context.Context, _ int) (context.Context, layer.Span[int]) { return ctx, span })(
		layer.Func[int, int](echo))
	b.Run("off", func(b *testing.B) { call(b, svc) })
	span = deafSpan{}
	b.Run("on", func(b *testing.B) { call(b, svc) })
}
