package balance

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type (
	testNode = node[int, int]
	testSet  = readySet[int, int]
)

const day = 24 * time.Hour

// nodes makes one node for each latency.
func nodes(latencies ...time.Duration) []*testNode {
	ns := make([]*testNode, len(latencies))
	for i, l := range latencies {
		ns[i] = &testNode{}
		ns[i].latency.init(l, 0)
	}
	return ns
}

func setOf(ns ...*testNode) *testSet {
	s := &testSet{}
	s.clear()
	for _, n := range ns {
		s.add(n)
	}
	return s
}

// shares is how often each node is chosen.
func shares(s *testSet, ns []*testNode, k int) []float64 {
	const draws = 30_000
	got := make([]float64, len(ns))
	for range draws {
		got[slices.Index(ns, s.choose(k, 0, decayTicks(day)))] += 1.0 / draws
	}
	return got
}

func TestChoiceOfTwo(t *testing.T) {
	require.Nil(t, setOf().choose(2, 0, 1))
	one := nodes(time.Second)
	require.Same(t, one[0], setOf(one...).choose(2, 0, 1))

	two := nodes(2*time.Millisecond, time.Millisecond)
	for range 1000 {
		require.Same(t, two[1], setOf(two...).choose(2, 0, 1), "both are looked at")
	}

	// Two different ones of three: the best is among them in two of three
	// cases, the worst never wins. With one, or with two that may be the
	// same, or with three, the shares would be others.
	three := nodes(1*time.Millisecond, 2*time.Millisecond, 3*time.Millisecond)
	require.InDeltaSlice(t, []float64{2.0 / 3, 1.0 / 3, 0}, shares(setOf(three...), three, 2), 0.02)
}

func TestMoreChoices(t *testing.T) {
	five := nodes(1*time.Millisecond, 2*time.Millisecond, 3*time.Millisecond, 4*time.Millisecond, 5*time.Millisecond)
	s := setOf(five...)
	require.InDeltaSlice(t, []float64{0.6, 0.3, 0.1, 0, 0}, shares(s, five, 3), 0.02)
	require.InDeltaSlice(t, []float64{0.8, 0.2, 0, 0, 0}, shares(s, five, 4), 0.02)
	for _, all := range []int{5, 16} {
		require.Equal(t, 1.0, math.Round(shares(s, five, all)[0]*1000)/1000)
	}
}

// Of equals the first that is looked at wins, so that all are alike.
func TestEqualsAreChosenEqually(t *testing.T) {
	for _, n := range []int{2, 3, 5, 16} {
		latencies := make([]time.Duration, n)
		for i := range latencies {
			latencies[i] = time.Millisecond
		}
		ns := nodes(latencies...)
		for _, k := range []int{2, 3, 16} {
			for i, share := range shares(setOf(ns...), ns, k) {
				require.InDelta(t, 1/float64(n), share, 0.02, "node %d of %d, %d choices", i, n, k)
			}
		}
	}
}

func TestTwo(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		pairs := make(map[[2]int]int)
		const draws = 100_000
		for range draws {
			i, j := two(n)
			require.NotEqual(t, i, j)
			pairs[[2]int{i, j}]++
		}
		require.Len(t, pairs, n*(n-1))
		for pair, count := range pairs {
			require.InDelta(t, 1/float64(n*(n-1)), float64(count)/draws, 0.01, "%v of %d", pair, n)
		}
	}
}

func TestDrawIsWithoutReplacement(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "n")
		var taken [maxChoices]int
		seen := make(map[int]bool)
		for m := range min(n, maxChoices) {
			i := draw(&taken, m, n)
			require.False(rt, seen[i])
			require.True(rt, i >= 0 && i < n)
			seen[i] = true
			require.True(rt, slices.IsSorted(taken[:m+1]))
		}
	})
}

