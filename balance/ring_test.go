package balance

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
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
	require.Zero(t, testing.AllocsPerRun(1000, func() { h.pick(keyed(key)).work.Add(oneRequest); key++ }), "with room")
	require.Zero(t, testing.AllocsPerRun(1000, func() { h.pick(keyed(1)).work.Add(oneRequest) }), "a hot key")
}

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

// The vectors were computed by another program. They must never change, because a rolling
// upgrade would have two owners for every key.
func TestRingPlaces(t *testing.T) {
	for _, c := range []struct {
		addr                string
		seed                uint64
		first, second, last uint64
	}{
		{"10.0.0.1:80", 0x529f5a4b643fa605, 0xdbbc907f21531a73, 0xdf1d561fbd00135a, 0xe35ef4ae52669f86},
		{"10.0.0.2:80", 0xbec88630da056af2, 0x430384be1c79a49d, 0x0d834d501ef66cc6, 0x8785da2a4511e5cd},
		{"[2001:db8::1]:443", 0x51b094282e71c022, 0xd74b2d1678753513, 0x24b232c84c5d512d, 0xb4a72b76727539a2},
		{"[fe80::1%eth0]:8080", 0x06aa087aa72ae11f, 0x12fdd6573628d2db, 0x167d63b6627cf73e, 0x423bdd9fcedc7a6f},
	} {
		s := seed(netip.MustParseAddrPort(c.addr))
		require.Equal(t, c.seed, s, c.addr)
		require.Equal(t, []uint64{c.first, c.second, c.last}, []uint64{place(s, 0), place(s, 1), place(s, 99)}, c.addr)
	}
	require.Equal(t, uint64(0xe220a8397b1dcdaf), place(0, 1), "the first output of SplitMix64 with seed 0")
	require.Equal(t, uint64(0x5692161d100b05e5), mix(1))
}

// The owners were computed by another program for the same three addresses.
func TestRingOwners(t *testing.T) {
	h := hashOf(t, 0, member(1, unit), member(2, unit), member(3, unit))
	for key, owner := range map[uint64]byte{0: 3, 1: 3, 2: 2, 3: 3, 42: 1, 1 << 63: 3, 0xdeadbeef: 1, math.MaxUint64: 1} {
		require.Equal(t, owner, h.pick(keyed(key)).id.Addr.Addr().As4()[3], "%x", key)
	}
}

