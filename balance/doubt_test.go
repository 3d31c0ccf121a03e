package balance_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

var (
	errRefused     = errors.New("unavailable")
	errApplication = errors.New("permission denied")
)

// kinds is a classifier like that of a protocol.
func kinds() option {
	return balance.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
		if errors.Is(o.Err, errRefused) {
			return layer.Retryable
		}
		return layer.DefaultClassifier(o)
	})
}

// failing lets s return err for the next n requests, or for all if n is below 0.
func (s *server) failing(n int, err error) *server {
	serve := s.serve
	var failed atomic.Int64
	s.serve = func(ctx context.Context, req string) (*response, error) {
		if n >= 0 && failed.Add(1) > int64(n) {
			return serve(ctx, req)
		}
		time.Sleep(time.Millisecond)
		return nil, err
	}
	return s
}

// failingAtRandom lets s return err with this probability.
func (s *server) failingAtRandom(rate float64, err error) {
	serve := s.serve
	s.serve = func(ctx context.Context, req string) (*response, error) {
		if rand.Float64() < rate {
			time.Sleep(time.Millisecond)
			return nil, err
		}
		return serve(ctx, req)
	}
}

func equalServers(n int) []*server {
	ss := servers(n)
	for _, s := range ss {
		s.after(around(10 * time.Millisecond))
	}
	return ss
}

// One failed call is one failed call: the endpoint is back in less than two seconds, for any
// number of requests per second.
func TestDoubtOneFailure(t *testing.T) {
	for _, every := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, kinds()), equalServers(3)
			p.add(ss...)
			p.load(t, int(5*time.Second/every), every, ss, patient)
			ss[0].failing(1, errRefused)
			p.loadUntilCalled(t, ss, ss[0])
			require.True(t, p.state(ss[0]).Doubted)
			p.load(t, int(2*time.Second/every), every, ss, patient)
			require.False(t, p.state(ss[0]).Doubted, "%v", every)
			if every <= 2*time.Millisecond { // with less traffic, the shares differ by chance
				shares := p.load(t, int(10*time.Second/every), every, ss, patient)
				assert.Greater(t, shares[0], 0.8/3, "%v", every)
			}
		})
	}
}

// The first probe comes after 100 ms, and a success ends the doubt.
func TestDoubtProbes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(3)
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		ss[0].failing(2, errRefused)
		for !p.state(ss[0]).Doubted {
			p.load(t, 1, time.Millisecond, ss, patient)
		}
		calls := ss[0].calls.Load()
		p.load(t, 40, time.Millisecond, ss, patient)
		require.Equal(t, calls, ss[0].calls.Load(), "not in the first 40 ms")
		p.load(t, 100, time.Millisecond, ss, patient)
		require.Equal(t, calls+1, ss[0].calls.Load(), "the probe fails")
		p.load(t, 300, time.Millisecond, ss, patient)
		require.Equal(t, calls+1, ss[0].calls.Load())
		p.load(t, 200, time.Millisecond, ss, patient)
		require.Greater(t, ss[0].calls.Load(), calls+5, "the next probe has succeeded")
	})
}

// A probe is one request, also if many are sent at once.
func TestDoubtOneProbe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(3)
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		ss[0].failing(-1, errRefused)
		p.loadUntilCalled(t, ss, ss[0])
		time.Sleep(time.Second)
		calls := ss[0].calls.Load()
		for range 100 {
			go func() { _ = p.send(context.Background()) }()
		}
		time.Sleep(10 * time.Second)
		require.Equal(t, calls+1, ss[0].calls.Load())
	})
}

// A retry is not a probe, so that a request with a retry does not fail.
func TestDoubtRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(4)
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		ss[0].failing(-1, errRefused)
		ss[1].failing(-1, errRefused)
		p.load(t, 100, 2*time.Millisecond, ss, patient)
		for range 10_000 {
			ctx := layer.WithAttempts(t.Context(), new(layer.Attempts))
			if p.send(ctx) != nil {
				require.NoError(t, p.send(ctx))
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
}

// A new connection is a new start.
func TestDoubtNewConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(3)
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		well := ss[0].serve
		ss[0].failing(-1, errRefused)
		p.load(t, 10_000, 2*time.Millisecond, ss, patient)
		require.Greater(t, p.state(ss[0]).Failures, uint32(5))
		ss[0].serve = well
		ss[0].open(false)
		p.loadUntilRefused(t, ss, ss[0])
		time.Sleep(100 * time.Millisecond)
		ss[0].open(true)
		synctest.Wait()
		require.True(t, p.state(ss[0]).Doubted)
		require.NoError(t, p.send(t.Context()))
		require.False(t, p.state(ss[0]).Doubted, "the first request was a probe")
		shares := p.load(t, 2000, 2*time.Millisecond, ss, patient)
		assert.Greater(t, shares[0], 0.25)
	})
}

