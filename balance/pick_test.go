package balance

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

func TestPowerOfTwoChoices(t *testing.T) {
	pick := func(g *group) *endpoint { return PowerOfChoices(2).newPicker(g).pick(query{}) }
	require.Nil(t, pick(groupOf()))
	one := nodes(time.Second)
	require.Same(t, one[0], pick(groupOf(one...)))

	two := nodes(2*time.Millisecond, time.Millisecond)
	for range 1000 {
		require.Same(t, two[1], pick(groupOf(two...)), "both are examined")
	}

	// Two different ones of three: the best is among them in two of three
	// cases, the worst never wins. With one, or with two that may be the
	// same, or with three, the shares would be others.
	three := nodes(1*time.Millisecond, 2*time.Millisecond, 4*time.Millisecond)
	require.InDeltaSlice(t, []float64{2.0 / 3, 1.0 / 3, 0}, shares(groupOf(three...), three, PowerOfChoices(2)), 0.02)
}

func TestPowerOfChoices(t *testing.T) {
	five := nodes(1*time.Millisecond, 2*time.Millisecond, 4*time.Millisecond, 8*time.Millisecond, 16*time.Millisecond)
	g := groupOf(five...)
	require.InDeltaSlice(t, []float64{0.6, 0.3, 0.1, 0, 0}, shares(g, five, PowerOfChoices(3)), 0.02)
	require.InDeltaSlice(t, []float64{0.8, 0.2, 0, 0, 0}, shares(g, five, PowerOfChoices(4)), 0.02)
	for _, all := range []Picker{PowerOfChoices(5), PowerOfChoices(99), {}} {
		require.InDelta(t, 1, shares(g, five, all)[0], 1e-9, all.String())
	}
}

// The default examines all endpoints of an aperture of 24, and 24 of a wider one.
func TestDefaultChoices(t *testing.T) {
	for n, want := range map[int]float64{2: 1, 24: 1, 30: 24.0 / 30, 96: 24.0 / 96} {
		latencies := make([]time.Duration, n)
		for i := range latencies {
			latencies[i] = time.Second
		}
		latencies[n/2] = time.Millisecond
		ns := nodes(latencies...)
		wide := Picker{"wide", func(g *group) picker { return &choices{g, maxExamined} }}
		require.InDelta(t, want, shares(groupOf(ns...), ns, wide)[n/2], 0.02, "of %d", n)
	}
}

// Equal endpoints are equally likely, next to each other or with costly ones between
// them.
func TestPickEqualEndpoints(t *testing.T) {
	for _, costly := range [][]int{{}, {0, 1, 2}, {1, 3, 5}, {0, 4, 5}} {
		latencies := make([]time.Duration, 8)
		for i := range latencies {
			latencies[i] = time.Millisecond
			if slices.Contains(costly, i) {
				latencies[i] = time.Second
			}
		}
		ns := nodes(latencies...)
		for _, p := range []Picker{{}, PowerOfChoices(8), Random(), RoundRobin()} {
			for i, share := range shares(groupOf(ns...), ns, p) {
				want := 1.0 / float64(8-len(costly))
				switch blind := p.name == "random" || p.name == "round robin"; {
				case blind:
					want = 1.0 / 8
				case slices.Contains(costly, i):
					want = 0
				}
				require.InDelta(t, want, share, 0.02, "%v: node %d, costly %v", p, i, costly)
			}
		}
	}
	ns := nodes(make([]time.Duration, 16)...)
	for _, k := range []int{1, 2, 3} {
		for i, share := range shares(groupOf(ns...), ns, PowerOfChoices(k)) {
			require.InDelta(t, 1.0/16, share, 0.01, "node %d, %d choices", i, k)
		}
	}
}

// The estimates of equal endpoints differ by chance. Without load, the one with the higher estimate gets
// requests nevertheless, but one that takes twice as long gets none.
func TestPickIdleEndpoints(t *testing.T) {
	for longer, want := range map[int]float64{11: 0.37, 13: 0.19, 20: 0} {
		ns := nodes(10*time.Millisecond, time.Duration(longer)*time.Millisecond)
		require.InDelta(t, want, shares(groupOf(ns...), ns, Picker{})[1], 0.02, "%v ms", longer)
	}
}

