package balance_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Ready before each Call, as in a queue, does not skip endpoints.
func TestReadyWithRoundRobin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Picker: balance.RoundRobin()})), servers(4)
		p.add(ss...)
		for range 40 {
			require.NoError(t, p.Ready(t.Context()))
			require.NoError(t, p.send(t.Context()))
		}
		for _, s := range ss {
			assert.EqualValues(t, 10, s.calls.Load())
		}
	})
}

// A request that has tried all endpoints of one zone goes to the other one regardless of
// cost.
func TestRetryOtherZone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{Zone: "a"})), servers(2)
		p.apply(change{State: resolve.StateExists, Added: []*endpoint{
			ss[0].labelled(map[string]string{"zone": "a"}), ss[1].labelled(map[string]string{"zone": "b"}),
		}})
		for range 10 {
			tries := new(layer.Attempts)
			ctx := layer.WithAttempts(t.Context(), tries)
			for range 3 {
				require.NoError(t, p.send(ctx))
			}
			require.Equal(t, 2, tries.Len())
		}
		require.EqualValues(t, 20, ss[0].calls.Load(), "the first try, and the third")
		require.EqualValues(t, 10, p.Describe().State.Get("other_zone_picks"))
	})
}

func TestClassifierPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithClassifier(func(layer.Outcome[*response]) layer.Class { panic("unforeseen") })), servers(1)
		p.add(ss...)
		require.Panics(t, func() { _, _ = p.Call(t.Context(), "") })
		require.Zero(t, p.Snapshot()[0].InFlight)
	})
}

func TestPolicyLongTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging(), balance.WithPolicy[*response](balance.Policy{
			Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 2, BaseEjectionTime: time.Second, MaxEjectionTime: math.MaxInt64},
		})), servers(4)
		p.add(ss...)
		ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
		for range 8 {
			_ = p.send(t.Context())
		}
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, "ready", p.of(ss[0]).Get("state"))
	})
}

func TestLongLatencies(t *testing.T) {
	for _, policy := range []balance.Policy{{Penalty: math.MaxInt64}} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, new(verdicts).judging(), balance.WithPolicy[*response](policy)), servers(1)
			ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
			p.add(ss...)
			require.ErrorIs(t, p.send(t.Context()), errBroken)
			require.InDelta(t, 24*time.Hour, p.ewma(ss[0]), float64(time.Minute))
		})
	}
}

// After 52 days the ticks wrap around, and the slow start does not begin again.
func TestSlowStartTicksWrap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithPolicy[*response](balance.Policy{SlowStart: time.Hour})), servers(2)
		p.add(ss[0])
		time.Sleep(2 * time.Hour)
		require.NoError(t, p.send(t.Context()))
		p.add(ss[1])
		const days = time.Duration(1<<32) << 20
		time.Sleep(days - 2*time.Hour + time.Minute)
		require.InDelta(t, days+time.Minute, p.Snapshot()[0].Age, float64(time.Second))
		for range 1000 {
			require.NoError(t, p.send(t.Context()))
		}
		require.InDelta(t, 500, ss[1].calls.Load(), 100)
	})
}

// An endpoint that was examined twice is shown once.
func TestExplainOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(2)
		p.add(ss...)
		ctx, why := layer.Explain(layer.WithAttempts(t.Context(), new(layer.Attempts)))
		for range 3 {
			require.NoError(t, p.send(ctx))
		}
		require.Len(t, why.Choices()[2].Children, 2)
	})
}

// For the race detector.
func TestExplainWhileZonesChange(t *testing.T) {
	b, apply := of(t, 4, balance.WithPolicy[int](balance.Policy{Zone: "a"}))
	var all sync.WaitGroup
	defer all.Wait()
	done := make(chan struct{})
	all.Go(func() {
		defer close(done)
		for i := range 2000 {
			e := intEndpoint(0)
			e.Labels = map[string]string{"zone": string(rune('a' + i%2))}
			apply(intChange{State: resolve.StateExists, Changed: []*discover.Endpoint[int, int]{e}})
		}
	})
	for {
		ctx, _ := layer.Explain(t.Context())
		_, err := b.Call(ctx, 1)
		require.NoError(t, err)
		select {
		case <-done:
			return
		default:
		}
	}
}
