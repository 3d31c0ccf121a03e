package balance

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"github.com/gotower/gotower/resolve"
)

// ConsistentHash sends requests that are alike to the same endpoint, where there is room:
// consistent hashing with bounded loads. What is alike a request says by
// [layer.WithAffinity]; one that does not goes by the default rule.
//
// Each endpoint has points on a ring, 100 for a unit of its weight and at most
// 6400, at places that only its address decides. A key has its place there too,
// and belongs to the next endpoint from there. So balancers over the same
// endpoints agree, in other processes and in other releases; an endpoint that
// joins or leaves takes or gives its own share of the keys, and no other key
// moves. One that is not ready has left, until it is ready again.
//
// An endpoint takes no more than bound times its share of the requests that are
// in flight, rounded up: ⌈bound·(m+1)·w/W⌉, where m is all that the ready
// endpoints have, and w/W its part of the weight. What is more goes to the next
// one on the ring that has room, so that a hot key spreads over as many
// endpoints as it needs. If none of the next 16 points has room, any endpoint
// that has will do; it is drawn at random. 1.25 is the usual bound, and what 0
// means. The lower it is the more even is the load, the more often requests that
// are alike part, and the more endpoints are looked at, on average at most
// bound/(bound−1). A bound below 1.05 is taken as that; with math.Inf(1) there
// is none.
//
// The requests in flight are counted at most every millisecond, and if no room
// is found; where there are more than 256 endpoints, they are estimated from
// 256. So an endpoint may exceed the bound by what that number changed within a
// millisecond, by the error of the estimate, which is 7 % at one request an
// endpoint and 4 % at ten, and by as many requests as choose at the same
// instant. Where no room is found after all, the first endpoint gets it.
//
// A retry or hedge goes to the next endpoint where the request has not been.
// Costs, zones and slow start make no difference to a request with a key.
func ConsistentHash(bound float64) Picker {
	if !(bound > 0) {
		bound = usualBound
	}
	bound = max(bound, leastBound)
	return Picker{fmt.Sprintf("hash, bound %g", bound), func(g *group) picker {
		return &hashing{group: g, ring: newRing(), bound: bound, draws: draws(bound), other: Picker{}.on(g)}
	}}
}

const (
	usualBound = 1.25
	leastBound = 1.05
	hops       = 16 // points on the ring that are looked at for a key
)

// draws is how many endpoints are drawn to find one with room. Those that are
// full have less than 1/c of all weight, so that one draw fails with that
// probability, and all of them once in a million times.
func draws(bound float64) int { return max(8, int(math.Ceil(math.Log(1e6)/math.Log(bound)))) }

// hashing is ConsistentHash at work.
type hashing struct {
	*group
	ring  *ring
	crowd crowd
	bound float64
	draws int
	other picker // for requests without a key
}

func (h *hashing) joined(e *endpoint) { h.ring.add(e) }
func (h *hashing) left(e *endpoint)   { h.ring.remove(e) }

// pick looks along the ring first. Where no room is found the number of
// requests may be out of date: it is counted anew before that, if this costs
// less than drawing, else after.
func (h *hashing) pick(q query) *endpoint {
	if !q.hasAffinity {
		return h.other.pick(q)
	}
	e, found := h.along(q)
	if found || e == nil {
		return e
	}
	few := h.len() <= h.draws
	if few {
		h.recount(q.now)
		if next, found := h.along(q); found {
			return next
		}
	}
	if next := h.anywhere(q); next != nil {
		return next
	}
	if !few {
		h.recount(q.now)
		if next := h.anywhere(q); next != nil {
			return next
		}
	}
	return e
}

// along returns the next endpoint along the ring that has room. If there is
// none it returns the first one, and false.
func (h *hashing) along(q query) (first *endpoint, found bool) {
	var last *endpoint
	tried := false
	c := h.ring.from(mix(q.affinity))
	for range hops {
		e := c.next()
		if e == nil {
			break
		}
		if e == last || e.status.state() != ready {
			continue
		}
		last = e
		q.why.look(h.group, e, q.now)
		switch {
		case q.tries.Has(e):
			tried = true
		case h.hasRoom(e, q.now):
			return e, true
		case first == nil:
			first = e
		}
	}
	if first == nil && tried {
		return h.other.pick(q), true // it looks elsewhere, and has an answer where there is no other
	}
	return first, false
}

// anywhere draws endpoints, each as likely as its share of the ring, until one
// has room; nil if none has.
func (h *hashing) anywhere(q query) *endpoint {
	random := h.draw()
	for i := range h.draws {
		c := h.ring.from(place(random, i))
		e := c.next()
		if e == nil {
			return nil
		}
		if e.status.state() != ready {
			continue
		}
		q.why.look(h.group, e, q.now)
		if !q.tries.Has(e) && h.hasRoom(e, q.now) {
			return e
		}
	}
	return nil
}

