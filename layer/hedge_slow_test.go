package layer_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// slowPool is a service of 16 endpoints. Each endpoint serves one request at a time to its
// end, even if the request is canceled. A request goes to the shorter of two queues.
type slowPool struct {
	mu     sync.Mutex
	rng    *rand.Rand
	queued [16]int
	served [16]chan struct{}
	took   func(rng *rand.Rand) time.Duration
}

func newSlowPool(seed uint64, took func(rng *rand.Rand) time.Duration) *slowPool {
	p := &slowPool{rng: rand.New(rand.NewPCG(seed, 1)), took: took}
	for i := range p.served {
		p.served[i] = make(chan struct{}, 1)
	}
	return p
}

func (p *slowPool) Ready(context.Context) error { return nil }

func (p *slowPool) Call(ctx context.Context, n int) (int, error) {
	p.mu.Lock()
	i, j := p.rng.IntN(len(p.queued)), p.rng.IntN(len(p.queued))
	if p.queued[j] < p.queued[i] {
		i = j
	}
	p.queued[i]++
	took := p.took(p.rng)
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.served[i] <- struct{}{}
		time.Sleep(took)
		<-p.served[i]
		p.mu.Lock()
		p.queued[i]--
		p.mu.Unlock()
	}()
	select {
	case <-done:
		return n, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// slowP99 returns the p99 latency of the requests that start in a window of 4 s, which
// begins 30 s after the first request. took returns the service time of a request, in that
// window or outside of it.
func slowP99(t *testing.T, perSecond int, took func(rng *rand.Rand, slow bool) time.Duration, hedged bool) time.Duration {
	const warm, window = 30 * time.Second, 4 * time.Second
	var all []time.Duration
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			inWindow := func() bool { since := time.Since(start); return since >= warm && since < warm+window }
			var svc layer.Service[int, int] = newSlowPool(seed, func(rng *rand.Rand) time.Duration { return took(rng, inWindow()) })
			if hedged {
				svc = layer.Hedge[int, int](layer.HedgePolicy[int]{})(svc)
			}
			var mu sync.Mutex
			var wg sync.WaitGroup
			rng := rand.New(rand.NewPCG(seed, 2))
			for time.Since(start) < warm+window {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Second) / float64(perSecond)))
				wg.Go(func() {
					began, counts := time.Now(), inWindow()
					_, err := svc.Call(t.Context(), 1)
					mu.Lock()
					defer mu.Unlock()
					if counts && err == nil {
						all = append(all, time.Since(began))
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Minute) // copies that were cancelled are still served
		})
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// Hedging must not increase the latency if all endpoints are slow. If slow requests are
// random, it must reduce the tail latency.
func TestHedgeSlowEndpoints(t *testing.T) {
	together := func(rng *rand.Rand, slow bool) time.Duration {
		mean := 10 * time.Millisecond
		if slow {
			mean *= 2
		}
		return time.Duration(rng.ExpFloat64() * float64(mean))
	}
	alone := func(rng *rand.Rand, _ bool) time.Duration {
		if rng.IntN(50) == 0 {
			return 200 * time.Millisecond
		}
		return time.Duration(rng.ExpFloat64() * float64(5*time.Millisecond))
	}
	const perSecond = 560
	without, with := slowP99(t, perSecond, together, false), slowP99(t, perSecond, together, true)
	t.Logf("all twice as slow for 4 s: p99 %v, hedged %v", without, with)
	require.LessOrEqual(t, with, without*105/100)

	without, with = slowP99(t, 400, alone, false), slowP99(t, 400, alone, true)
	t.Logf("one request in 50 slow by itself: p99 %v, hedged %v", without, with)
	require.Less(t, with, without*2/3)
}
