package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkReconnect(b *testing.B) {
	ctx := b.Context()
	connect := func(context.Context) (layer.Service[int, int], error) { return layer.Func[int, int](echo), nil }
	svc := layer.Reconnect(ctx, connect, layer.Backoff{})
	if err := svc.Ready(ctx); err != nil {
		b.Fatal(err)
	}
	call(b, svc)
}