func TestRingMappedAddress(t *testing.T) {
	require.Equal(t, seed(netip.MustParseAddrPort("10.0.0.1:80")), seed(netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")))
	require.NotEqual(t, seed(netip.MustParseAddrPort("10.0.0.1:80")), seed(netip.MustParseAddrPort("10.0.0.1:81")))
}

func TestRingPointsOfWeights(t *testing.T) {
	for weight, points := range map[float64]int{
		1: 100, 0.5: 50, 2.5: 250, 0.0001: 1, 0: 1, 64: 6400, 65: 6400, math.MaxFloat32: 6400, 1.0049: 100, 1.0051: 101,
	} {
		require.Equal(t, points, pointsOf(weight), "%v", weight)
	}
}

// ringShares returns the share of the ring of each endpoint, relative to its weight.
func ringShares(es []*endpoint) []float64 {
	type owned struct {
		at    uint64
		owner int
	}
	var ring []owned
	for i, e := range es {
		for p := range pointsOf(e.plainWeight()) {
			ring = append(ring, owned{place(seed(e.id.Addr), p), i})
		}
	}
	slices.SortFunc(ring, func(a, b owned) int { return cmp.Compare(a.at, b.at) })
	share := make([]float64, len(es))
	before := ring[len(ring)-1].at
	for _, o := range ring {
		share[o.owner] += float64(o.at-before) / (1 << 64) * float64(len(ring)) / float64(pointsOf(es[o.owner].plainWeight()))
		before = o.at
	}
	return share
}

// Shares of the ring with 100 points each, in units of the mean:
//
//	   n     least  5 %   95 %  greatest  deviation
//	  10     0.85   0.85  1.16  1.16      0.100
//	 100     0.73   0.87  1.15  1.25      0.095
//	1000     0.71   0.84  1.16  1.37      0.099
//
// An endpoint of twice the weight has twice that share.
func TestRingShares(t *testing.T) {
	for _, c := range []struct {
		n               int
		least, greatest float64
	}{{10, 0.7, 1.3}, {100, 0.7, 1.35}, {1000, 0.65, 1.4}} {
		shares := ringShares(members(c.n))
		var squares float64
		for _, s := range shares {
			squares += (s - 1) * (s - 1)
		}
		slices.Sort(shares)
		deviation := math.Sqrt(squares / float64(c.n))
		t.Logf("%6d     %.2f   %.2f  %.2f  %.2f      %.3f", c.n, shares[0], shares[c.n/20], shares[c.n-1-c.n/20], shares[c.n-1], deviation)
		require.Greater(t, shares[0], c.least, c.n)
		require.Less(t, shares[c.n-1], c.greatest, c.n)
		require.Less(t, deviation, 0.13, c.n)
	}
}

func TestRingWeights(t *testing.T) {
	var es []*endpoint
	for i := range 200 {
		es = append(es, member(i, uint32(i%4+1)*unit/2))
	}
	var sum [4]float64
	for i, s := range ringShares(es) {
		sum[i%4] += s / 50
	}
	for i, s := range sum {
		require.InDelta(t, 1, s, 0.05, "weight %v", float64(i+1)/2)
	}
}

// The ring changes during picks. Ten endpoints always stay: a pick is one of them or was
// ready a moment ago, and their own keys never fail.
func TestHashConcurrentChanges(t *testing.T) {
	es := members(40)
	h := hashOf(t, 0, es[:10]...)
	var random atomic.Uint64
	h.random = func() uint64 { return mix(random.Add(gamma)) }
	var done atomic.Bool
	var pickers sync.WaitGroup
	var picked atomic.Int64
	for p := range uint64(3) {
		pickers.Go(func() {
			for i := uint64(0); !done.Load() || i < 100; i++ {
				e := h.pick(query{affinity: i % (50*p + 1), hasAffinity: true, now: uint32(i / 64)})
				if e == nil {
					t.Error("ten are always there")
					return
				}
				if e.begin(0) {
					picked.Add(1)
					if i%8 != 0 {
						e.end()
					}
				}
			}
		})
	}
	for range 3 {
		for _, e := range es[10:] {
			h.join(e)
		}
		for _, e := range es[10:] {
			h.leave(e)
		}
	}
	done.Store(true)
	pickers.Wait()
	require.GreaterOrEqual(t, picked.Load(), int64(100))
	require.EqualValues(t, 10*pointsPerUnit, h.ring.points.Load())
}

// member returns endpoint i with its own address and a weight of package resolve.
func member(i int, weight uint32) *endpoint {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	e := &endpoint{record: &record{id: resolve.ID{Addr: netip.AddrPortFrom(addr, 80)}}}
	e.latency.word.Store(pack(1e6, 0))
	e.status.setSamples(allSamples)
	e.setWeight(weight)
	return e
}

func members(n int) []*endpoint {
	es := make([]*endpoint, n)
	for i := range es {
		es[i] = member(i, unit)
	}
	return es
}

// hashOf returns a ConsistentHash over endpoints, with reproducible random numbers.
func hashOf(tb testing.TB, bound float64, es ...*endpoint) *hashing {
	tb.Helper()
	i := 0
	g := newGroup(Policy{}.orDefault(), func() uint64 { i++; return place(1, i) })
	h, ok := ConsistentHash(bound).newPicker(g).(*hashing)
	if !ok {
		tb.Fatal("not a hashing")
	}
	for _, e := range es {
		h.join(e)
	}
	return h
}

// join and leave do the same as the balancer.
func (h *hashing) join(e *endpoint) {
	e.status.setState(ready)
	h.set(e).add(e, noDraw)
	h.joined(e)
}

func (h *hashing) leave(e *endpoint) {
	e.status.setState(removed)
	h.set(e).remove(e)
	h.left(e)
}

func keyed(key uint64) query { return query{affinity: key, hasAffinity: true} }

// owners returns the owner of each key below n.
func (h *hashing) owners(n int) []*endpoint {
	es := make([]*endpoint, n)
	for key := range es {
		es[key] = h.pick(keyed(uint64(key)))
	}
	return es
}

// One pick for many keys, and for one hot key, without the request.
func BenchmarkHash(b *testing.B) {
	for _, n := range []int{2, 100, 10_000, 100_000} {
		es := members(n)
		h := hashOf(b, 0, es...)
		h.random = newGroup(Policy{}.orDefault(), nil).random
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				h.pick(query{affinity: i, hasAffinity: true})
			}
		})
		b.Run(fmt.Sprintf("n=%d/par", n), func(b *testing.B) {
			var from atomic.Uint64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := from.Add(1 << 32); pb.Next(); i++ {
					h.pick(query{affinity: i, hasAffinity: true})
				}
			})
		})
		b.Run(fmt.Sprintf("n=%d/busy", n), func(b *testing.B) { // each has some; a count every thousand
			for i, e := range es {
				e.work.Store(uint64(5 + i%5))
			}
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				h.pick(query{affinity: i, hasAffinity: true, now: uint32(i / 1000)})
			}
		})
		b.Run(fmt.Sprintf("n=%d/hot", n), func(b *testing.B) { // one key has them all, twice as many as endpoints
			for _, e := range es {
				e.work.Store(0)
			}
			running := make([]*endpoint, 2*n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if e := running[i%len(running)]; e != nil {
					e.end()
				}
				e := h.pick(query{affinity: 1, hasAffinity: true, now: uint32(i / 1000)})
				e.begin(0)
				running[i%len(running)] = e
			}
		})
	}
}

