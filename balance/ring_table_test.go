package balance

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// point is a place on the ring.
type point struct {
	at uint64 // its first 40 bits
	e  *endpoint
}

// sorted is the model of the ring: one slice.
type sorted []point

func (s *sorted) add(e *endpoint) {
	for i := range pointsOf(e.plainWeight()) {
		*s = append(*s, point{place(seed(e.id.Addr), i) >> 24, e})
	}
	slices.SortFunc(*s, func(a, b point) int { return cmp.Or(cmp.Compare(a.at, b.at), compareIDs(a.e.id, b.e.id)) })
}

func (s *sorted) remove(e *endpoint) {
	*s = slices.DeleteFunc(*s, func(p point) bool { return p.e == e })
}

// around returns the endpoints of all points from a place on.
func (s *sorted) around(at uint64) []*endpoint {
	var behind, before []*endpoint
	for _, p := range *s {
		if p.at >= at>>24 {
			behind = append(behind, p.e)
		} else {
			before = append(before, p.e)
		}
	}
	return append(behind, before...)
}

// requireSame compares the walk from a place with that of the model.
func requireSame(t require.TestingT, want *sorted, r *ring, at uint64) {
	c := r.from(at)
	for _, e := range want.around(at) {
		require.Same(t, e, c.next())
	}
	require.Nil(t, c.next())
	require.EqualValues(t, len(*want), r.points.Load())
	size := r.table.Load().size()
	require.LessOrEqual(t, 8*len(*want), 5*size)
	require.True(t, 8*len(*want) > size || size == 1<<leastBits, "%d in %d", len(*want), size)
}

func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, want := newRing(), new(sorted)
		var in, out []*endpoint
		for i := range 12 {
			out = append(out, member(i/2, rapid.Uint32Range(1, unit).Draw(t, "weight"))) // pairs with one address
			out[i].id.OpaquePort = uint16(i)
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
	require.GreaterOrEqual(t, 5*r.table.Load().size(), 8*300*pointsPerUnit)
	for _, e := range es[1:] {
		r.remove(e)
	}
	require.Less(t, r.table.Load().size(), 8*pointsPerUnit)
	r.remove(es[0])
	require.Equal(t, 1<<leastBits, r.table.Load().size())
	require.Empty(t, r.has)
	c := r.from(0)
	require.Nil(t, c.next())
	require.Len(t, r.free, len(*r.members.Load())-1)
}

// Any number of points in the last slots has room behind the end.
func TestRingOverrun(t *testing.T) {
	r, want := newRing(), new(sorted)
	es := make([]*endpoint, 3*overrun)
	for i := range es {
		es[i] = member(1, unit) // all with one address
		es[i].id.OpaquePort = uint16(i)
		m := r.addMember(es[i])
		for _, word := range []uint64{1<<64 - 1<<24 | m, 1<<64 - 1<<24 | m, 1<<64 - 1<<25 | m} {
			for table := r.table.Load(); !r.insert(table, word); table = r.table.Load() {
				r.rebuild(table.bits(), 2*(len(table.slots)-table.size()))
			}
			*want = append(*want, point{word >> 24, es[i]})
		}
	}
	slices.SortStableFunc(*want, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	c := r.from(0)
	for _, p := range *want {
		require.Same(t, p.e, c.next())
	}
	r.rebuild(leastBits, overrun)
	require.Greater(t, len(r.table.Load().slots), 9*overrun)
	c = r.from(1 << 63)
	require.Same(t, es[0], c.next())
}
