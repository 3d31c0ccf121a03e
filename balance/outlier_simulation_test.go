package balance_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// seeded returns a reproducible source of random numbers.
func seeded() func() uint64 {
	var mu sync.Mutex
	source := rand.NewPCG(4, 2)
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return source.Uint64()
	}
}

// outcome is the result of a minute with a hundred requests a second.
type outcome struct {
	failed, rejected, toBad float64 // shares
	leastReady              int
	ejections, skipped      uint64
}

func (o outcome) String() string {
	return fmt.Sprintf("%5.2f %% failed, %5.2f %% sent to failing endpoints, %d rejected; %d ejected, %d skipped, at least %d ready",
		100*o.failed, 100*o.toBad, int(o.rejected), o.ejections, o.skipped, o.leastReady)
}

// simulate sends the requests to ten endpoints, of which some fail a share of theirs.
func simulate(t *testing.T, bad int, share float64, policy balance.Policy) outcome {
	random := seeded()
	p, ss := newPool(t, balance.WithPolicy[*response](policy), balance.WithClassifier(layer.DefaultClassifier[*response]),
		balance.WithRand[*response](random)), servers(10)
	for _, s := range ss[:bad] {
		s.fail(func() bool { return float64(random()>>11)/(1<<53) < share })
	}
	p.add(ss...)
	o := outcome{leastReady: 10}
	const n = 6000
	for i := range n {
		err := p.send(t.Context())
		switch {
		case errors.Is(err, layer.ErrNotReady):
			o.rejected++
		case err != nil:
			o.failed += 1.0 / n
		}
		if i%20 == 0 {
			o.leastReady = min(o.leastReady, p.Describe().State.Get("ready").(int))
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, s := range ss[:bad] {
		o.toBad += float64(s.calls.Load()) / n
	}
	d := p.Describe().State
	o.ejections, _ = d.Get("ejections").(uint64)
	o.skipped, _ = d.Get("ejections_skipped").(uint64)
	return o
}

// The effect of outlier detection, without and with the penalty. The figures are logged.
func TestOutlierSimulation(t *testing.T) {
	rules := balance.OutlierDetection{ConsecutiveFailures: 5, Interval: 10 * time.Second}
	for _, tt := range []struct {
		name  string
		bad   int
		share float64
		most  float64 // the greatest share of failures with ejection only
		ready int     // the least number of ready endpoints
	}{
		{"one of ten fails half", 1, 0.5, 0.015, 9},
		{"one of ten fails", 1, 1, 0.005, 9},
		{"all fail", 10, 1, 1, 5},
		{"seven of ten fail", 7, 1, 0.45, 5}, // two of the five that MinReady leaves
	} {
		t.Run(tt.name, func(t *testing.T) {
			policies := map[string]balance.Policy{
				"nothing":  {Penalty: -1},
				"ejection": {Penalty: -1, OutlierDetection: rules},
				"penalty":  {},
				"both":     {OutlierDetection: rules},
			}
			got := make(map[string]outcome)
			for name, policy := range policies {
				bubble(t, func(t *testing.T) { got[name] = simulate(t, tt.bad, tt.share, policy) })
			}
			for _, name := range []string{"nothing", "ejection", "penalty", "both"} {
				t.Logf("%-8s %v", name, got[name])
				assert.Zero(t, got[name].rejected)
				assert.GreaterOrEqual(t, got[name].leastReady, tt.ready)
			}
			assert.InDelta(t, float64(tt.bad)/10*tt.share, got["nothing"].failed, 0.02)
			assert.LessOrEqual(t, got["ejection"].failed, tt.most+1e-6)
			assert.Equal(t, tt.ready, got["ejection"].leastReady)
			assert.LessOrEqual(t, got["both"].failed, got["penalty"].failed+0.001)
		})
	}
}
