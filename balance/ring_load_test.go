package balance

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func total(es []*endpoint) (n uint64) {
	for _, e := range es {
		n += e.inFlight()
	}
	return n
}

// No endpoint gets more requests than its capacity for the greatest number of requests
// within the last tick.
func TestHashBoundHolds(test *testing.T) {
	rapid.Check(test, func(t *rapid.T) {
		bound := rapid.SampledFrom([]float64{1.05, 1.25, 2}).Draw(t, "bound")
		es := make([]*endpoint, rapid.IntRange(1, 20).Draw(t, "n"))
		points := 0
		for i := range es {
			es[i] = member(i, rapid.SampledFrom([]uint32{unit / 2, unit, 3 * unit}).Draw(t, "weight"))
			points += pointsOf(es[i].plainWeight())
		}
		h := hashOf(test, bound, es...)
		keys := rapid.Uint64Range(1, 3).Draw(t, "keys")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		q := query{hasAffinity: true}
		most := uint64(0)
		var running []*endpoint
		for range 200 {
			switch random.IntN(8) {
			case 0:
				q.now++
				most = total(es)
			case 1, 2:
				for range min(len(running), random.IntN(4)) {
					i := random.IntN(len(running))
					running[i].end()
					running[i], running = running[len(running)-1], running[:len(running)-1]
				}
			default:
				most = max(most, total(es))
				q.affinity = random.Uint64N(keys)
				e := h.pick(q)
				require.True(t, e.begin(0))
				running = append(running, e)
				if len(es) > 1 {
					require.LessOrEqual(t, float64(e.inFlight()), capacity(bound, most, pointsOf(e.plainWeight()), points))
				}
			}
		}
	})
}

// All requests have one key and arrive within one tick.
func TestHashHotKey(t *testing.T) {
	for _, n := range []int{2, 10, 80} {
		es := members(n)
		h := hashOf(t, 0, es...)
		owner := h.pick(keyed(1))
		for i := range 20 * n {
			e := h.pick(keyed(1))
			e.begin(0)
			if most := math.Ceil(1.25 * float64(i+1) / float64(n)); float64(e.inFlight()) > most {
				require.Failf(t, "too many", "%d, more than %v, of %d at %d endpoints", e.inFlight(), most, i+1, n)
			}
		}
		q := keyed(1)
		q.now = 1
		for range 10 * n { // with a count that is right, the owner has all that it may
			h.pick(q).begin(0)
			q.now++
		}
		require.EqualValues(t, math.Ceil(1.25*30), owner.inFlight(), "%d", n)
	}
}

// Requests of one key stay together while there is room.
func TestHashColdKeys(t *testing.T) {
	es := members(10)
	h := hashOf(t, 0, es...)
	for _, e := range es {
		e.work.Store(4)
	}
	owner := h.pick(query{affinity: 1, hasAffinity: true, now: 1})
	owner.work.Store(5) // 5 < ⌈1.25 · 42/10⌉ = 6
	require.Same(t, owner, h.pick(query{affinity: 1, hasAffinity: true, now: 2}))
	owner.work.Store(6)
	require.NotSame(t, owner, h.pick(query{affinity: 1, hasAffinity: true, now: 3}))
	for _, e := range es {
		e.work.Store(5)
	}
	owner.work.Store(6) // 6 < ⌈1.25 · 52/10⌉ = 7
	require.NotSame(t, owner, h.pick(query{affinity: 1, hasAffinity: true, now: 3}), "what came within the tick is not known")
	require.Same(t, owner, h.pick(query{affinity: 1, hasAffinity: true, now: 4}))
}

func TestHashWithoutBound(t *testing.T) {
	h := hashOf(t, math.Inf(1), members(10)...)
	owner := h.pick(keyed(1))
	for range 1000 {
		e := h.pick(keyed(1))
		require.Same(t, owner, e)
		e.begin(0)
	}
}

// With an estimated number of requests an endpoint exceeds its bound by at most four
// standard errors.
func TestHashBoundEstimated(t *testing.T) {
	const n = 400
	es := members(n)
	h := hashOf(t, 0, es...)
	q := query{hasAffinity: true}
	greatest := 0.0
	for i := range 10 * n {
		q.now = uint32(i / 50)
		q.affinity = uint64(i % 3) // three hot keys
		e := h.pick(q)
		e.begin(0)
		mean := float64(i+1) / n
		slack := 1 + 4*math.Sqrt((0.25+1/mean)/countSample)
		if most := math.Ceil(1.25 * mean * slack); float64(e.inFlight()) > most {
			require.Failf(t, "too many", "%d, more than %v, of %d", e.inFlight(), most, i+1)
		}
		greatest = max(greatest, float64(e.inFlight()))
	}
	t.Logf("mean 10, greatest %v", greatest)
	require.GreaterOrEqual(t, greatest, 12.0)
}

func TestHashCountBothZones(t *testing.T) {
	es := members(500)
	for i, e := range es {
		e.work.Store(2)
		if e.far = i%4 == 0; e.far {
			e.work.Store(10)
		}
	}
	few := hashOf(t, 0, es[:countSample]...)
	require.Equal(t, total(es[:countSample]), few.inFlight(1))
	es[0].work.Store(11)
	require.Equal(t, total(es[:countSample])-1, few.inFlight(1), "not within a tick")
	require.Equal(t, total(es[:countSample]), few.inFlight(2))
	require.Equal(t, total(es[:countSample]), few.inFlight(1), "a reading of the clock that comes late")
	require.Zero(t, hashOf(t, 0).inFlight(1))

	many := hashOf(t, 0, es...)
	sum := 0.0
	for now := range uint32(100) {
		sum += float64(many.inFlight(now + 1))
	}
	require.InEpsilon(t, total(es), sum/100, 0.02)
}

func TestHashCapacity(t *testing.T) {
	for _, c := range []struct {
		inFlight uint64
		points   int
		want     float64
	}{{0, 100, 1}, {7, 100, 1}, {8, 100, 2}, {15, 100, 2}, {16, 100, 3}, {79, 100, 10}, {79, 300, 30}, {79, 1, 1}} {
		require.InDelta(t, c.want, capacity(1.25, c.inFlight, c.points, 1000), 0, "%+v", c)
	}
}
