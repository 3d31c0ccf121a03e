package layer_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

// BenchmarkTimeouts measures a request with a time limit, in a context that can be
// canceled. "context" uses context.WithTimeoutCause instead of the layer. In "done" the
// leaf calls Done of its context. In "body" the response has a body to read.
func BenchmarkTimeouts(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	waits := func(ctx context.Context, req int) (int, error) { ctx.Done(); return req, nil }
	plainly := func(next layer.Service[int, int]) layer.Service[int, int] {
		return layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Second, layer.ErrTimeout)
			defer cancel()
			return next.Call(ctx, req)
		})
	}
	for name, l := range map[string]layer.Layer[int, int]{
		"context": plainly,
		"total":   layer.Timeout[int, int](time.Second),
		"head":    layer.ResponseHeaderTimeout[int, int](time.Second),
		"in":      layer.DeadlineFromRequest[int, int](func(int) (time.Duration, bool) { return time.Second, true }),
		"out":     layer.DeadlineToRequest[int, int](func(req int, _ time.Duration) int { return req }, 0),
	} {
		for leaf, f := range map[string]layer.Func[int, int]{"leaf": echo, "done": waits} {
			svc := l(f)
			b.Run(name+"/"+leaf, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = svc.Call(ctx, 1)
				}
			})
		}
	}
	type Rsp = *response
	for name, l := range map[string]layer.Layer[int, Rsp]{
		"no layer": func(next layer.Service[int, Rsp]) layer.Service[int, Rsp] { return next },
		"total":    layer.Timeout[int, Rsp](time.Second),
		"head":     layer.ResponseHeaderTimeout[int, Rsp](time.Second),
		"idle":     layer.IdleTimeout[int, Rsp](time.Second),
	} {
		svc := l(layer.Func[int, Rsp](func(context.Context, int) (Rsp, error) {
			return &response{Body: io.NopCloser(strings.NewReader("hello"))}, nil
		}))
		b.Run(name+"/body", func(b *testing.B) {
			buf := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				rsp, _ := svc.Call(ctx, 1)
				_, _ = rsp.Body.Read(buf)
				_, _ = rsp.Body.Read(buf)
				_ = rsp.Body.Close()
			}
		})
	}
}
