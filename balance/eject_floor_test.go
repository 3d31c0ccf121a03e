package balance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// istio/istio#20135, envoyproxy/envoy#2463: that all endpoints are ejected.
func TestFloor(t *testing.T) {
	for name, tt := range map[string]struct {
		n     int
		floor float64
		left  int
	}{
		"one":           {1, 0, 1},
		"two":           {2, 0, 1},
		"half of three": {3, 0, 2},
		"half of ten":   {10, 0, 5},
		"next to none":  {10, 1e-9, 1},
		"tenth":         {10, 0.1, 1},
		"0.07 of 100":   {100, 0.07, 7},
		"all":           {10, 1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, inTurn(balance.OutlierDetection{ConsecutiveFailures: 1, MinReady: tt.floor})...), servers(tt.n)
				for _, s := range ss {
					s.fail(always)
				}
				p.add(ss...)
				assert.Zero(t, p.sends(t, 5*tt.n), "a failure that reached an endpoint is no refusal")
				d := p.Describe().State
				assert.Equal(t, tt.left, d.Get("ready"))
				assert.EqualValues(t, tt.n-tt.left, d.Get("ejections"))
				assert.EqualValues(t, 5*tt.n-(tt.n-tt.left), d.Get("spared"), "each failure is one too many, and what is spared is counted")
			})
		})
	}
}

// Where others refuse, or go, those that are ejected come back, so that nothing
// is refused that could be tried.
func TestRecall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, inTurn(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(6)
		p.add(ss...)
		for _, i := range []int{1, 0, 2} {
			ss[i].fail(always)
			p.sends(t, 6)
			ss[i].fail(never)
			time.Sleep(time.Second)
		}
		require.Equal(t, "ejected/ejected/ejected/ready/ready/ready", p.states(ss))
		for i, want := range []string{
			"ejected/ready/ejected/unready/ready/ready",
			"ready/ready/ejected/unready/unready/ready",
			"ready/ready/ready/unready/unready/unready",
		} {
			ss[3+i].open(false)
			assert.Zero(t, p.sends(t, 6))
			assert.Equal(t, want, p.states(ss), "who was out longest is back first")
		}
		assert.EqualValues(t, 3, p.Describe().State.Get("recalled"))
		for _, s := range ss[3:] {
			s.open(true)
		}
		synctest.Wait()

		for _, s := range ss[:3] {
			s.fail(always)
		}
		p.sends(t, 12)
		require.Equal(t, 3, p.Describe().State.Get("ready"))
		p.remove(ss[3:]...)
		assert.Equal(t, "ready/ready/ejected", p.states(ss[:3]))
		assert.Zero(t, p.sends(t, 10))
	})
}

// A whole outage: everything that is not ejected refuses. Waiters in Ready are
// woken, and the one call that finds out is served.
func TestRecallServesTheRequestInHand(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, inTurn(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 2)
		require.Equal(t, "ejected/ready", p.states(ss))
		ss[0].fail(never)
		ss[1].open(false)
		require.NoError(t, p.send(t.Context()))
		require.NoError(t, layer.Poll(p.balancer))
		assert.Equal(t, "ready/unready", p.states(ss))
	})
}
