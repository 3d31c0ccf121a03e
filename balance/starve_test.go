package balance_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// stream sends n requests at a rate and does not wait for them.
func (p *pool) stream(n int, every time.Duration) {
	for range n {
		go func() { _ = p.send(context.Background()) }()
		time.Sleep(every)
	}
}

// A new endpoint with a long first request gets further probes and its share.
func TestProbeLongFirstRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[:4]...)
		p.load(t, 5000, time.Millisecond, ss, patient)
		quick := ss[4].serve
		var later atomic.Bool
		ss[4].serve = func(ctx context.Context, req string) (*response, error) {
			if !later.Swap(true) {
				time.Sleep(30 * time.Minute)
				return body("long"), nil
			}
			return quick(ctx, req)
		}
		p.add(ss[4])
		const n = 20_000
		p.stream(n, time.Second/2000)
		assert.Greater(t, float64(ss[4].calls.Load())/n, 0.1, "of a fifth")
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, p.of(ss[4]).Get("in_flight"), "the long one")
		time.Sleep(time.Hour)
	})
}

// Requests from before an ejection do not prevent probes after it.
func TestProbeOldRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t,
			balance.WithPolicy[*response](balance.Policy{Penalty: -1, OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3}}),
			balance.WithClassifier(layer.DefaultClassifier[*response])), servers(4)
		for _, s := range ss[1:] {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[0].hang())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			go func() { _, _ = p.Call(ctx, "") }()
			synctest.Wait()
		}
		p.add(ss[1:]...)
		ss[0].fail(always)
		p.stream(4000, time.Second/1000)
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
		ss[0].after(around(10 * time.Millisecond))
		time.Sleep(time.Minute)
		before := ss[0].calls.Load()
		p.stream(4000, time.Second/1000)
		assert.Greater(t, float64(ss[0].calls.Load()-before)/4000, 0.05, "of a quarter, with two that go on")
		cancel()
		time.Sleep(time.Second)
	})
}

// A new endpoint that hangs gets a request now and then only.
func TestProbeHangingEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(5)
		for _, s := range ss {
			s.after(around(10 * time.Millisecond))
		}
		p.add(ss[:4]...)
		p.load(t, 5000, time.Millisecond, ss, patient)
		ctx, cancel := context.WithCancel(context.Background())
		ss[4].hang()
		p.add(ss[4])
		for i, calls := range []int64{1, 2, 3} {
			// the median is 10 ms, or a little more after a peak
			for range 250 {
				go func() { _ = p.send(ctx) }()
				time.Sleep(time.Millisecond)
			}
			assert.LessOrEqual(t, ss[4].calls.Load(), calls+1, i)
			assert.GreaterOrEqual(t, ss[4].calls.Load(), min(calls, 2), i)
		}
		for range 60_000 {
			go func() { _ = p.send(ctx) }()
			time.Sleep(time.Millisecond)
		}
		t.Logf("%d requests of 60 000 in a minute", ss[4].calls.Load())
		assert.Less(t, ss[4].calls.Load(), int64(20), "no more than others have in flight")
		cancel()
		time.Sleep(time.Second)
	})
}
