package balance_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
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

// While the other endpoints are busy, an endpoint that breakers or ejections keep out gets no
// requests that the others reject.
func TestMinReadyOverload(t *testing.T) {
	type service = layer.Service[string, *response]
	breaker := layer.Breaker[string, *response](layer.BreakerPolicy{})
	limit := layer.Limit[string, *response](10)
	for name, tt := range map[string]struct {
		stack layer.Layer[string, *response]
		opts  []option
	}{
		"breaker":              {func(s service) service { return breaker(limit(s)) }, []option{balance.WithClassifier(layer.DefaultClassifier[*response])}},
		"breaker, round robin": {func(s service) service { return breaker(limit(s)) }, roundRobin(balance.OutlierDetection{})},
		"ejection":             {limit, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 5})},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, tt.opts...), servers(4)
				c := change{State: resolve.StateExists}
				for _, s := range ss {
					e := s.after(func() time.Duration { return 100 * time.Millisecond }).endpoint()
					e.Service = tt.stack(s)
					c.Added = append(c.Added, e)
				}
				ss[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
				p.apply(c)
				shares := p.load(t, 6000, time.Second/600, ss, patient) // the others can serve 300 a second
				assert.Less(t, shares[0], 0.01)
				assert.Greater(t, shares[1]+shares[2]+shares[3], 0.45)
			})
		})
	}
}

// If the last busy endpoint becomes idle and still rejects requests, the ejected ones return.
func TestMinReadyNoneBusy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
		p.add(ss...)
		ss[0].fail(always)
		p.sends(t, 2)
		ss[1].after(func() time.Duration { return time.Second })
		go func() { _ = p.send(context.Background()) }()
		synctest.Wait()
		ss[1].open(false)
		_, err := p.Call(t.Context(), "")
		require.EqualError(t, err, "balance web 10.0.0.2:80: not ready: 0 of 2 endpoints ready: server: not ready: shut")
		require.Equal(t, "ejected/unready", p.states(ss))
		waited := make(chan error)
		go func() { waited <- p.Ready(context.Background()) }()
		require.NoError(t, <-waited)
		require.Equal(t, "ready/unready", p.states(ss))
	})
}

// A failing endpoint is ejected also if it is at its limit whenever a response ends.
func TestOutlierBusy(t *testing.T) {
	const interval = 10*time.Second + time.Millisecond // no response ends at this time
	for name, detection := range map[string]balance.OutlierDetection{
		"consecutive": {ConsecutiveFailures: 5}, "success rate": {Interval: interval, RequestVolume: 20},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(detection)...), servers(6)
				c := change{State: resolve.StateExists}
				for i, s := range ss {
					s.serve = func(context.Context, string) (*response, error) {
						if time.Sleep(100 * time.Millisecond); i == 0 {
							return nil, errBroken
						}
						return body(""), nil
					}
					e := s.endpoint()
					e.Service = layer.Limit[string, *response](1)(s)
					c.Added = append(c.Added, e)
				}
				p.apply(c)
				p.load(t, 1200, time.Second/100, ss, patient) // the endpoints can serve 60 a second
				assert.Equal(t, "ejected/", p.states(ss)[:8])
			})
		})
	}
}
