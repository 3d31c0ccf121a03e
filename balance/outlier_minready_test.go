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

// istio/istio#20135, envoyproxy/envoy#2463: all endpoints are ejected.
func TestOutlierMinReady(t *testing.T) {
	for name, tt := range map[string]struct {
		n     int
		floor float64
		left  int
	}{
		"one":           {1, 0, 1},
		"two":           {2, 0, 1},
		"half of three": {3, 0, 2},
		"half of ten":   {10, 0, 5},
		"nearly 0":      {10, 1e-9, 1},
		"tenth":         {10, 0.1, 1},
		"0.07 of 100":   {100, 0.07, 7},
		"all":           {10, 1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1, MinReady: tt.floor})...), servers(tt.n)
				for _, s := range ss {
					s.fail(always)
				}
				p.add(ss...)
				assert.Zero(t, p.sends(t, 5*tt.n), "a failure is not a rejection")
				d := p.Describe().State
				assert.Equal(t, tt.left, d.Get("ready"))
				assert.EqualValues(t, tt.n-tt.left, d.Get("ejections"))
				assert.EqualValues(t, 5*tt.n-(tt.n-tt.left), d.Get("ejections_skipped"), "each other failure")
			})
		})
	}
}

// If all other endpoints reject or are removed, the ejected ones return.
func TestOutlierNoneReady(t *testing.T) {
	for name, end := range map[string]func(p *pool, others []*server){
		"unready": func(_ *pool, others []*server) {
			for _, s := range others {
				s.open(false)
			}
		},
		"removed": func(p *pool, others []*server) { p.remove(others...) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(6)
				p.add(ss...)
				for _, s := range ss[:3] {
					s.fail(always)
					p.sends(t, 6)
					s.fail(never)
				}
				require.Equal(t, "ejected/ejected/ejected/ready/ready/ready", p.states(ss))
				end(p, ss[3:])
				assert.Zero(t, p.sends(t, 6), "rejected")
				assert.Equal(t, "ready/ready/ready", p.states(ss[:3]))
				require.NoError(t, layer.Poll(p.balancer))
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Equal(t, "ready/ready/ready", p.states(ss[:3]), "after the time of the ejection")
				assert.Zero(t, p.Describe().State.Get("ejected"))
			})
		})
	}
}
