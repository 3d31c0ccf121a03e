package layer_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A share that is as small as one place, and requests that are rare: they find
// room, though the others come at twice the rate that there is room for.
func TestShedServesWhoComesRarely(t *testing.T) {
	for name, tt := range map[string]struct {
		limit            int
		critical         float64 // of what there is room for; with the normal ones it is twice that
		requests         int
		least, leastElse float64 // share served, of the critical ones and of the normal ones
	}{
		"two places":      {2, 0.2, 8_000, 0.78, 0.15},
		"ten places":      {10, 0.02, 20_000, 0.86, 0.38},
		"twenty places":   {20, 0.004, 40_000, 0.86, 0.41},
		"sixty-four":      {64, 0.02, 20_000, 0.93, 0.43},
		"many among them": {64, 0.2, 10_000, 0.93, 0.37},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, 2))
				svc := layer.NewStack[time.Duration, int]().Shed(layer.ShedPolicy{}).Limit(tt.limit).
					Service(layer.Func[time.Duration, int](func(_ context.Context, takes time.Duration) (int, error) {
						time.Sleep(takes)
						return 0, nil
					}))
				var critical, normal shedCount
				var wg sync.WaitGroup
				for range tt.requests {
					time.Sleep(time.Duration(random.ExpFloat64() / float64(2*tt.limit) * float64(time.Second)))
					takes := time.Duration(random.ExpFloat64() * float64(time.Second))
					count, ctx := &normal, t.Context()
					if random.Float64() < tt.critical/2 {
						count, ctx = &critical, layer.WithPriority(ctx, layer.PriorityCritical)
					}
					count.sent.Add(1)
					wg.Go(func() {
						if _, err := svc.Call(ctx, takes); err == nil {
							count.served.Add(1)
						}
					})
				}
				wg.Wait()
				assert.GreaterOrEqual(t, critical.share(), tt.least)
				assert.GreaterOrEqual(t, normal.share(), tt.leastElse)
			})
		})
	}
}

// refill fills the room with normal requests, whatever ceiling there is, until
// it is inner that refuses, and returns how many responses had to end.
func (r *shedRig) refill() (ended int) {
	for {
		if _, by := r.fill(layer.PriorityNormal); by == "limit" {
			return ended
		}
		r.end(1)
		ended++
	}
}

func TestShedKeepsRoomBeforeTheHighestIsRefused(t *testing.T) {
	for _, tt := range []struct {
		slots   int
		ceiling float64
	}{{2, 1}, {3, 2}, {5, 4}, {10, 9}, {100, 90}} {
		r := newShedRig(t, tt.slots)
		require.Equal(t, "admitted", r.send(layer.PriorityCritical))
		r.end(1)
		require.Zero(t, r.refill())
		require.InDelta(t, tt.ceiling, r.state("ceiling_normal"), 0)
		r.end(1)
		require.Equal(t, "shed", r.send(layer.PriorityNormal), "%d places", tt.slots)
		require.Equal(t, "admitted", r.send(layer.PriorityCritical))
	}
}

// A priority leaves room to those that come, not to those that might.
func TestShedKeepsRoomForTheNextThatComes(t *testing.T) {
	r := newShedRig(t, 100)
	require.Equal(t, "admitted", r.send(layer.PriorityCritical))
	r.end(1)
	n, by := r.fill(layer.PriorityBulk)
	require.Equal(t, 100, n)
	require.Equal(t, "limit", by)
	require.InDelta(t, 90, r.state("ceiling_bulk"), 0)
	require.InDelta(t, 90, r.state("ceiling_low"), 0)
	require.InDelta(t, 90, r.state("ceiling_normal"), 0)

	r = newShedRig(t, 100)
	for _, p := range []layer.Priority{layer.PriorityCritical, layer.PriorityNormal} {
		require.Equal(t, "admitted", r.send(p))
		r.end(1)
	}
	r.fill(layer.PriorityBulk)
	require.InDelta(t, 75, r.state("ceiling_bulk"), 0)
	require.InDelta(t, 75, r.state("ceiling_low"), 0)
	require.InDelta(t, 90, r.state("ceiling_normal"), 0)
}

// A ceiling that has come to what there is room for hides from inner that it is
// short, while it keeps nothing free.
func TestShedTakesACeilingAwayThatKeepsNothingFree(t *testing.T) {
	r := newShedRig(t, 10)
	require.Equal(t, "admitted", r.send(layer.PriorityCritical))
	r.end(1)
	require.Zero(t, r.refill())
	require.Equal(t, 20, r.refill(), "from nine to ten by a twentieth each")
	require.InDelta(t, 9, r.state("ceiling_normal"), 0)
}

// With few places, none in flight is no sign that there are plenty.
func TestShedKeepsTheCeilingOfFewPlaces(t *testing.T) {
	r := newShedRig(t, 3)
	require.Equal(t, "admitted", r.send(layer.PriorityCritical))
	r.end(1)
	require.Zero(t, r.refill())
	r.end(3)
	require.InDelta(t, 2.15, r.state("ceiling_normal"), 1e-9)
}

// What keeps room free for who does not come any more ends.
func TestShedForgetsWhoDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShedRig(t, 10)
		require.Equal(t, "admitted", r.send(layer.PriorityCritical))
		r.end(1)
		for minute := range 3 {
			r.refill()
			if minute < 2 {
				require.NotNil(t, r.state("ceiling_normal"), "minute %d", minute)
			} else {
				require.Nil(t, r.state("ceiling_normal"))
			}
			time.Sleep(time.Minute)
		}
	})
}

// Whoever comes is seen, by however many at once.
func TestShedSeesWhoComesAtOnce(t *testing.T) {
	var refusing atomic.Bool
	svc := layer.Shed[int, int](layer.ShedPolicy{})(layer.Func[int, int](func(context.Context, int) (int, error) {
		if refusing.Load() {
			return 0, layer.ErrNotReady
		}
		return 0, nil
	}))
	var wg sync.WaitGroup
	for _, p := range []layer.Priority{layer.PriorityCritical, layer.PriorityNormal, layer.PriorityLow, layer.PriorityBulk} {
		for range 8 {
			wg.Go(func() { _, _ = svc.Call(layer.WithPriority(t.Context(), p), 1) })
		}
	}
	wg.Wait()
	refusing.Store(true)
	_, err := svc.Call(layer.WithPriority(t.Context(), layer.PriorityBulk), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	for _, name := range []string{"bulk", "low", "normal"} {
		require.NotNil(t, layer.Describe(svc).State.Get("ceiling_"+name), name)
	}
}
