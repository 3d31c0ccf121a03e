package balance_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// through sends 100 requests a second for a minute to ten endpoints with breakers. The
// i-th one fails fails(i) of its requests. It returns the share of good responses and the
// shares of the endpoints.
func through(t *testing.T, breaker layer.BreakerPolicy, fails func(i int) float64, opts ...option) (good float64, shares [10]float64) {
	const n = 6000
	random := seeded()
	p := newPool(t, append(opts, balance.WithRand[*response](random), balance.WithClassifier(layer.DefaultClassifier[*response]))...)
	c := change{State: resolve.StateExists}
	for i, s := range servers(10) {
		s.serve = func(context.Context, string) (*response, error) {
			shares[i] += 1.0 / n
			if float64(random()>>11)/(1<<53) < fails(i) {
				return nil, errors.New("failed")
			}
			return body(""), nil
		}
		e := s.endpoint()
		e.Service = layer.Breaker[string, *response](breaker)(s)
		c.Added = append(c.Added, e)
	}
	p.feed <- c
	<-p.taken
	for range n {
		if p.send(t.Context()) == nil {
			good += 1.0 / n
		}
		time.Sleep(10 * time.Millisecond)
	}
	return good, shares
}

// Rejections by breakers leave at least MinReady endpoints.
func TestBreakersMinReady(t *testing.T) {
	none := layer.BreakerPolicy{ConsecutiveFailures: -1}
	for name, breaker := range map[string]layer.BreakerPolicy{"consecutive": {}, "unified": layer.UnifiedBreaker()} {
		for rule, opts := range map[string][]option{"latency": nil, "in turn": roundRobin(balance.OutlierDetection{})} {
			t.Run(fmt.Sprint(name, "/", rule), func(t *testing.T) {
				quarter := func(int) float64 { return 0.25 }
				var good, without float64
				bubble(t, func(t *testing.T) { good, _ = through(t, breaker, quarter, opts...) })
				bubble(t, func(t *testing.T) { without, _ = through(t, none, quarter, opts...) })
				t.Logf("all fail a quarter: %.1f %% good, %.1f %% without breakers", 100*good, 100*without)
				assert.InDelta(t, without, good, 0.02)

				var shares [10]float64
				bubble(t, func(t *testing.T) {
					good, shares = through(t, breaker, func(i int) float64 { return float64(1 - min(i, 1)) }, opts...)
				})
				t.Logf("one fails always: %.2f %% good", 100*good)
				assert.Greater(t, good, 0.99)
				assert.Less(t, shares[0], 0.01)
			})
		}
	}
}

// While all endpoints fail, their breakers are ignored, so that each gets its share of the requests.
// No request is rejected.
func TestBreakersPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		failed := func(int) float64 {
			if d := time.Since(began); d < 5*time.Second || d >= 30*time.Second {
				return 0
			}
			return 1
		}
		good, shares := through(t, layer.BreakerPolicy{}, failed, roundRobin(balance.OutlierDetection{})...)
		assert.InDelta(t, 35.0/60, good, 0.01)
		sent := 0.0
		for _, share := range shares {
			assert.InDelta(t, 0.1, share, 0.03)
			sent += share
		}
		assert.InDelta(t, 1, sent, 1e-6)
	})
}

// refusing rejects all requests as a breaker, also those with PastBreakers.
type refusing struct{ *server }

func (refusing) Call(context.Context, string) (*response, error) {
	return nil, &layer.Error{Layer: "breaker", Kind: layer.ErrNotReady}
}

func TestBreakersRejectPastBreakers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		c := change{State: resolve.StateExists}
		for _, s := range ss {
			e := s.endpoint()
			e.Service = refusing{s}
			c.Added = append(c.Added, e)
		}
		p.apply(c)
		for _, s := range ss {
			s.open(false)
		}
		require.ErrorIs(t, p.send(t.Context()), layer.ErrNotReady)
		require.ErrorContains(t, p.send(t.Context()), "0 of 4 endpoints ready")
		require.Error(t, layer.Poll(p.balancer))
	})
}

// An endpoint that is not ready for another reason leaves the ready set.
func TestMinReadyOtherRejections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		p.add(ss...)
		for _, s := range ss[1:] {
			s.open(false)
		}
		assert.Zero(t, p.sends(t, 20))
		synctest.Wait()
		assert.Equal(t, 1, p.Describe().State.Get("ready"))
		ss[0].open(false)
		assert.Equal(t, 20, p.sends(t, 20))
		assert.Zero(t, p.Describe().State.Get("ready"))
	})
}