// crowd is how many requests all endpoints have in flight. Counting each as it
// comes and goes would make all requests meet at one word; the endpoints have
// their own counts already. So it adds those up, whenever it is asked for
// after a while: all of them up to 256, and else 256 drawn at random.
//
// What is true of it, with n endpoints:
//
//   - It is at most a tick old, 1.05 ms. More came since than it knows of: then
//     the bound is too tight, and some requests go elsewhere without need. As
//     soon as no room is found it is counted anew. More went: then the bound is
//     what it was a tick ago. It has nothing to say of requests under way.
//   - Up to 256 endpoints it is exact but for what came and went during the
//     count.
//   - Beyond, with a mean of m requests at an endpoint, its relative standard
//     error is below √((c−1+1/m)/256), 7 % for m=1 and 4 % for m=10: as long as
//     no endpoint has more than c·m+1, the variance is below m·((c−1)·m+1).
type crowd struct{ word atomic.Uint64 } // bits 63..32 the tick when it was counted, 31..0 the number

const counted = 256

// inFlight is how many requests there are, more or less. Who finds that the
// number is old counts anew; the others take the old one meanwhile.
func (h *hashing) inFlight(now uint32) uint64 {
	word := h.crowd.word.Load()
	if since(now, uint32(word>>32)) > 0 && h.crowd.word.CompareAndSwap(word, word&math.MaxUint32|uint64(now)<<32) {
		return h.recount(now)
	}
	return word & math.MaxUint32
}

func (h *hashing) recount(now uint32) uint64 {
	n := min(h.count(), math.MaxUint32)
	h.crowd.word.Store(uint64(now)<<32 | n)
	return n
}

// count adds up what some endpoints have, of both sets alike, and concludes
// from their share of the weight what all have.
func (h *hashing) count() uint64 {
	here, there := h.sets[near].slots.Load(), h.sets[far].slots.Load()
	nearby := int(here.n.Load())
	n := nearby + int(there.n.Load())
	if n == 0 {
		return 0
	}
	var requests uint64
	var points int
	w := newWalk(h.draw(), n)
	for range min(n, counted) {
		s, i := here, w.next()
		if i >= nearby {
			s, i = there, i-nearby
		}
		if e := s.at[i].Load(); e != nil {
			requests += e.inFlight()
			points += pointsOf(e.plainWeight())
		}
	}
	if n <= counted || points == 0 {
		return requests
	}
	return uint64(math.Round(float64(requests) * float64(h.ring.points.Load()) / float64(points)))
}

// hasRoom reports whether e may get one more request: whether it has fewer than
// its capacity, its share of c times all requests including this one, rounded
// up. So one that has nothing to do has room, whatever the count is.
func (h *hashing) hasRoom(e *endpoint, now uint32) bool {
	has := e.inFlight()
	if has == 0 || math.IsInf(h.bound, 1) {
		return true
	}
	points, all := pointsOf(e.plainWeight()), int(h.ring.points.Load())
	return points >= all || float64(has) < capacity(h.bound, h.inFlight(now), points, all)
}

// capacity is ⌈c·(m+1)·w/W⌉ (Mirrokni, Thorup, Zadimoghaddam, "Consistent
// Hashing with Bounded Loads", 2016, with weights).
func capacity(bound float64, inFlight uint64, points, all int) float64 {
	return math.Ceil(bound * float64(inFlight+1) * float64(points) / float64(all))
}

// The places on the ring are a promise: processes and releases agree on them,
// so that a key has the same endpoint everywhere.
//
//	seed of an endpoint   FNV-1a, 64 bits, of its address as text: "10.0.0.1:80", "[2001:db8::1]:80"
//	its i-th point        mix(seed + i·γ), the first 40 bits
//	a key                 mix(key), likewise
//
// mix and γ are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable
// Pseudorandom Number Generators", 2014): the points of an endpoint are the
// output of that generator. Nothing but the address counts, so that an endpoint
// whose identity or protocol changes keeps its keys.
const gamma = 0x9e3779b97f4a7c15

// perUnit is how many points an endpoint of weight 1 has. The share of the
// keys that falls to one deviates by 1/√points: with 100, nine of ten endpoints
// are within 16 % of the mean, and the first of a thousand has 1.37 times as
// many (see TestShareOfTheRing). What the bound does not allow, it cuts off: to
// halve the deviation takes four times the points. One takes 13 to 32 bytes.
const perUnit = 100

// heaviest is the weight above which an endpoint gets no more points: it would
// hold up the others.
const heaviest = 64

// pointsOf is how many points a weight is worth; it is the weight that counts
// for the bound as well.
func pointsOf(weight float64) int {
	return max(1, int(math.Round(min(weight, heaviest)*perUnit)))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seed is that of the places of an endpoint. An IPv4 address is the same in
// IPv6's clothes.
func seed(addr netip.AddrPort) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).AppendTo(nil)) // never fails
	return h.Sum64()
}

func place(seed uint64, i int) uint64 { return mix(seed + uint64(i)*gamma) }

func compareIDs(a, b resolve.ID) int {
	return cmp.Or(
		a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.ServerName, b.ServerName),
		cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Authority, b.Authority), cmp.Compare(a.OpaquePort, b.OpaquePort),
	)
}

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