func TestCostCountsWhatIsInFlight(t *testing.T) {
	ns := nodes(10*time.Millisecond, 25*time.Millisecond)
	s := setOf(ns...)
	var got []int
	for range 7 {
		n := s.choose(2, 0, decayTicks(day))
		require.True(t, n.begin())
		got = append(got, slices.Index(ns, n))
	}
	require.Equal(t, []int{0, 0, 1, 0, 0}, got[:5])
	require.ElementsMatch(t, []int{1, 0}, got[5:], "10·5 costs as much as 25·2")
	require.EqualValues(t, 5, ns[0].inFlight())
	ns[0].end()
	require.EqualValues(t, 4, ns[0].inFlight())
	require.EqualValues(t, 5, ns[0].picks())
	require.True(t, ns[0].begin())
	ns[0].takeBack()
	require.EqualValues(t, 4, ns[0].inFlight())
	require.EqualValues(t, 5, ns[0].picks(), "a request that was refused does not count")
}

// Who chose a node just before it was removed sees it in time.
func TestOnlyReadyNodesBegin(t *testing.T) {
	n := nodes(time.Millisecond)[0]
	for _, state := range []uint32{unready, closed, removed} {
		n.state.Store(state)
		require.False(t, n.begin(), stateName(state))
		require.Zero(t, n.work.Load())
	}
	n.state.Store(ready)
	require.True(t, n.begin())
	require.EqualValues(t, 1, n.inFlight())
}

// Costs of different ages compare as they are now.
func TestLessComparesWhatIsLeft(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		decay := rapid.Float64Range(1, 20_000).Draw(rt, "decay")
		draw := func(name string) cost {
			return cost{rapid.Float64Range(1, 1e10).Draw(rt, name), uint32(rapid.IntRange(0, 100_000).Draw(rt, name+" age"))}
		}
		a, b := draw("a"), draw("b")
		// In logarithms, where nothing vanishes.
		now := func(c cost) float64 { return math.Log(c.value) - float64(c.age)/decay }
		if math.Abs(now(a)-now(b)) > 1e-6 {
			require.Equal(rt, now(a) < now(b), a.less(b, decay))
			require.Equal(rt, now(b) < now(a), b.less(a, decay))
		}
	})
}

func TestReadySetAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := setOf()
		var in, out []*testNode
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				n := nodes(time.Millisecond)[0]
				if len(out) > 0 && rapid.Bool().Draw(rt, "again") {
					n, out = out[0], out[1:]
				}
				s.add(n)
				in = append(in, n)
			},
			"remove": func(rt *rapid.T) {
				if len(in) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(in)-1).Draw(rt, "which")
				s.remove(in[i])
				out = append(out, in[i])
				in = slices.Delete(in, i, i+1)
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, len(in), s.len())
				var got []*testNode
				for i := range s.slots.Load().at {
					if n := s.slots.Load().at[i].Load(); n != nil {
						require.Equal(rt, i, n.slot)
						got = append(got, n)
					}
				}
				require.ElementsMatch(rt, in, got, "and no slot keeps what has gone")
			},
		})
	})
}

// Readers meet a set that changes all the time. They get a node or none, and
// begin tells whether the node is still there.
func TestReadySetStorm(t *testing.T) {
	ns := nodes(make([]time.Duration, 50)...)
	s := setOf(ns[:10]...)
	for _, n := range ns[10:] {
		n.state.Store(removed)
	}
	var stop atomic.Bool
	var readers sync.WaitGroup
	var began atomic.Int64
	for range 4 {
		readers.Go(func() {
			for !stop.Load() {
				if n := s.choose(2+rand.IntN(3), 0, 1); n != nil && n.begin() {
					began.Add(1)
					n.end()
				}
				runtime.Gosched()
			}
		})
	}
	in, out := slices.Clone(ns[:10]), slices.Clone(ns[10:])
	for step := 0; step < 20_000 || began.Load() < 1000; step++ {
		if step%64 == 0 {
			runtime.Gosched() // let the readers in, on one processor too
		}
		if i := rand.IntN(len(in) + len(out)); i < len(in) {
			n := in[i]
			n.state.Store(removed)
			s.remove(n)
			out, in = append(out, n), slices.Delete(in, i, i+1)
		} else {
			i -= len(in)
			n := out[i]
			n.state.Store(ready)
			s.add(n)
			in, out = append(in, n), slices.Delete(out, i, i+1)
		}
	}
	stop.Store(true)
	readers.Wait()
	require.Positive(t, began.Load())
	for _, n := range ns {
		require.Zero(t, n.inFlight())
	}
}
