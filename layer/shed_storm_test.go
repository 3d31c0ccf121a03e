package layer_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

// shedLoad is how many requests of a priority come in a second.
type shedLoad map[layer.Priority]int

type shedCount struct{ sent, served atomic.Int64 }

// shedStorm sends a load for two seconds through a Shed and what is below it,
// to a server that serves 1000 a second, and counts.
func shedStorm(t *testing.T, below layer.Layer[int, int], load shedLoad) (counts map[layer.Priority]*shedCount, all int64) {
	t.Helper()
	svc := layer.Shed[int, int](layer.ShedPolicy{})(below(
		&adaptiveServer{workers: make(chan struct{}, 20), takes: 20 * time.Millisecond}))
	counts = map[layer.Priority]*shedCount{}
	var wg sync.WaitGroup
	for p, each := range load {
		count := &shedCount{}
		counts[p] = count
		wg.Go(func() {
			ctx := layer.WithPriority(t.Context(), p)
			for range 2 * each {
				count.sent.Add(1)
				wg.Go(func() {
					if _, err := svc.Call(ctx, 1); err == nil {
						count.served.Add(1)
					}
				})
				time.Sleep(time.Second / time.Duration(each))
			}
		})
	}
	wg.Wait()
	for _, c := range counts {
		all += c.served.Load()
	}
	return counts, all
}

func (c *shedCount) share() float64 { return float64(c.served.Load()) / float64(c.sent.Load()) }

func TestShedKeepsRoomForTheHighest(t *testing.T) {
	for name, below := range map[string]layer.Layer[int, int]{
		"a limit":           layer.Limit[int, int](20),
		"an adaptive limit": layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{}),
		"a queue":           layer.NewStack[int, int]().Queue(20, 0).Limit(20).Layer(),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				load := shedLoad{
					layer.PriorityCritical: 97, layer.PriorityNormal: 503, layer.PriorityLow: 499, layer.PriorityBulk: 991,
				}
				counts, all := shedStorm(t, below, load)
				assert.GreaterOrEqual(t, all, int64(1700), "of 2000 that can be served: some room is kept free")
				assert.GreaterOrEqual(t, counts[layer.PriorityCritical].share(), 0.97)
				assert.GreaterOrEqual(t, counts[layer.PriorityNormal].share(), 0.8)
				assert.Greater(t, counts[layer.PriorityNormal].share(), counts[layer.PriorityLow].share())
				assert.Greater(t, counts[layer.PriorityLow].share(), counts[layer.PriorityBulk].share())
			})
		})
	}
}

func TestShedLeavesTheWholeRoomToTheLowestWhereNobodyElseComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, all := shedStorm(t, layer.Limit[int, int](20), shedLoad{layer.PriorityBulk: 1999})
		assert.GreaterOrEqual(t, all, int64(1900))
	})
}

func TestShedHoldsNothingBackWithoutOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, _ := shedStorm(t, layer.Limit[int, int](20), shedLoad{layer.PriorityCritical: 99, layer.PriorityBulk: 501})
		for p, c := range counts {
			assert.InDelta(t, 1, c.share(), 0, p.String())
		}
	})
}