// Similar endpoints are picked by weight; otherwise the weight divides the cost.
func TestPickWeights(t *testing.T) {
	ns := nodes(time.Millisecond, time.Millisecond, time.Millisecond, 4*time.Millisecond)
	for i, w := range []uint32{0, 30_000, 60_000, 0} {
		ns[i].setWeight(w)
	}
	g := groupOf(ns...)
	g.weighted.Store(true)
	require.InDeltaSlice(t, []float64{.1, .3, .6, 0}, shares(g, ns, Picker{}), 0.02)
	ns[3].setWeight(5 * 60_000)
	require.InDeltaSlice(t, []float64{0, 0, 0, 1}, shares(g, ns, Picker{}), 0.02, "4 ms / 30 is the cheapest")
}

func TestSlowStart(t *testing.T) {
	ns := nodes(time.Millisecond, time.Millisecond)
	g := groupOf(ns...)
	slow := *g.params.Load()
	slow.slowStart = 1000
	g.params.Store(&slow)
	g.weighted.Store(true)
	ns[1].beginSlowStart(5000)
	share := func(now uint32) float64 {
		const draws = 30_000
		var young float64
		for range draws {
			if (Picker{}).newPicker(g).pick(query{now: now}) == ns[1] {
				young += 1.0 / draws
			}
		}
		return young
	}
	require.InDelta(t, 0.1/1.1, share(5000), 0.02, "a tenth of its weight")
	require.InDelta(t, 0.5/1.5, share(5500), 0.02)
	require.InDelta(t, 0.5, share(6000), 0.02)
}

// An endpoint of another zone is picked if it is cheaper with zoneAdvantage more requests.
func TestPickZones(t *testing.T) {
	ns := nodes(4*time.Millisecond, 5*time.Millisecond, 2050*time.Microsecond)
	g := groupOf(ns[0])
	g.sets[far].add(ns[1], noDraw)
	g.sets[far].add(ns[2], noDraw)
	busy := func(e *endpoint, n int) {
		for range n {
			require.True(t, e.begin(0))
		}
	}
	require.InDeltaSlice(t, []float64{1, 0, 0}, shares(g, ns, Picker{}), 0.001, "up to 8 ms here, 8.2 there")
	busy(ns[0], 4)
	require.InDeltaSlice(t, []float64{0, 0, 1}, shares(g, ns, Picker{}), 0.001, "20 ms here, up to 16.4 there")
	busy(ns[1], 4)
	busy(ns[2], 4)
	require.InDeltaSlice(t, []float64{0, 0, 1}, shares(g, ns, Picker{}), 0.001, "20 ms here, up to 19.7 there")
	busy(ns[2], 4)
	require.InDeltaSlice(t, []float64{1, 0, 0}, shares(g, ns, Picker{}), 0.001, "up to 24 ms here, 24.6 there")
	for _, p := range []Picker{RoundRobin(), Random()} {
		require.InDeltaSlice(t, []float64{1, 0, 0}, shares(g, ns, p), 0.001, "%v", p)
	}
	g.sets[near].remove(ns[0])
	require.InDeltaSlice(t, []float64{0, 0, 1}, shares(g, ns, Picker{}), 0.001)
	require.InDeltaSlice(t, []float64{0, .5, .5}, shares(g, ns, Random()), 0.02)
}

// A retry goes to an endpoint that the request has not tried, first in the balancer's zone. After
// all were tried, it may go to any.
func TestPickUntried(t *testing.T) {
	ns := nodes(time.Millisecond, time.Millisecond, time.Millisecond, time.Millisecond)
	g := groupOf(ns[:2]...)
	g.sets[far].add(ns[2], noDraw)
	g.sets[far].add(ns[3], noDraw)
	for _, p := range []Picker{{}, RoundRobin(), Random()} {
		pick := p.newPicker(g)
		for range 20 {
			q := query{attempts: new(layer.Attempts)}
			for i := range ns {
				e := pick.pick(q)
				require.False(t, q.attempts.Has(e), "%v: attempt %d", p, i)
				require.Equal(t, i < 2, slices.Contains(ns[:2], e), "%v: attempt %d", p, i)
				q.attempts.Add(e)
			}
			require.Contains(t, ns, pick.pick(q))
		}
	}
}

