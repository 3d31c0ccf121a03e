package balance_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// An endpoint that fails fast gets few requests, for any load, latency and failure rate
// of the others.
func TestFailingFastMatrix(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		servers     int
		takes, each time.Duration
		background  float64
		requests    int
		most        float64
	}{
		"idle":                {3, 50 * ms, 10 * ms, 0, 3000, 0.01},
		"75 in flight each":   {3, 50 * ms, ms / 3, 0, 6000, 0.01},
		"slow":                {3, time.Second, 20 * ms, 0, 5000, 0.01},
		"very slow":           {3, 10 * time.Second, 200 * ms, 0, 3000, 0.05},
		"0.1 % fail anywhere": {10, 20 * ms, ms, 0.001, 6000, 0.01},
		"1 % fail anywhere":   {10, 20 * ms, ms, 0.01, 6000, 0.01},
		"5 % fail anywhere":   {10, 20 * ms, 10 * ms, 0.05, 5000, 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, new(verdicts).judging()), servers(tt.servers)
				for _, s := range ss {
					well := s.after(func() time.Duration { return tt.takes }).serve
					s.serve = func(ctx context.Context, q string) (*response, error) {
						if rsp, err := well(ctx, q); rand.Float64() >= tt.background {
							return rsp, err
						}
						return nil, errBroken
					}
				}
				p.add(ss...)
				p.load(t, tt.requests, tt.each, ss, patient)
				ss[0].serve = func(context.Context, string) (*response, error) {
					time.Sleep(ms)
					return nil, errBroken
				}
				require.Less(t, p.load(t, tt.requests, tt.each, ss, patient)[0], tt.most)
			})
		})
	}
}

// An endpoint is failing from its second failure in a row to its next good response, and
// Explain shows it.
func TestFailing(t *testing.T) {
	var v verdicts
	for name, fails := range map[string]func() (*response, error){
		"by an error":    func() (*response, error) { return nil, errBroken },
		"by its trailer": func() (*response, error) { return v.failing(&v.trailer), nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, v.judging()), servers(1)
				p.add(ss...)
				var failures int
				explained := func() any {
					ctx, why := layer.Explain(t.Context())
					_ = p.send(ctx)
					return why.Choices()[0].Children[0].State.Get("consecutive_failures")
				}
				ss[0].serve = func(context.Context, string) (*response, error) {
					if failures--; failures >= 0 {
						return fails()
					}
					return body("well"), nil
				}
				failures = 1
				require.Equal(t, []any{nil, nil, nil}, []any{explained(), explained(), explained()}, "one failure may be bad luck")
				failures = 2
				require.Equal(t, []any{nil, nil, uint32(2), nil}, []any{explained(), explained(), explained(), explained()})
			})
		})
	}
}

// Rare failures of all endpoints do not hide a slow one.
func TestSlowEndpointAmongFailing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging()), servers(10)
		for i, s := range ss {
			takes := 5 * time.Millisecond
			if i == 0 {
				takes = 105 * time.Millisecond
			}
			well := s.after(func() time.Duration { return takes }).serve
			s.serve = func(ctx context.Context, q string) (*response, error) {
				if rsp, err := well(ctx, q); rand.Float64() >= 0.001 {
					return rsp, err
				}
				return nil, errBroken
			}
		}
		p.add(ss...)
		p.load(t, 10_000, time.Millisecond, ss, patient)
		require.Less(t, p.load(t, 20_000, time.Millisecond, ss, patient)[0], 0.01)
		for _, s := range ss {
			require.Less(t, p.ewma(s), 500*time.Millisecond)
		}
	})
}

// If all endpoints have failed, the first one that recovers does not get all requests.
func TestAllFailing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, new(verdicts).judging()), servers(10)
		var down atomic.Bool
		for _, s := range ss {
			s.serve = func(context.Context, string) (*response, error) {
				if down.Load() {
					time.Sleep(time.Millisecond)
					return nil, errBroken
				}
				time.Sleep(20 * time.Millisecond)
				return body("well"), nil
			}
		}
		p.add(ss...)
		p.load(t, 500, 10*time.Millisecond, ss, patient)
		down.Store(true)
		p.load(t, 2000, 10*time.Millisecond, ss, patient)
		down.Store(false)
		shares := p.load(t, 500, 10*time.Millisecond, ss, patient)
		assert.Less(t, slices.Max(shares), 0.4)
	})
}

// An endpoint that is ten times as slow as the others leaves the aperture.
func TestSlowEndpointLeavesAperture(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(40)
		takes := make([]time.Duration, len(ss))
		for i, s := range ss {
			takes[i] = 5 * time.Millisecond
			s.after(func() time.Duration { return takes[i] })
		}
		p.add(ss...)
		isOutside := func(s *server) bool { return p.of(s).Get("outside_aperture") != nil }
		slow := slices.IndexFunc(ss, func(s *server) bool { return !isOutside(s) })
		takes[slow] = 49 * time.Millisecond
		p.load(t, 5000, 10*time.Millisecond, ss, patient)
		require.False(t, isOutside(ss[slow]), "nine times as slow")
		takes[slow] = time.Second
		for range 20 {
			p.load(t, 500, 10*time.Millisecond, ss, patient)
		}
		require.True(t, isOutside(ss[slow]))
	})
}
