package balance

import (
	"math/bits"
	"sync/atomic"
)

// ring is the points of the ready endpoints, in order. Reading takes no lock.
// Who reads in the middle of a change may see a point twice, or the one behind
// it in its place, or an endpoint that has left, which its state tells. Writers
// hold the balancer's mutex.
//
// The points are the words of one table, sorted, each at or a little behind the
// slot that the first bits of its place name: a hash table with linear probing
// whose hash is the order (Amble, Knuth, "Ordered Hash Tables", 1974). So to
// find a point takes one look into memory as a rule, and so does to add one.
//
// A word is all of a point, so that nobody reads half of one:
//
//	bits 63..24  the first 40 bits of its place
//	bits 23..0   the member that it belongs to, from 1 on; a word of 0 is no point
type ring struct {
	table   atomic.Pointer[table]
	points  atomic.Int64
	members atomic.Pointer[[]atomic.Pointer[endpoint]] // never shorter than it was

	// Guarded by the balancer's mutex.
	has  map[*endpoint]membership
	free []uint64 // members that are nobody
}

// membership is what the ring has of an endpoint.
type membership struct {
	member uint64
	points int
}

type table struct {
	shift int
	slots []atomic.Uint64 // 1<<(64−shift), and some for what runs over the end
}

const (
	memberBits = 24
	memberMask = 1<<memberBits - 1
	leastBits  = 6
	overrun    = 64 // slots behind the end; there are twice as many where a run of points is longer
)

func newRing() *ring {
	r := &ring{has: make(map[*endpoint]membership)}
	r.members.Store(&[]atomic.Pointer[endpoint]{{}}) // none is 0
	r.table.Store(newTable(leastBits, overrun))
	return r
}

func newTable(bits, more int) *table {
	return &table{shift: 64 - bits, slots: make([]atomic.Uint64, 1<<bits+more)}
}

func (t *table) bits() int { return 64 - t.shift }
func (t *table) size() int { return 1 << t.bits() }

// member returns the endpoint of a word. It was a member before the word was
// there to be read.
func (r *ring) member(word uint64) *endpoint { return (*r.members.Load())[word&memberMask].Load() }

// add puts the points of e on the ring, as many as its weight is worth now.
func (r *ring) add(e *endpoint) {
	if r.has[e].points > 0 {
		return
	}
	m := membership{r.enlist(e), pointsOf(e.plainWeight())}
	r.has[e] = m
	r.fit(int(r.points.Add(int64(m.points))))
	s := seed(e.id.Addr)
	for i := range m.points {
		word := place(s, i)&^memberMask | m.member
		for t := r.table.Load(); !r.insert(t, word); t = r.table.Load() {
			r.rebuild(t.bits(), 2*(len(t.slots)-t.size()))
		}
	}
}

// remove takes them off again, however much e weighs by now.
func (r *ring) remove(e *endpoint) {
	m, ok := r.has[e]
	if !ok {
		return
	}
	t, s := r.table.Load(), seed(e.id.Addr)
	for i := range m.points {
		t.remove(place(s, i)&^memberMask | m.member)
	}
	delete(r.has, e)
	(*r.members.Load())[m.member].Store(nil)
	r.free = append(r.free, m.member)
	r.fit(int(r.points.Add(-int64(m.points))))
}

// enlist makes e a member. There is memory for fewer than there are numbers.
func (r *ring) enlist(e *endpoint) uint64 {
	if len(r.free) == 0 {
		old := *r.members.Load()
		all := make([]atomic.Pointer[endpoint], 2*len(old))
		for i := range old {
			all[i].Store(old[i].Load())
		}
		for i := len(all) - 1; i >= len(old); i-- {
			r.free = append(r.free, uint64(i))
		}
		r.members.Store(&all)
	}
	last := len(r.free) - 1
	m := r.free[last]
	r.free = r.free[:last]
	(*r.members.Load())[m].Store(e)
	return m
}

// before is the order of points. Two endpoints have points at one place by
// chance, or all of them if they have one address; whichever came first, their
// IDs decide.
func (r *ring) before(a, b uint64) bool {
	if (a^b)&^memberMask != 0 {
		return a < b
	}
	return compareIDs(r.member(a).id, r.member(b).id) < 0
}

// insert moves the points behind word by one slot, up to the first free one, and
// the last one first: none is ever missing. It reports whether there was one.
func (r *ring) insert(t *table, word uint64) bool {
	at := int(word >> t.shift)
	for old := t.slots[at].Load(); old != 0 && !r.before(word, old); old = t.slots[at].Load() {
		if at++; at == len(t.slots) {
			return false
		}
	}
	end := at
	for t.slots[end].Load() != 0 {
		if end++; end == len(t.slots) {
			return false
		}
	}
	for ; end > at; end-- {
		t.slots[end].Store(t.slots[end-1].Load())
	}
	t.slots[at].Store(word)
	return true
}

// remove moves those points behind word by one slot that are not where they
// belong.
func (t *table) remove(word uint64) {
	at := int(word >> t.shift)
	for t.slots[at].Load() != word {
		at++
	}
	for ; at+1 < len(t.slots); at++ {
		next := t.slots[at+1].Load()
		if next == 0 || int(next>>t.shift) == at+1 {
			break
		}
		t.slots[at].Store(next)
	}
	t.slots[at].Store(0)
}

// fit makes a table that suits so many points, if this one does not: that has
// points in more than one and at most five of eight slots.
func (r *ring) fit(points int) {
	size := r.table.Load().size()
	if 8*points <= 5*size && (8*points > size || size == 1<<leastBits) {
		return
	}
	r.rebuild(max(leastBits, bits.Len(uint(2*points))), overrun)
}

// rebuild makes a table with 1<<bits slots and some more, or with more than
// that if it must be.
func (r *ring) rebuild(bits, more int) {
	old := r.table.Load()
	t := newTable(bits, more)
	next := 0
	for i := range old.slots {
		word := old.slots[i].Load()
		if word == 0 {
			continue
		}
		next = max(next, int(word>>t.shift))
		if next == len(t.slots) {
			r.rebuild(bits, 2*more)
			return
		}
		t.slots[next].Store(word)
		next++
	}
	r.table.Store(t)
}

// from is a walk along the ring, from the first point at a place or behind it.
func (r *ring) from(at uint64) cursor {
	t := r.table.Load()
	c := cursor{ring: r, table: t, at: int(at >> t.shift), left: len(t.slots)}
	for at &^= memberMask; c.at < len(t.slots) && t.slots[c.at].Load() < at; {
		c.at++
	}
	return c
}

// cursor is a place in a walk.
type cursor struct {
	ring  *ring
	table *table
	at    int // the next slot
	left  int // slots that are still to come
}

// next returns the endpoint of the next point; nil once there are no more.
func (c *cursor) next() *endpoint {
	for ; c.left > 0; c.left-- {
		if c.at == len(c.table.slots) {
			c.at = 0
		}
		word := c.table.slots[c.at].Load()
		c.at++
		if word != 0 {
			if e := c.ring.member(word); e != nil {
				c.left--
				return e
			}
		}
	}
	return nil
}