// An endpoint without samples gets one request, then two, four and eight at a time. If
// all have none, requests are not limited.
func TestProbeLimit(t *testing.T) {
	ns := nodes(time.Minute, 0)
	ns[1] = unknown()
	g := groupOf(ns...)
	g.median.word.Store(pack(float32(time.Millisecond), 0))
	for i, want := range []uint64{1, 2, 4, 8} {
		for range 100 {
			require.True(t, Picker{}.newPicker(g).pick(query{}).begin(0))
		}
		require.Equal(t, want, ns[1].inFlight())
		for range want {
			ns[1].end()
		}
		require.Equal(t, i == 0, ns[1].latency.record(time.Millisecond, 0, g.params.Load().decay, sampleWeight))
		ns[1].status.addSample()
	}
	for range 100 {
		require.True(t, Picker{}.newPicker(g).pick(query{}).begin(0))
	}
	require.EqualValues(t, 100, ns[1].inFlight(), "now it is like any other")

	g = groupOf(unknown())
	for range 100 {
		require.True(t, Picker{}.newPicker(g).pick(query{}).begin(0))
	}
}

// The unrolled loop and comparison have the same result.
func TestCheapestPlain(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(rt, "n")
		g := groupOf()
		g.median.word.Store(pack(float32(rapid.IntRange(1, 1e9).Draw(rt, "usual")), 0))
		g.peers.load.Store(math.Float32bits(70))
		g.setParams(Policy{Decay: 1000 << tickShift}.orDefault())
		const now = 10_000
		for range n {
			e := unknown()
			busy := rapid.IntRange(0, 5).Draw(rt, "in flight")
			e.work.Store(uint64(busy))
			e.status.stream(int32(rapid.IntRange(0, busy).Draw(rt, "streams")))
			e.status.setSamples(uint32(rapid.SampledFrom([]int{0, 1, 3, probeSamples, initialSet, initialSet + 1, allSamples}).Draw(rt, "samples")))
			if p := e.status.samples(); p > initialSet || p > 0 && rapid.Bool().Draw(rt, "sampled") {
				at := uint32(int64(now) - rapid.SampledFrom([]int64{0, 1, 100, int64(g.params.Load().curve.fresh), int64(now), -1, -maxLag, 1 << 31}).Draw(rt, "age"))
				if rapid.Bool().Draw(rt, "any age") {
					at = uint32(rapid.IntRange(0, now).Draw(rt, "at"))
				}
				e.latency.word.Store(pack(float32(rapid.IntRange(1, 1e9).Draw(rt, "latency")), at))
				if rapid.Bool().Draw(rt, "fails") {
					e.status.suspect()
					e.level.Store(1)
					e.probed.Store(now)
				}
			}
			g.sets[near].add(e, noDraw)
		}
		k, random := rapid.IntRange(1, min(n, maxExamined)).Draw(rt, "k"), rapid.Uint64().Draw(rt, "random")
		s := g.sets[near].slots.Load()
		looked := &examined{}
		w := newWalk(random, n)
		chance := uint32(random)
		f := g.cheapestPlain(s, w, k, moment{now: now}, chance)
		if front := *s.front.Load(); len(front) == n && rapid.Bool().Draw(rt, "all") {
			f = g.cheapestOf(front, moment{now: now}, chance)
			k, w = n, walk{stride: 1, n: n}
		}
		other, same := g.cheapest(s, w, k, query{now: now, examined: looked}, chance)
		plain, cost := f.best, math.Float32frombits(f.costBits)
		require.Same(rt, plain, other)
		require.InEpsilon(rt, cost, same, 1e-6)
		require.Len(rt, looked.endpoints, k)
		for _, l := range looked.endpoints {
			require.GreaterOrEqual(rt, l.cost, cost)
			require.Equal(rt, l.cost >= excludedCost, l.reading.atLimit)
			if l.status.samples() != allSamples {
				continue // fades faster
			}
			quick := g.expects(g.params.Load(), l.endpoint, now, g.median.read())
			value, _ := l.latency.load(now)
			require.InDelta(rt, l.latency.read(now, g.params.Load().decay, float64(g.median.read())), quick, 1e-3*float64(max(value, g.median.read())))
		}
	})
}