// loadUntilRefused sends requests until s has rejected one.
func (p *pool) loadUntilRefused(t *testing.T, ss []*server, s *server) {
	t.Helper()
	for s.refused.Load() == 0 {
		p.load(t, 1, 100*time.Millisecond, ss, patient)
	}
}

// Errors of the application do not move load, if all endpoints have them.
func TestApplicationErrors(t *testing.T) {
	for _, rate := range []float64{0.001, 0.01, 0.1, 0.3} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, kinds()), equalServers(3)
			for _, s := range ss {
				s.failingAtRandom(rate, errApplication)
			}
			p.add(ss...)
			p.load(t, 2000, 2*time.Millisecond, ss, patient)
			shares := p.load(t, 20_000, 2*time.Millisecond, ss, patient)
			most := 1.1
			if rate > 0.01 { // the rates of the endpoints differ by chance
				most = 1.3
			}
			require.Less(t, slices.Max(shares), most/3, "%v: %v", rate, shares)
		})
	}
}

// A rare error of one endpoint does not move load either.
func TestApplicationErrorsOfOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(3)
		ss[0].failingAtRandom(0.003, errApplication)
		p.add(ss...)
		p.load(t, 2000, 2*time.Millisecond, ss, patient)
		shares := p.load(t, 20_000, 2*time.Millisecond, ss, patient)
		require.Less(t, slices.Max(shares), 1.1/3, "%v", shares)
	})
}

// An endpoint with a higher error rate than its peers loses load, and gets it back.
func TestErrorRateOfOne(t *testing.T) {
	for _, n := range []int{2, 3, 10} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, kinds()), equalServers(n)
			well := ss[0].serve
			ss[0].failingAtRandom(0.3, errApplication)
			p.add(ss...)
			p.load(t, 2000, 2*time.Millisecond, ss, patient)
			shares := p.load(t, 10_000, 2*time.Millisecond, ss, patient)
			require.Less(t, shares[0], 0.2/float64(n), "%d: %v", n, shares)
			ss[0].serve = well
			p.load(t, 30_000, 2*time.Millisecond, ss, patient)
			shares = p.load(t, 5000, 2*time.Millisecond, ss, patient)
			require.Greater(t, shares[0], 0.5/float64(n), "%d: %v", n, shares)
		})
	}
}

// Ten of twenty endpoints fail a tenth of their requests. More than half of the endpoints may
// be bad, because the better ones are the measure.
func TestErrorRateOfMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(20)
		for _, s := range ss[:12] {
			s.failingAtRandom(0.1, errApplication)
		}
		p.add(ss...)
		p.load(t, 20_000, time.Millisecond, ss, patient)
		shares := p.load(t, 20_000, time.Millisecond, ss, patient)
		bad := 0.0
		for _, share := range shares[:12] {
			bad += share
		}
		require.Less(t, bad, 0.2, "%v", shares)
	})
}

// A negative penalty turns both rules off.
func TestNoPenalty(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds(), balance.WithPolicy[*response](balance.Policy{Penalty: -1})), equalServers(3)
		ss[0].failing(-1, errRefused)
		p.add(ss...)
		shares := p.load(t, 5000, 2*time.Millisecond, ss, patient)
		require.Greater(t, shares[0], 0.3)
	})
}

// LeastRequest avoids an endpoint that fails fast, too.
func TestDoubtLeastRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds(), balance.WithPolicy[*response](balance.Policy{Cost: balance.LeastRequest})), equalServers(5)
		ss[0].failing(-1, errApplication)
		p.add(ss...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		shares := p.load(t, 10_000, 2*time.Millisecond, ss, patient)
		require.Less(t, shares[0], 0.01)
	})
}

