package discover_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// fed is a sequence of changes in the background.
type fed struct {
	src     *source
	changed chan int // number of endpoints in a change
}

func feed(b *testing.B) *fed {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &fed{newSource(), make(chan int)}
	over := make(chan struct{})
	b.Cleanup(func() { cancel(); <-over })
	go func() {
		defer close(over)
		svc := layer.Func[string, *response](func(context.Context, string) (*response, error) { return nil, nil })
		mk := func(context.Context, discover.Target) service { return svc }
		for c := range discover.Endpoints(ctx, f.src, "web", mk) {
			f.changed <- len(c.Added) + len(c.Changed) + len(c.Removed)
		}
	}()
	return f
}

// update returns when the changes had n endpoints.
func (f *fed) update(u resolve.Update, n int) {
	f.src.update(u)
	for n > 0 {
		n -= <-f.changed
	}
}

func many(n int) []resolve.Endpoint {
	es := make([]resolve.Endpoint, n)
	for i := range es {
		es[i] = at(i)
	}
	return es
}

// One change among 10 000 endpoints, from the resolver to the consumer.
func BenchmarkOneOfTenThousand(b *testing.B) {
	const n = 10_000
	h2 := at(n / 2)
	h2.Protocol = resolve.H2
	for _, bm := range []struct {
		name        string
		there, back resolve.Update
		tells       int
	}{
		{"add and remove", add(at(n)), remove(n), 1},
		{"labels", add(labelled(n/2, "a")), add(labelled(n/2, "b")), 1},
		{"identity", add(h2), add(at(n / 2)), 2},
	} {
		b.Run(bm.name, func(b *testing.B) {
			f := feed(b)
			f.update(replace(many(n)...), n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					f.update(bm.there, bm.tells)
				} else {
					f.update(bm.back, bm.tells)
				}
			}
		})
	}
}

// All of 10 000 endpoints are added and removed.
func BenchmarkTenThousand(b *testing.B) {
	f, all := feed(b), many(10_000)
	b.ReportAllocs()
	for b.Loop() {
		f.update(replace(all...), len(all))
		f.update(resolve.Update{Kind: resolve.Empty}, len(all))
	}
}