// One of n endpoints leaves and joins again.
func BenchmarkHashChange(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		es := members(n)
		h := hashOf(b, 0, es...)
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.left(es[i*7919%n])
				h.joined(es[i*7919%n])
			}
		})
	}
}

// sorted is the model of the ring: one slice.
type sorted []placed

type placed struct {
	at uint64
	e  *endpoint
}

func (s *sorted) add(e *endpoint) {
	for i := range pointsOf(e.plainWeight()) {
		*s = append(*s, placed{place(seed(e.id.Addr), i), e})
	}
	slices.SortFunc(*s, func(a, b placed) int {
		if a.at != b.at {
			return cmp.Compare(a.at, b.at)
		}
		return cmp.Compare(fmt.Sprint(a.e.id), fmt.Sprint(b.e.id))
	})
}

func (s *sorted) remove(e *endpoint) {
	*s = slices.DeleteFunc(*s, func(p placed) bool { return p.e == e })
}

// around returns the endpoints of all points from a place on.
func (s *sorted) around(at uint64) []*endpoint {
	var behind, before []*endpoint
	for _, p := range *s {
		if p.at >= at {
			behind = append(behind, p.e)
		} else {
			before = append(before, p.e)
		}
	}
	return append(behind, before...)
}

// requireSame compares the walk from a place with that of the model.
func requireSame(t require.TestingT, want *sorted, r *ring, at uint64) {
	table := r.table.Load()
	i := table.find(at)
	for range 2 { // the walk goes around the ring
		for _, e := range want.around(at) {
			var next *endpoint
			next, i = table.next(i)
			require.Same(t, e, next)
		}
	}
	require.EqualValues(t, len(*want), r.points.Load())
	size := table.size
	require.LessOrEqual(t, 4*len(*want), 3*size)
	require.True(t, 4*len(*want) >= size || size == leastSlots, "%d in %d", len(*want), size)
}

