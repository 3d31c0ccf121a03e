package balance_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

type intChange = discover.Change[int, int]

func echo(_ context.Context, req int) (int, error) { return req, nil }

func intEndpoint(i int) *discover.Endpoint[int, int] {
	return &discover.Endpoint[int, int]{
		Endpoint: resolve.Endpoint{ID: resolve.ID{Addr: newServer(i).addr}}, Service: layer.Func[int, int](echo),
	}
}

// of returns a balancer over n endpoints, and a function that applies changes.
func of(tb testing.TB, n int, opts ...balance.Option[int]) (b *balance.Balancer[int, int], apply func(intChange)) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	feed, taken := make(chan intChange), make(chan struct{})
	tb.Cleanup(func() { cancel(); close(feed) })
	b = balance.New(ctx, balance.Config{Target: "web"}, func(yield func(intChange) bool) {
		for c := range feed {
			if !yield(c) {
				return
			}
			taken <- struct{}{}
		}
	}, opts...)
	apply = func(c intChange) { feed <- c; <-taken }
	c := intChange{State: resolve.StateExists}
	for i := range n {
		c.Added = append(c.Added, intEndpoint(i))
	}
	apply(c)
	return b, apply
}

func TestPickAllocatesNothing(t *testing.T) {
	b, _ := of(t, 10)
	ctx := context.Background()
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = b.Call(ctx, 1) }))
}

// known is of with endpoints that have samples.
func known(b *testing.B, n int, opts ...balance.Option[int]) *balance.Balancer[int, int] {
	b.Helper()
	svc, _ := of(b, n, opts...)
	for range 8 * n {
		_, _ = svc.Call(context.Background(), 1)
	}
	runtime.GC()
	return svc
}

// One pick, a call of a service that does nothing, and its completion, with two clock
// readings.
func BenchmarkPick(b *testing.B) {
	ctx := context.Background()
	accrual := []balance.Option[int]{
		balance.WithClassifier[int](layer.DefaultClassifier[int]), balance.WithPolicy[int](balance.Policy{OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 5}}),
	}
	for _, n := range []int{2, 10, 16, 100, 10_000, 100_000} {
		svc := known(b, n)
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := svc.Call(ctx, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("n=%d/par", n), func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := svc.Call(ctx, 1); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
	for _, n := range []int{2, 100, 100_000} {
		svc := known(b, n, accrual...)
		b.Run(fmt.Sprintf("n=%d/accrual", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(ctx, 1)
			}
		})
	}
	b.Run("n=100/choices=2", func(b *testing.B) {
		svc := known(b, 100, balance.WithPolicy[int](balance.Policy{Picker: balance.PowerOfChoices(2)}))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(ctx, 1)
		}
	})
	b.Run("n=100/observed", func(b *testing.B) {
		svc := known(b, 100, balance.WithCompletion(layer.AtReturn[int]))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(ctx, 1)
		}
	})
}

// One endpoint added to or removed from n, from another goroutine.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{10, 100, 10_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			_, apply := of(b, n)
			one := []*discover.Endpoint[int, int]{intEndpoint(60_000)}
			add := intChange{State: resolve.StateExists, Added: one}
			remove := intChange{State: resolve.StateExists, Removed: one}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					apply(add)
				} else {
					apply(remove)
				}
			}
		})
	}
}

// One of n endpoints rejects a request and is ready again.
func BenchmarkRejection(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			svc, apply := of(b, n)
			c := intChange{State: resolve.StateExists}
			for i := range n {
				c.Removed = append(c.Removed, intEndpoint(i))
			}
			apply(c)
			full := layer.Limit[int, int](0)(layer.Func[int, int](echo))
			c = intChange{State: resolve.StateExists}
			for i := range n {
				e := intEndpoint(i)
				e.Service = flapping{full}
				c.Added = append(c.Added, e)
			}
			apply(c)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
	}
}

// flapping is ready, but rejects requests.
type flapping struct{ layer.Service[int, int] }

func (flapping) Ready(context.Context) error { return nil }

// cell is the least state of an endpoint, in its own cache line.
type cell struct {
	inFlight atomic.Int64
	latency  atomic.Uint64 // the bits of a float64
	at       atomic.Int64
	_        [40]byte
}

func (c *cell) cost() float64 {
	return math.Float64frombits(c.latency.Load()) * float64(c.inFlight.Load()+1)
}

// least returns the cheapest of k cells, from i by a stride.
func least(cells []cell, i, stride, k int) *cell {
	best := &cells[i]
	its := best.cost()
	for range k - 1 {
		if i += stride; i >= len(cells) {
			i -= len(cells)
		}
		if c := &cells[i]; c.cost() < its {
			best, its = c, c.cost()
		}
	}
	return best
}

// The least work of a pick among as many endpoints as the default examines: two clock
// readings, the costs and an average. The cells are contiguous, without a set,
// weight, failure or service.
func BenchmarkBound(b *testing.B) {
	for _, n := range []int{2, 10, 16, 100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			cells, k, start := make([]cell, n), n, time.Now()
			if n > 16 {
				k = 5
			}
			for b.Loop() {
				random := rand.Uint64()
				i, stride := int(uint64(uint32(random))*uint64(n)>>32), 1
				if n > 16 {
					stride += int(random >> 32 * uint64(n-1) >> 32)
				}
				c := least(cells, i, stride, k)
				c.inFlight.Add(1)
				began := time.Since(start)
				now := time.Since(start)
				took, old := float64(now-began), math.Float64frombits(c.latency.Load())
				if took < old {
					w := math.Exp(-float64(int64(now)-c.at.Load()) / 1e10)
					took = old*w + took*(1-w)
				}
				c.latency.Store(math.Float64bits(took))
				c.at.Store(int64(now))
				c.inFlight.Add(-1)
			}
		})
	}
}
