package balance

import (
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

const day = 24 * time.Hour

// nodes returns one node for each latency.
func nodes(latencies ...time.Duration) []*endpoint {
	ns := make([]*endpoint, len(latencies))
	for i, l := range latencies {
		ns[i] = unknown()
		ns[i].latency.word.Store(pack(float32(l), 0))
		ns[i].status.setSamples(allSamples)
	}
	return ns
}

// noDraw is for sets of at most minAperture endpoints, because their order is not random.
func noDraw() uint64 { return 0 }

// unknown returns a node without samples.
func unknown() *endpoint {
	e := &endpoint{record: &record{}}
	e.setWeight(0)
	return e
}

// groupOf returns a group of trusted nodes in one zone.
func groupOf(ns ...*endpoint) *group {
	g := newGroup(Policy{Decay: day}.orDefault(), nil)
	for _, n := range ns {
		g.sets[near].add(n, noDraw)
	}
	return g
}

// shares returns how often each node is picked.
func shares(g *group, ns []*endpoint, p Picker) []float64 {
	const draws = 30_000
	got := make([]float64, len(ns))
	pick := p.newPicker(g)
	for range draws {
		got[slices.Index(ns, pick.pick(query{}))] += 1.0 / draws
	}
	return got
}

// A pick notices an endpoint that was just removed.
func TestBegin(t *testing.T) {
	n := nodes(time.Millisecond)[0]
	for _, state := range []uint32{unready, closed, removed} {
		n.status.setState(state)
		require.False(t, n.begin(0), stateName(state))
		require.Zero(t, n.work.Load())
	}
	n.status.setState(ready)
	require.True(t, n.begin(0))
	require.EqualValues(t, 1, n.inFlight())
}

func TestReadySetModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &readySet{}
		s.clear()
		var in, out []*endpoint
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				n := nodes(time.Millisecond)[0]
				if len(out) > 0 && rapid.Bool().Draw(rt, "again") {
					n, out = out[0], out[1:]
				}
				s.add(n, rand.Uint64)
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
				var got []*endpoint
				for i := range s.slots.Load().endpoints {
					if n := s.slots.Load().endpoints[i].Load(); n != nil {
						require.Equal(rt, i, n.slot)
						got = append(got, n)
					}
				}
				require.ElementsMatch(rt, in, got, "no slot keeps a removed endpoint")
				require.True(rt, slices.Equal(got[:min(len(got), maxExamined)], *s.slots.Load().front.Load()))
			},
		})
	})
}

// During changes readers get an endpoint or none, and begin reports whether it is still
// ready.
func TestReadySetConcurrent(t *testing.T) {
	ns := nodes(make([]time.Duration, 50)...)
	g := groupOf(ns[:10]...)
	s := &g.sets[near]
	for _, n := range ns[10:] {
		n.status.setState(removed)
	}
	var stop atomic.Bool
	var readers sync.WaitGroup
	var began atomic.Int64
	for range 4 {
		readers.Go(func() {
			for !stop.Load() {
				if n := PowerOfChoices(2 + rand.IntN(3)).newPicker(g).pick(query{}); n != nil && n.begin(0) {
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
			n.status.setState(removed)
			s.remove(n)
			out, in = append(out, n), slices.Delete(in, i, i+1)
		} else {
			i -= len(in)
			n := out[i]
			n.status.setState(ready)
			s.add(n, rand.Uint64)
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
