package profiles_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// budgetShown is a gauge.
type budgetShown struct {
	mu sync.Mutex
	v  float64
}

func (g *budgetShown) With(...string) metrics.Gauge { return g }

func (g *budgetShown) Set(v float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.v = v
}

func (g *budgetShown) Add(d float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.v += d
}

func (g *budgetShown) now() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.v
}

// A route shows the budget that it has, and none where it has none.
func TestBudgetGauge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		shown := &budgetShown{}
		bs := &backends{}
		var source profiles.Static
		set := func(p *profiles.Profile) { source.Set(target, p) }
		limited := &profiles.Profile{Routes: []profiles.Route{{Name: "r", Match: profiles.Path("/.*"), AttemptTimeout: time.Second}}}
		set(limited)
		config := profiles.Config{Target: target, Source: &source, Metrics: func(profiles.Route) (a, b layer.Instruments) { a.Budget = shown; return a, b }}
		r := profiles.New(ctx, config, access{}, bs.mk, standard())
		use := func() {
			synctest.Wait()
			_, err := r.Call(ctx, get)
			require.NoError(t, err)
		}
		use()
		require.Zero(t, shown.now(), "it sends nothing again")
		set(retryable())
		use()
		require.Positive(t, shown.now())
		without := *retryable()
		without.RetryBudget = nil
		set(&without)
		use()
		require.Zero(t, shown.now())
	})
}
