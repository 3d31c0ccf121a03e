package balance

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wideGroup returns a group with n endpoints of 5 ms and its default picker.
func wideGroup(n int) (*group, picker, []*endpoint) {
	latencies := make([]time.Duration, n)
	for i := range latencies {
		latencies[i] = 5 * time.Millisecond
	}
	g, ns := groupOf(), nodes(latencies...)
	p := Picker{}.newPicker(g)
	for _, e := range ns {
		g.sets[near].add(e, rand.Uint64)
	}
	return g, p, ns
}

// used returns the endpoints that get requests.
func used(p picker) map[*endpoint]bool {
	all := make(map[*endpoint]bool)
	for range 2000 {
		all[p.pick(query{})] = true
	}
	return all
}

func TestApertureWidth(t *testing.T) {
	g, p, ns := wideGroup(100)
	require.Len(t, used(p), minAperture)
	now := uint32(0)
	refresh := func(times int) {
		for range times {
			now += medianInterval
			g.refresh(g.sets[near].slots.Load().endpoints[0].Load(), now, false)
		}
	}
	refresh(10)
	require.Len(t, used(p), minAperture, "without load")
	load := func(inFlight uint64) {
		for _, e := range ns {
			e.work.Store(inFlight)
		}
	}
	load(busyEndpoint - 1)
	require.Len(t, used(p), minAperture, "with one request at each")
	load(busyEndpoint)
	for i := range 10 {
		require.EqualValues(t, minAperture+i, g.aperture.width.Load())
		p.pick(query{})
	}
	require.Len(t, used(p), 100, "with two requests at each")
	load(1)
	refresh(1000)
	require.Len(t, used(p), 100, "not idle")
	load(0)
	refresh(1000)
	require.Len(t, used(p), minAperture)
}

// Each endpoint is in the aperture of some balancers.
func TestApertureRandom(t *testing.T) {
	const draws = 2000
	in := make([]float64, 64)
	for range draws {
		g, p, ns := wideGroup(len(in))
		require.NotNil(t, p.pick(query{}))
		for i, e := range ns {
			if e.slot < g.aperture.limit(len(ns)) {
				in[i]++
			}
		}
	}
	for i := range in {
		require.InDelta(t, minAperture/64.0, in[i]/draws, 0.05, "endpoint %d", i)
	}
}

// One change of the set changes at most one endpoint of the aperture.
func TestApertureChurn(t *testing.T) {
	g, p, ns := wideGroup(100)
	before := used(p)
	check := func() {
		after, fresh := used(p), 0
		for e := range after {
			if !before[e] {
				fresh++
			}
		}
		require.LessOrEqual(t, fresh, 1)
		require.Len(t, after, minAperture)
		before = after
	}
	for _, e := range ns[:50] {
		g.sets[near].remove(e)
		check()
	}
	for _, e := range ns[:50] {
		g.sets[near].add(e, rand.Uint64)
		check()
	}
}

func TestApertureFailing(t *testing.T) {
	g, p, ns := wideGroup(100)
	b := &Balancer[int, int]{group: g}
	for e := range used(p) {
		b.leaveAperture(e)
		require.False(t, used(p)[e])
	}
	require.Len(t, used(p), minAperture)
	b.leaveAperture(ns[0])
	b.group, p, ns = wideGroup(10)
	b.leaveAperture(ns[0])
	require.Len(t, used(p), 10)
}
