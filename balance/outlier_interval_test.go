package balance_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/balance"
)

func TestOutlierInterval(t *testing.T) {
	for name, tt := range map[string]struct {
		e        balance.OutlierDetection
		n        int
		requests int           // for each endpoint
		goodOf   func(int) int // good responses of 1000, by endpoint
		out      int           // ejected endpoints
	}{
		"half of one":        {balance.OutlierDetection{}, 10, 200, except(500, 1), 1},
		"all of one of five": {balance.OutlierDetection{}, 5, 100, except(0, 1), 1},
		"all of one of four": {balance.OutlierDetection{}, 4, 200, except(0, 1), 0},
		"too few requests":   {balance.OutlierDetection{}, 10, 99, except(0, 1), 0},
		"all equal":          {balance.OutlierDetection{}, 10, 200, except(500, 10), 0},
		"envoy#18752":        {balance.OutlierDetection{}, 10, 1000, except(999, 1), 0},
		"envoy#37723":        {balance.OutlierDetection{}, 20, 300, except(990, 1), 0},
		"MinDifference":      {balance.OutlierDetection{MinDifference: 0.01}, 20, 300, except(970, 1), 1},
		"a tenth of one":     {balance.OutlierDetection{}, 10, 300, except(900, 1), 1},
		"two endpoints":      {balance.OutlierDetection{}, 12, 200, except(0, 2), 2},
		"MinReady":           {balance.OutlierDetection{MinReady: 0.95}, 12, 200, except(0, 2), 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				tt.e.Interval = 10 * time.Second
				p, ss := newPool(t, roundRobin(tt.e)...), servers(tt.n)
				for i, s := range ss {
					responses := 0
					s.fail(func() bool { // evenly distributed
						bad := 1000 - tt.goodOf(i)
						responses += bad
						if responses >= 1000 {
							responses -= 1000
							return true
						}
						return false
					})
				}
				p.add(ss...)
				p.sends(t, tt.n*tt.requests)
				assert.Equal(t, tt.n, p.Describe().State.Get("ready"), "before the end of the interval")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				assert.Equal(t, tt.out, strings.Count(p.states(ss), "ejected"))
				assert.Equal(t, tt.out, strings.Count(p.states(ss[:max(tt.out, 1)]), "ejected"), "the failing ones")
			})
		})
	}
}

// except is that all responses are good, but for the first k endpoints.
func except(good, k int) func(int) int {
	return func(i int) int {
		if i < k {
			return good
		}
		return 1000
	}
}

func TestOutlierIntervalCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{Interval: time.Second})...), servers(5)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 500)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, "success rate 0 of 100, mean 80.0 % of 5 endpoints", p.ejection(t, ss[0]).Cause)
	})
}

// An interval starts with no counts.
func TestOutlierIntervalCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{Interval: time.Second})...), servers(5)
		ss[0].fail(always)
		p.add(ss...)
		for range 5 {
			p.sends(t, 5*60)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		assert.Equal(t, 5, p.Describe().State.Get("ready"))
	})
}
