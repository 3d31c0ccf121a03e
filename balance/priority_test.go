package balance_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// place is the priority and the locality of some servers.
type place struct {
	priority uint32
	locality string
	weight   uint32
	ss       []*server
}

// addAt adds servers with their places.
func (p *pool) addAt(places ...place) (all []*server) {
	c := change{State: resolve.StateExists}
	for _, at := range places {
		for _, s := range at.ss {
			e := s.endpoint()
			e.Priority, e.Locality, e.LocalityWeight = at.priority, at.locality, at.weight
			c.Added = append(c.Added, e)
			all = append(all, s)
		}
	}
	p.apply(c)
	return all
}

// inPlaces returns the sum of the shares of the servers in each place.
func inPlaces(shares []float64, places ...place) (sums []float64) {
	i := 0
	for _, at := range places {
		sum := 0.0
		for range at.ss {
			sum += shares[i]
			i++
		}
		sums = append(sums, sum)
	}
	return sums
}

// Requests go to the next priority if too few endpoints of the first one are ready, in the proportion
// that Envoy documents, and come back.
func TestPriorities(t *testing.T) {
	for name, policy := range map[string]balance.Policy{
		"default": {}, "round robin": {Picker: balance.RoundRobin()}, "least request": {Cost: balance.LeastRequest}, "hash": {Picker: balance.ConsistentHash(0)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPool(t, kinds(), balance.WithPolicy[*response](policy))
				ss := equalServers(20)
				places := []place{{priority: 1, ss: ss[10:]}, {ss: ss[:10]}}
				all := p.addAt(places...)
				share := func() float64 {
					return inPlaces(p.load(t, 3000, 2*time.Millisecond, all, patient), places...)[0]
				}
				require.Zero(t, share())
				for _, s := range ss[:2] {
					s.open(false)
				}
				p.load(t, 100, 2*time.Millisecond, all, patient)
				require.Zero(t, share(), "eight of ten are enough")
				for _, s := range ss[2:5] {
					s.open(false)
				}
				p.load(t, 100, 2*time.Millisecond, all, patient)
				require.InDelta(t, 0.3, share(), 0.04)
				for _, s := range ss[5:10] {
					s.open(false)
				}
				p.load(t, 100, 2*time.Millisecond, all, patient)
				require.InDelta(t, 1, share(), 1e-9)
				for _, s := range ss[:10] {
					s.open(true)
				}
				synctest.Wait()
				require.Zero(t, share())
			})
		})
	}
}

// If all endpoints of a priority fail, the next one gets the requests. Probes find the end of the outage.
func TestPriorityFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(6)
		places := []place{{ss: ss[:3]}, {priority: 1, locality: "far", ss: ss[3:]}}
		p.addAt(places...)
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		well := ss[0].serve
		for _, s := range ss[:3] {
			s.failing(-1, errRefused)
		}
		p.load(t, 1000, 2*time.Millisecond, ss, patient)
		sums := inPlaces(p.load(t, 5000, 2*time.Millisecond, ss, patient), places...)
		require.Less(t, sums[0], 0.01)
		for _, s := range ss[:3] {
			s.serve = well
		}
		p.load(t, 2000, 2*time.Millisecond, ss, patient)
		sums = inPlaces(p.load(t, 2000, 2*time.Millisecond, ss, patient), places...)
		require.Zero(t, sums[1])
	})
}

// A retry leaves a priority only if it has tried all endpoints of it.
func TestPriorityRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), servers(4)
		p.addAt(place{ss: ss[:2]}, place{priority: 7, ss: ss[2:]})
		ctx := layer.WithAttempts(t.Context(), new(layer.Attempts))
		for range 4 {
			require.NoError(t, p.send(ctx))
			if ss[2].calls.Load()+ss[3].calls.Load() > 0 {
				require.EqualValues(t, 2, ss[0].calls.Load()+ss[1].calls.Load())
			}
		}
		for _, s := range ss {
			require.EqualValues(t, 1, s.calls.Load())
		}
	})
}

// The weights of localities divide the requests, and an endpoint may change its place.
func TestLocalityWeights(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), equalServers(9)
		places := []place{{locality: "a", weight: 1, ss: ss[:6]}, {locality: "b", weight: 3, ss: ss[6:]}}
		p.addAt(places...)
		require.InDeltaSlice(t, []float64{0.25, 0.75}, inPlaces(p.load(t, 10_000, 2*time.Millisecond, ss, patient), places...), 0.03)
		require.Len(t, p.Describe().State.Get("groups"), 2)
		c := change{State: resolve.StateExists}
		for _, s := range ss {
			c.Changed = append(c.Changed, s.endpoint())
		}
		calls := ss[0].calls.Load()
		p.apply(c)
		assert.Nil(t, p.Describe().State.Get("groups"))
		assert.EqualValues(t, calls, p.state(ss[0]).Picks)
		shares := p.load(t, 10_000, 2*time.Millisecond, ss, patient)
		require.InDelta(t, 1.0/9, shares[0], 0.03)
	})
}

