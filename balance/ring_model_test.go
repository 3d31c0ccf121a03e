package balance

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

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
	require.Empty(t, r.has)
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