// After an outage of a third of many endpoints, they come back. An aperture has at least eight random
// endpoints, so that a few balancers without any of the third would be a coincidence.
func TestDoubtOutsideAperture(t *testing.T) {
	const balancers = 4
	var during, after float64
	for range balancers {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, kinds()), equalServers(60)
			p.add(ss...)
			p.load(t, 5000, time.Millisecond, ss, patient)
			wells := make([]func(context.Context, string) (*response, error), 20)
			for i, s := range ss[:20] {
				wells[i] = s.serve
				s.failing(-1, errRefused)
			}
			share := func(n int) (sum float64) {
				for _, one := range p.load(t, n, time.Millisecond, ss, patient)[:20] {
					sum += one
				}
				return sum
			}
			share(10_000)
			during += share(5000) / balancers
			for i, s := range ss[:20] {
				s.serve = wells[i]
			}
			share(25_000)
			after += share(5000) / balancers
		})
	}
	require.Less(t, during, 0.02)
	require.Greater(t, after, 0.02)
}

// A deadline below twice the median is enough to find an endpoint that hangs.
func TestHangShortDeadline(t *testing.T) {
	for _, n := range []int{3, 10} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t), equalServers(n)
			for _, s := range ss {
				s.after(around(40 * time.Millisecond))
			}
			p.add(ss...)
			p.load(t, 1000, 4*time.Millisecond, ss, allowing(62*time.Millisecond))
			ss[0].hang()
			p.load(t, 500, 4*time.Millisecond, ss, allowing(62*time.Millisecond))
			shares := p.load(t, 10_000, 4*time.Millisecond, ss, allowing(62*time.Millisecond))
			require.Less(t, shares[0], 0.02)
		})
	}
}

// Deadlines that no endpoint can meet are not failures of the endpoints.
func TestHopelessDeadlines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), equalServers(5)
		p.add(ss...)
		p.load(t, 1000, 4*time.Millisecond, ss, patient)
		shares := p.load(t, 5000, 4*time.Millisecond, ss, allowing(4*time.Millisecond))
		require.Less(t, slices.Max(shares), 0.35, "%v", shares)
	})
}

// With little traffic, few requests go to an endpoint that fails.
func TestDoubtLittleTraffic(t *testing.T) {
	for _, tt := range []struct {
		n     int
		every time.Duration
		most  float64
	}{{5, time.Minute, 0.015}, {5, 20 * time.Second, 0.015}, {5, 5 * time.Second, 0.015}, {16, time.Second, 0.004}} {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t), equalServers(tt.n)
			ss[0].failing(-1, errApplication)
			p.add(ss...)
			shares := p.load(t, 4000, tt.every, ss, patient)
			require.Less(t, shares[0], tt.most, "%v", tt)
		})
	}
}

// With little traffic, a slow endpoint is remembered until the next requests.
func TestSlowLittleTraffic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), equalServers(5)
		ss[0].after(around(time.Second))
		p.add(ss...)
		shares := p.load(t, 2000, time.Minute, ss, patient)
		require.Less(t, shares[0], 0.03)
		require.Positive(t, shares[0])
	})
}

// A slow first response does not keep an endpoint from its share.
func TestSlowFirstSample(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), equalServers(2)
		var warm atomic.Bool
		well := ss[0].serve
		ss[0].serve = func(ctx context.Context, req string) (*response, error) {
			if !warm.Swap(true) {
				time.Sleep(300 * time.Millisecond)
			}
			return well(ctx, req)
		}
		p.add(ss...)
		p.load(t, 6000, 2*time.Millisecond, ss, patient)
		require.Greater(t, p.load(t, 3000, 2*time.Millisecond, ss, patient)[0], 0.4)
	})
}

// Of many endpoints that hang in Ready, one that recovers is soon found.
func TestTurnOfRecovered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1000)
		for _, s := range ss {
			s.open(false)
		}
		p.add(ss...)
		time.Sleep(time.Minute)
		start := time.Now()
		ss[777].isOpen.Store(true) // seen by the next call of Ready
		for p.send(t.Context()) != nil {
			time.Sleep(10 * time.Millisecond)
		}
		require.Less(t, time.Since(start), 9*time.Second)
	})
}
