package balance

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestHashSameKey(t *testing.T) {
	es := members(50)
	h := hashOf(t, 0, es...)
	was := h.owners(1000)
	require.Equal(t, was, h.owners(1000))
	slices.Reverse(es)
	require.Equal(t, was, hashOf(t, 0, es...).owners(1000), "in any order")
}

// A change of one of n endpoints moves one part in n of the keys, and at most 1 % of all more. They
// move to or from that endpoint.
func TestHashChange(t *testing.T) {
	const n, keys = 100, 100_000
	es := members(n)
	h := hashOf(t, 0, es[1:]...)
	without := h.owners(keys)
	h.join(es[0])
	with := h.owners(keys)
	moved := 0
	for key := range with {
		if with[key] != without[key] {
			require.Same(t, es[0], with[key])
			moved++
		}
	}
	require.InDelta(t, keys/n, moved, keys/n*0.35)
	require.LessOrEqual(t, moved, keys/n+keys/100)
	h.leave(es[0])
	require.Equal(t, without, h.owners(keys))
}

func TestHashWeightChange(t *testing.T) {
	es := members(10)
	h := hashOf(t, 0, es...)
	of := func(e *endpoint) (n int) {
		for _, owner := range h.owners(5000) {
			if owner == e {
				n++
			}
		}
		return n
	}
	light := of(es[3])
	h.left(es[3])
	es[3].setWeight(3 * unit)
	h.joined(es[3])
	require.InDelta(t, 2.5, float64(of(es[3]))/float64(light), 0.4) // 3/12 to 1/10
}

// An unready endpoint gets its keys back when it is ready.
func TestHashUnready(t *testing.T) {
	es := members(5)
	h := hashOf(t, 0, es...)
	was := h.owners(500)
	h.leave(es[2])
	for key, e := range h.owners(500) {
		require.NotSame(t, es[2], e)
		if was[key] != es[2] {
			require.Same(t, was[key], e)
		}
	}
	h.join(es[2])
	require.Equal(t, was, h.owners(500))
}

// During a change the ring may have endpoints that are not ready.
func TestHashDuringChange(t *testing.T) {
	es := members(2)
	h := hashOf(t, 0, es...)
	es[0].status.setState(removed)
	for _, e := range h.owners(100) {
		require.Same(t, es[1], e)
	}
	es[1].status.setState(removed)
	require.Nil(t, h.pick(keyed(1)))
	require.Nil(t, hashOf(t, 0).pick(keyed(1)))
	require.Nil(t, hashOf(t, 0).pick(query{}))
}

// A retry goes to the next endpoint on the ring, as if those before it had left.
func TestHashRetry(t *testing.T) {
	es := members(10)
	h := hashOf(t, 0, es...)
	for key := range uint64(20) {
		q := keyed(key)
		q.attempts = new(layer.Attempts)
		left := slices.Clone(es)
		for range 5 {
			e := h.pick(q)
			require.Same(t, hashOf(t, 0, left...).pick(keyed(key)), e)
			q.attempts.Add(e)
			left = slices.DeleteFunc(left, func(l *endpoint) bool { return l == e })
		}
	}
}

func TestHashRetryAllTried(t *testing.T) {
	for n := 1; n <= 3; n++ {
		es := members(n)
		h := hashOf(t, 0, es...)
		q := keyed(7)
		q.attempts = new(layer.Attempts)
		for range n {
			e := h.pick(q)
			require.False(t, q.attempts.Has(e))
			q.attempts.Add(e)
		}
		require.Contains(t, es, h.pick(q))
	}
}

// An endpoint with few points is found although the next of them is far away.
func TestHashRetryLightEndpoint(t *testing.T) {
	heavy, light := member(1, 64*unit), member(2, unit/100)
	h := hashOf(t, 0, heavy, light)
	for key := range uint64(100) {
		q := keyed(key)
		q.attempts = new(layer.Attempts)
		q.attempts.Add(heavy)
		require.Same(t, light, h.pick(q))
	}
}

func TestHashWithoutAffinity(t *testing.T) {
	es := members(10)
	h := hashOf(t, 0, es...)
	for _, e := range es[:9] {
		e.work.Store(5)
	}
	for range 100 {
		require.Same(t, es[9], h.pick(query{}))
	}
}

// Zones do not matter for a key.
func TestHashZones(t *testing.T) {
	es := members(10)
	was := hashOf(t, 0, es...).owners(500)
	for _, e := range es[:5] {
		e.far = true
	}
	require.Equal(t, was, hashOf(t, 0, es...).owners(500))
}

func TestHashExplain(t *testing.T) {
	es := members(3)
	h := hashOf(t, 0, es...)
	q := keyed(1)
	owner := h.pick(q)
	owner.work.Store(10)
	q.examined = new(examined)
	chosen := h.pick(q)
	require.NotSame(t, owner, chosen)
	seen := make(map[*endpoint]int)
	for _, l := range q.examined.endpoints {
		seen[l.endpoint]++
	}
	require.Equal(t, map[*endpoint]int{owner: 1, chosen: 1}, seen)
	require.EqualValues(t, 10, q.examined.endpoints[0].reading.inFlight)
}

func TestHashBounds(t *testing.T) {
	for began, taken := range map[float64]float64{
		0: 1.25, -1: 1.25, 0.5: 1.05, 1: 1.05, 1.05: 1.05, 2: 2, math.Inf(1): math.Inf(1),
	} {
		require.InDelta(t, 0, 1/hashOf(t, began).bound-1/taken, 0, "%v", began)
	}
	require.InDelta(t, 1.25, hashOf(t, math.NaN()).bound, 0)
	require.Equal(t, "hash, bound 1.25", ConsistentHash(0).String())
	require.Equal(t, "hash, bound +Inf", ConsistentHash(math.Inf(1)).String())
}

func TestHashAllocatesNothing(t *testing.T) {
	h := hashOf(t, 0, members(300)...)
	key := uint64(0)
	require.Zero(t, testing.AllocsPerRun(1000, func() { h.pick(keyed(key)).work.Add(began); key++ }), "with room")
	require.Zero(t, testing.AllocsPerRun(1000, func() { h.pick(keyed(1)).work.Add(began) }), "a hot key")
}