// Every place is visited once.
func TestWalk(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(rt, "n")
		w := newWalk(rapid.Uint64().Draw(rt, "random"), n)
		seen := make([]bool, n)
		for range n {
			i := w.next()
			require.False(rt, seen[i])
			seen[i] = true
		}
	})
}

func TestWalkEven(t *testing.T) {
	for _, n := range []int{2, 3, 7, 17} {
		pairs := make(map[[2]int]int)
		const draws = 100_000
		for range draws {
			w := newWalk(rand.Uint64(), n)
			pairs[[2]int{w.next(), w.next()}]++
		}
		require.Len(t, pairs, n*(n-1))
		for pair, count := range pairs {
			require.InDelta(t, 1/float64(n*(n-1)), float64(count)/draws, 0.01, "%v of %d", pair, n)
		}
	}
}

// The median is that of the endpoints in use, regardless of those that are avoided.
func TestMedian(t *testing.T) {
	ns := nodes(5*time.Millisecond, 7*time.Millisecond, 9*time.Millisecond)
	g := groupOf(append(ns, unknown())...)
	g.refresh(ns[0], medianInterval, false)
	require.InDelta(t, 7*ms, g.median.read(), 0.1*ms)
	ns[1].latency.word.Store(pack(float32(1000*ms), medianInterval))
	ns[2].latency.word.Store(pack(float32(1000*ms), medianInterval))
	g.refresh(ns[0], medianInterval+1, false)
	require.InDelta(t, 7*ms, g.median.read(), 0.1*ms, "not so often")
	g.refresh(ns[0], medianInterval+1, true)
	require.InDelta(t, 1000*ms, g.median.read(), 1, "but when an endpoint becomes known")

	g.setParams(Policy{Decay: 1000 << tickShift}.orDefault())
	ns[0].latency.word.Store(pack(float32(5*ms), 3000))
	g.refresh(ns[0], 3000, false)
	require.InDelta(t, 5*ms, g.median.read(), 1, "the other two are not used")
	latency := g.expects(g.params.Load(), ns[1], 1_000_000, g.median.read())
	require.InDelta(t, 5*ms, latency, 1, "and so they come back")
}

func TestCosts(t *testing.T) {
	ns := nodes(10*time.Millisecond, time.Millisecond)
	for range 2 {
		ns[1].begin(0)
	}
	chosen := func(c Cost) int {
		g := newGroup(Policy{Cost: c}.orDefault(), nil)
		g.sets[near].add(ns[0], noDraw)
		g.sets[near].add(ns[1], noDraw)
		return slices.Index(ns, Picker{}.newPicker(g).pick(query{}))
	}
	require.Equal(t, 1, chosen(EWMA), "3 ms and 10 ms")
	require.Equal(t, 0, chosen(LeastRequest), "2 and 0 in flight")
}

func TestCostInFlight(t *testing.T) {
	ns := nodes(10*time.Millisecond, 25*time.Millisecond)
	g := groupOf(ns...)
	for range 70 {
		require.True(t, PowerOfChoices(2).newPicker(g).pick(query{}).begin(0))
	}
	require.InDelta(t, 50, ns[0].inFlight(), 1, "10·50 costs as much as 25·20")
	ns[0].work.Store(5*(oneRequest-1) + 5)
	require.EqualValues(t, 5, ns[0].inFlight())
	ns[0].end()
	require.EqualValues(t, 4, ns[0].inFlight())
	require.EqualValues(t, 5, ns[0].picks())
	require.True(t, ns[0].begin(0))
	ns[0].undoBegin()
	require.EqualValues(t, 4, ns[0].inFlight())
	require.EqualValues(t, 5, ns[0].picks(), "a request that was refused does not count")
}