// Removed endpoints do not count for their priority.
func TestPriorityRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(4)
		p.addAt(place{ss: ss[:2]}, place{priority: 1, ss: ss[2:]})
		p.remove(ss[0], ss[1])
		require.NoError(t, p.send(t.Context()))
		require.EqualValues(t, 1, ss[2].calls.Load()+ss[3].calls.Load())
		p.remove(ss[2:]...)
		require.Error(t, p.send(t.Context()))
		p.add(ss[0])
		require.NoError(t, p.send(t.Context()))
		require.Nil(t, p.Describe().State.Get("groups"))
	})
}

// A policy changes in place.
func TestSetPolicy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, kinds()), equalServers(4)
		ss[3].after(around(200 * time.Millisecond))
		for i, s := range ss {
			e := s.labelled(map[string]string{"zone": string(rune('a' + i%2))})
			p.apply(change{State: resolve.StateExists, Added: []*endpoint{e}})
		}
		load := func() []float64 { return p.load(t, 2000, 2*time.Millisecond, ss, patient) }
		load()
		require.Less(t, load()[3], 0.05)
		picks, latency := p.state(ss[0]).Picks, p.state(ss[0]).Latency

		require.NoError(t, p.SetPolicy(balance.Policy{Picker: balance.RoundRobin()}))
		require.Equal(t, picks, p.state(ss[0]).Picks)
		require.Equal(t, latency, p.state(ss[0]).Latency)
		require.InDeltaSlice(t, []float64{0.25, 0.25, 0.25, 0.25}, load(), 0.001)
		require.Equal(t, "round robin", p.Describe().State.Get("pick"))

		require.NoError(t, p.SetPolicy(balance.Policy{Zone: "a"}))
		load()
		shares := load()
		require.InDelta(t, 1, shares[0]+shares[2], 0.05)

		ss[0].failing(-1, errApplication)
		require.NoError(t, p.SetPolicy(balance.Policy{
			Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{ConsecutiveFailures: 3},
		}))
		load()
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))

		require.NoError(t, p.SetPolicy(balance.Policy{Picker: balance.ConsistentHash(0)}))
		before := ss[1].calls.Load() + ss[2].calls.Load() + ss[3].calls.Load()
		for range 20 {
			require.NoError(t, p.send(layer.WithAffinity(t.Context(), 5)))
		}
		require.EqualValues(t, 20, ss[1].calls.Load()+ss[2].calls.Load()+ss[3].calls.Load()-before)

		require.ErrorContains(t, p.SetPolicy(balance.Policy{Decay: -1}), "Decay")
		p.finish()
		require.NoError(t, p.SetPolicy(balance.Policy{}))
	})
}

// The comparison of success rates begins and ends with the policy.
func TestSetPolicyInterval(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, roundRobin(balance.OutlierDetection{})...), equalServers(8)
		p.add(ss...)
		ss[0].failing(-1, errApplication)
		p.load(t, 2000, 10*time.Millisecond, ss, patient)
		require.Equal(t, "ready", p.of(ss[0]).Get("state"))
		rates := balance.Policy{Picker: balance.RoundRobin(), OutlierDetection: balance.OutlierDetection{Interval: 5 * time.Second, RequestVolume: 20}}
		require.NoError(t, p.SetPolicy(rates))
		p.load(t, 2000, 10*time.Millisecond, ss, patient)
		require.Equal(t, "ejected", p.of(ss[0]).Get("state"))
	})
}

// A zone has one of ten equal endpoints, but half of their load comes from it. Requests leave the zone by
// load, so that its endpoint is not overloaded. By priority they stay, because it does not fail.
func TestZoneOfFewEndpoints(t *testing.T) {
	const far, limit = 9, 50 * time.Millisecond
	slow := func(t *testing.T, policy balance.Policy, other uint32) (share float64) {
		bubble(t, func(t *testing.T) {
			p, ss := newPool(t, balance.WithPolicy[*response](policy)), servers(1+far)
			for _, s := range ss {
				workers := make(chan struct{}, 4)
				s.serve = func(context.Context, string) (*response, error) {
					workers <- struct{}{}
					defer func() { <-workers }()
					time.Sleep(10 * time.Millisecond)
					return body("ok"), nil
				}
			}
			p.addAt(place{locality: "here", ss: ss[:1]}, place{priority: other, locality: "elsewhere", ss: ss[1:]})
			var requests sync.WaitGroup
			var late atomic.Int64
			const n = 6000
			for range n { // 2000 per second; ten endpoints serve 4000
				time.Sleep(500 * time.Microsecond)
				requests.Go(func() {
					start := time.Now()
					if assert.NoError(t, p.send(t.Context())); time.Since(start) > limit {
						late.Add(1)
					}
				})
			}
			requests.Wait()
			share = float64(late.Load()) / n
		})
		return share
	}
	assert.Less(t, slow(t, balance.Policy{Zone: "here"}, 0), 0.01)
	assert.Greater(t, slow(t, balance.Policy{}, 1), 0.9)
}
