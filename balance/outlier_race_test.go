package balance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Concurrent failures, rejections, changes and ejections. At no time is an endpoint
// ejected while none is ready, and all return in the end.
func TestOutlierConcurrent(t *testing.T) {
	b, apply := of(t, 10,
		balance.WithPolicy[int](balance.Policy{Picker: balance.RoundRobin(), Penalty: -1, OutlierDetection: balance.OutlierDetection{
			ConsecutiveFailures: 2, Interval: time.Millisecond, RequestVolume: 1, BaseEjectionTime: time.Millisecond, MaxEjectionTime: 2 * time.Millisecond,
		}}),
		balance.WithClassifier(layer.DefaultClassifier[int]))
	var shut atomic.Bool
	c := intChange{State: resolve.StateExists}
	for i := range 10 {
		c.Removed = append(c.Removed, intEndpoint(i))
		e := intEndpoint(i)
		e.ID.Addr = newServer(100 + i).addr
		limit := layer.Limit[int, int](2)(layer.Func[int, int](func(context.Context, int) (int, error) {
			if shut.Load() || i < 7 && rand.Uint32()%2 == 0 {
				return 0, errBroken
			}
			return 0, nil
		}))
		e.Service = limit
		c.Added = append(c.Added, e)
	}
	apply(c)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				if _, err := b.Call(context.Background(), 0); errors.Is(err, layer.ErrNotReady) {
					waitReady(t, b)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 300 {
			one := []*discover.Endpoint[int, int]{intEndpoint(i % 3)}
			apply(intChange{State: resolve.StateExists, Added: one})
			shut.Store(i%50 < 10)
			look(t, b)
			apply(intChange{State: resolve.StateExists, Removed: one})
		}
	})
	all.Wait()
	shut.Store(false)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		assert.Equal(t, 10, b.Describe().State.Get("ready"), "all endpoints return")
	}, 30*time.Second, time.Millisecond)
	assert.NotZero(t, b.Describe().State.Get("ejections"))
}

func look(t *testing.T, b *balance.Balancer[int, int]) {
	states := make(map[string]int)
	for _, s := range b.Snapshot() {
		states[s.State]++
	}
	if states["ejected"] > 0 {
		assert.Positive(t, states["ready"], fmt.Sprint(states))
	}
}

func TestOutlierAllocatesNothing(t *testing.T) {
	b, _ := of(t, 10, balance.WithPolicy[int](balance.Policy{OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 5, Interval: time.Hour}}),
		balance.WithClassifier(layer.DefaultClassifier[int]))
	require.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = b.Call(context.Background(), 1) }))
}

// The cost of outlier detection for a successful request.
func BenchmarkOutlierDetection(b *testing.B) {
	for _, bench := range []struct {
		name string
		e    balance.OutlierDetection
	}{
		{"none", balance.OutlierDetection{}},
		{"consecutive", balance.OutlierDetection{ConsecutiveFailures: 5}},
		{"interval", balance.OutlierDetection{Interval: 10 * time.Second}},
		{"both", balance.OutlierDetection{ConsecutiveFailures: 5, Interval: 10 * time.Second}},
	} {
		svc, _ := of(b, 100, balance.WithPolicy[int](balance.Policy{OutlierDetection: bench.e}), balance.WithClassifier(layer.DefaultClassifier[int]))
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
		b.Run(bench.name+"/par", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = svc.Call(context.Background(), 1)
				}
			})
		})
	}
}
