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
)

// A change during an ejection takes effect after it.
func TestOutlierReturn(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(p *pool, s *server)
		want      any // its state; nil if removed
	}{
		"unchanged": {func(*pool, *server) {}, "ready"},
		"unready":   {func(_ *pool, s *server) { s.open(false) }, "unready"},
		"closed":    {func(_ *pool, s *server) { s.close() }, "closed"},
		"removed":   {func(p *pool, s *server) { p.remove(s) }, nil},
		"relabelled": {func(p *pool, s *server) {
			p.apply(change{Changed: []*endpoint{s.labelled(map[string]string{"zone": "b"})}})
		}, "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
				out := ss[0].fail(always)
				p.add(ss...)
				p.sends(t, 2)
				require.Equal(t, "ejected/ready", p.states(ss))
				tt.meanwhile(p, out)
				calls := out.calls.Load() + out.refused.Load()
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, tt.want, p.of(out).Get("state"))
				assert.Equal(t, calls, out.calls.Load()+out.refused.Load(), "no request during the ejection")
				assert.Zero(t, p.Describe().State.Get("ejected"))
				if tt.want == "unready" {
					out.open(true)
					synctest.Wait()
					assert.Equal(t, "ready", p.of(out).Get("state"))
				}
			})
		})
	}
}

func TestOutlierRemovedAndAdded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1})...), servers(2)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 2)
		p.remove(ss[0])
		p.add(ss[0])
		assert.Equal(t, "ready/ready", p.states(ss))
		p.sends(t, 2)
		assert.Equal(t, 1, p.ejection(t, ss[0]).Times)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, "ready/ready", p.states(ss))
	})
}

// Each endpoint has its own ejection time.
func TestOutlierReturnTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1, MinReady: 0.1, BaseEjectionTime: 10 * time.Second})...), servers(9)
		p.add(ss...)
		start := time.Now()
		for _, s := range ss[:8] {
			s.fail(always)
			p.sends(t, 9)
			s.fail(never)
			time.Sleep(time.Second)
		}
		require.Equal(t, 8, p.Describe().State.Get("ejected"))
		for i, s := range ss[:8] {
			went := time.Duration(i) * time.Second
			until := p.ejection(t, s).Until.Sub(start)
			assert.True(t, went+9*time.Second <= until && until <= went+10*time.Second, until)
			time.Sleep(time.Until(start.Add(until)))
			synctest.Wait()
			assert.Equal(t, "ready", p.of(s).Get("state"))
			assert.LessOrEqual(t, 8-i-1-1, p.Describe().State.Get("ejected"))
		}
	})
}

// A returned endpoint is probed: it gets one request until the response, then two.
func TestOutlierReturnProbes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t,
			balance.WithPolicy[*response](balance.Policy{Penalty: -1, OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 1}}),
			balance.WithClassifier(layer.DefaultClassifier[*response])), servers(2)
		p.add(ss...)
		p.sends(t, 40)
		ss[0].fail(always)
		p.sends(t, 20)
		require.Equal(t, "ejected/ready", p.states(ss))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "ready/ready", p.states(ss))
		for _, s := range ss {
			s.after(func() time.Duration { return time.Second })
		}
		held := func(n int) int64 {
			before := ss[0].calls.Load()
			for range n {
				go func() { _ = p.send(context.Background()) }()
				synctest.Wait()
			}
			return ss[0].calls.Load() - before
		}
		assert.EqualValues(t, 1, held(10))
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 2, held(20))
		time.Sleep(2 * time.Second)
	})
}

func TestOutlierBalancerEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{ConsecutiveFailures: 1, Interval: time.Second})...), servers(4)
		ss[0].fail(always)
		p.add(ss...)
		p.sends(t, 4)
		p.finish()
		assert.Empty(t, p.Snapshot())
		assert.Zero(t, p.Describe().State.Get("ejected"))
		time.Sleep(time.Minute)
		_, err := p.Call(t.Context(), "")
		require.ErrorIs(t, err, layer.ErrClosed)
	})
}
