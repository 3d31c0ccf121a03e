package reqctx_test

import (
	"context"
	"testing"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// BenchmarkTimeout is a time limit on a request, beside that of package
// context: for a leaf that never asks to be woken, for one that does, and for
// one that makes a context below it.
func BenchmarkTimeout(b *testing.B) {
	parent, cancel := context.WithCancel(b.Context())
	defer cancel()
	type leaf struct {
		name string
		use  func(context.Context)
	}
	for _, l := range []leaf{
		{"leaf", func(context.Context) {}},
		{"done", func(ctx context.Context) { ctx.Done() }},
		{"child", func(ctx context.Context) {
			_, stop := context.WithCancel(ctx)
			stop()
		}},
	} {
		b.Run(l.name+"/context", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, stop := context.WithTimeoutCause(parent, time.Second, context.Canceled)
				l.use(ctx)
				stop()
			}
		})
		b.Run(l.name+"/reqctx", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e := reqctx.New(parent, time.Second, context.Canceled)
				l.use(e)
				e.Cancel(nil)
			}
		})
	}
}
