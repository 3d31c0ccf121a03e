package balance_test

import (
	"context"
	"testing"

	"github.com/go-kit/kit/metrics"
	"github.com/go-kit/kit/metrics/discard"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

// undeclared is a counter without its label: go-kit's Prometheus panics when it is
// written.
type undeclared struct{ bound bool }

func (undeclared) With(...string) metrics.Counter { return undeclared{bound: true} }

func (u undeclared) Add(float64) {
	if u.bound {
		panic("inconsistent label cardinality")
	}
}

// A missing label panics in the constructor and not on a goroutine of the balancer.
func TestMetricsMissingLabel(t *testing.T) {
	never := func(func(discover.Change[string, *response]) bool) {}
	for name, i := range map[string]balance.Instruments{
		"updates":   {Updates: undeclared{}},
		"ejections": {Ejections: undeclared{}},
	} {
		require.PanicsWithValue(t, "inconsistent label cardinality", func() {
			balance.New(t.Context(), balance.Config{Target: "web"}, never, balance.WithMetrics[*response](i))
		}, name)
	}
}

func TestMetricsSeries(t *testing.T) {
	never := func(func(discover.Change[string, *response]) bool) {}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	updates, ejections := seen{}, seen{}
	b := balance.New(ctx, balance.Config{Target: "web"}, never, balance.WithMetrics[*response](balance.Instruments{
		Updates: updates, Ejections: ejections, Endpoints: discard.NewGauge(),
	}))
	require.Equal(t, seen{"Reset": 0, "Add": 0, "Remove": 0}, updates)
	require.Equal(t, seen{"consecutive": 0, "outlier": 0}, ejections)
	cancel()
	_, err := b.Call(t.Context(), "x")
	require.ErrorIs(t, err, layer.ErrNotReady)
}

// seen has a series for each written value of the label.
type seen map[string]float64

func (s seen) With(labels ...string) metrics.Counter { return series{s, labels[1]} }
func (s seen) Add(float64)                           { panic("the label was not bound") }

type series struct {
	of    seen
	value string
}

func (s series) With(...string) metrics.Counter { return s }
func (s series) Add(delta float64)              { s.of[s.value] += delta }