func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, want := newRing(), new(sorted)
		var in, out []*endpoint
		for i := range 12 {
			out = append(out, member(i, rapid.Uint32Range(1, unit).Draw(t, "weight")))
		}
		move := func(from, to *[]*endpoint) *endpoint {
			if len(*from) == 0 {
				t.Skip("none")
			}
			i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
			e := (*from)[i]
			*from, *to = slices.Delete(*from, i, i+1), append(*to, e)
			return e
		}
		t.Repeat(map[string]func(*rapid.T){
			"join":  func(*rapid.T) { e := move(&out, &in); r.add(e); r.add(e); want.add(e) },
			"leave": func(*rapid.T) { e := move(&in, &out); r.remove(e); r.remove(e); want.remove(e) },
			"weigh": func(t *rapid.T) { // leaves with another weight than it joined with
				e := move(&in, &out)
				e.setWeight(rapid.Uint32Range(1, unit).Draw(t, "weight"))
				r.remove(e)
				want.remove(e)
			},
			"": func(t *rapid.T) { requireSame(t, want, r, rapid.Uint64().Draw(t, "at")) },
		})
	})
}

// Each byte is one of 64 endpoints, which joins or leaves.
func FuzzRing(f *testing.F) {
	f.Add([]byte{1, 2, 3, 1, 2}, uint64(0))
	f.Add([]byte{0, 64, 128, 192}, ^uint64(0))
	f.Fuzz(func(t *testing.T, moves []byte, at uint64) {
		r, want := newRing(), new(sorted)
		es := make(map[byte]*endpoint)
		for _, m := range moves[:min(len(moves), 64)] {
			m %= 64
			if e := es[m]; e != nil {
				delete(es, m)
				r.remove(e)
				want.remove(e)
				continue
			}
			es[m] = member(int(m), uint32(m+1)*unit/8)
			r.add(es[m])
			want.add(es[m])
		}
		requireSame(t, want, r, at)
	})
}

// A small rest of a large set does not need long walks.
func TestRingShrinks(t *testing.T) {
	r, es := newRing(), members(300)
	for _, e := range es {
		r.add(e)
	}
	require.GreaterOrEqual(t, 3*r.table.Load().size, 4*300*pointsPerUnit)
	for _, e := range es[1:] {
		r.remove(e)
	}
	require.LessOrEqual(t, r.table.Load().size, 4*pointsPerUnit)
	r.remove(es[0])
	require.Equal(t, leastSlots, r.table.Load().size)
	require.Empty(t, r.counts)
	next, _ := r.table.Load().next(0)
	require.Nil(t, next)
}

// Two endpoints with the same address are on the ring in the order of their IDs, whichever
// joined first.
func TestRingSameAddress(t *testing.T) {
	one, other := member(1, unit), member(1, unit)
	other.id.Identity = "other"
	var walks [2][]*endpoint
	for i, es := range [][]*endpoint{{one, other}, {other, one}} {
		r := newRing()
		r.add(es[0])
		r.add(es[1])
		at := 0
		for range 2 * pointsPerUnit {
			var e *endpoint
			e, at = r.table.Load().next(at)
			walks[i] = append(walks[i], e)
		}
	}
	for i := range walks[0] {
		require.Same(t, walks[0][i], walks[1][i])
	}
}

// Many endpoints with the same address need slots after the last place.
func TestRingManySameAddress(t *testing.T) {
	r, want := newRing(), new(sorted)
	var es []*endpoint
	last := 0
	for place(seed(member(last, 1).id.Addr), 0) < 9<<60 {
		last++
	}
	for i := range 2 * leastSlots {
		e := member(last, 1) // one point, in the second half of the table
		e.id.OpaquePort = uint16(1000 + i)
		es = append(es, e)
		r.add(e)
		want.add(e)
	}
	requireSame(t, want, r, 0)
	for _, e := range es[1:] {
		r.remove(e)
		want.remove(e)
	}
	requireSame(t, want, r, 0)
}
