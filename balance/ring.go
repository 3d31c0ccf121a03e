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

// ConsistentHash sends requests with the same [layer.WithAffinity] to the same endpoint, as
// long as its load allows it: consistent hashing with bounded loads. A request without affinity
// is picked by the default rule. Requests with affinity ignore costs, zones and slow start.
//
// An endpoint has 100 points on the ring per unit of weight, and at most 6400. They depend only
// on its address, so that all balancers over the same endpoints agree, in any process and
// release. An endpoint that becomes ready or unready moves only its own share of the keys.
//
// An endpoint gets at most ⌈bound·(m+1)·w/W⌉ requests in flight, where m is the number
// of requests in flight at all endpoints and w/W its share of the weight. Further
// requests go to the next of 16 points that has room, else to a random endpoint with
// room, else to the first one. A retry or hedge goes to the next endpoint that was not
// tried. A lower bound distributes more evenly, but moves more keys. 0 means 1.25, the
// minimum is 1.05, and math.Inf(1) disables the bound.
//
// m is counted once per millisecond at most, or again if no endpoint has room. Above
// 256 endpoints it is estimated, with an error of 7 % at one request per endpoint and 4
// % at ten. Concurrent picks may exceed the bound by one each.
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
	hops       = 16 // number of points on the ring that are examined for a key
)

// draws returns the number of random endpoints that are examined to find one with room.
// Endpoints without room have less than 1/bound of the weight, so that all draws fail
// once in a million times.
func draws(bound float64) int { return max(8, int(math.Ceil(math.Log(1e6)/math.Log(bound)))) }

// hashing is the picker of ConsistentHash.
type hashing struct {
	*group
	ring          *ring
	inFlightCount inFlightCount
	bound         float64
	draws         int
	other         picker // for requests without affinity
}

func (h *hashing) joined(e *endpoint) { h.ring.add(e) }
func (h *hashing) left(e *endpoint)   { h.ring.remove(e) }

// pick examines the ring, and then random endpoints. If none has room, it counts the
// requests in flight again. It does so before drawing endpoints if there are few.
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

// along walks the ring from the position of q. It returns the first endpoint that has room and
// true, or the first endpoint of the walk and false if none has room.
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
		q.examined.read(h.group, e, q.now)
		switch {
		case q.attempts.Has(e):
			tried = true
		case h.hasRoom(e, q.now):
			return e, true
		case first == nil:
			first = e
		}
	}
	if first == nil && tried {
		return h.other.pick(q), true // may pick a tried endpoint if there is no other
	}
	return first, false
}

// anywhere examines random endpoints, with probabilities proportional to their points,
// until one has room. It returns nil if none has.
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
		q.examined.read(h.group, e, q.now)
		if !q.attempts.Has(e) && h.hasRoom(e, q.now) {
			return e
		}
	}
	return nil
}

// inFlightCount is the number of requests in flight at all endpoints. It is summed from the
// counts of the endpoints, because a common counter would be contended. It is at most a tick
// (1.05 ms) old. If it is too low, some requests go to other endpoints without need.
//
// Up to 256 endpoints it is exact except for concurrent changes. Above that its
// relative standard error is below √((c−1+1/m)/256), where m is the mean number of
// requests at an endpoint, because no endpoint has more than c·m+1.
type inFlightCount struct{ word atomic.Uint64 } // bits 63..32 tick of the count, 31..0 number

const countSample = 256

// inFlight returns the count. If the count is old, one caller updates it while others
// use the old one.
func (h *hashing) inFlight(now uint32) uint64 {
	word := h.inFlightCount.word.Load()
	if since(now, uint32(word>>32)) > 0 && h.inFlightCount.word.CompareAndSwap(word, word&math.MaxUint32|uint64(now)<<32) {
		return h.recount(now)
	}
	return word & math.MaxUint32
}

func (h *hashing) recount(now uint32) uint64 {
	n := min(h.count(), math.MaxUint32)
	h.inFlightCount.word.Store(uint64(now)<<32 | n)
	return n
}

// count returns the sum of the requests in flight of up to countSample endpoints,
// scaled to all endpoints.
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
	for range min(n, countSample) {
		s, i := here, w.next()
		if i >= nearby {
			s, i = there, i-nearby
		}
		if e := s.at[i].Load(); e != nil {
			requests += e.inFlight()
			points += pointsOf(e.plainWeight())
		}
	}
	if n <= countSample || points == 0 {
		return requests
	}
	return uint64(math.Round(float64(requests) * float64(h.ring.points.Load()) / float64(points)))
}

// hasRoom reports whether e may get one more request. An idle endpoint always may.
func (h *hashing) hasRoom(e *endpoint, now uint32) bool {
	has := e.inFlight()
	if has == 0 || math.IsInf(h.bound, 1) {
		return true
	}
	points, all := pointsOf(e.plainWeight()), int(h.ring.points.Load())
	return points >= all || float64(has) < capacity(h.bound, h.inFlight(now), points, all)
}

// capacity returns ⌈c·(m+1)·w/W⌉ (Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing
// with Bounded Loads", 2016, with weights).
func capacity(bound float64, inFlight uint64, points, all int) float64 {
	return math.Ceil(bound * float64(inFlight+1) * float64(points) / float64(all))
}

// The places on the ring must never change, because processes of different releases
// must agree on them:
//
//	seed of an endpoint   FNV-1a, 64 bits, of its address as text: "10.0.0.1:80", "[2001:db8::1]:80"
//	its i-th point        mix(seed + i·γ), the first 40 bits
//	a key                 mix(key), the first 40 bits
//
// mix and γ are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom
// Number Generators", 2014). A change of identity or protocol keeps the keys.
const gamma = 0x9e3779b97f4a7c15

// pointsPerUnit is the number of points of an endpoint of weight 1. The share of the
// keys deviates by 1/√points: with 100 points, nine of ten endpoints are within 16 % of
// the mean. A point uses 13 to 32 bytes.
const pointsPerUnit = 100

// maxPointWeight is the weight above which the number of points does not grow, because
// adding points takes time.
const maxPointWeight = 64

// pointsOf returns the number of points of a weight. The bound also uses this number.
func pointsOf(weight float64) int {
	return max(1, int(math.Round(min(weight, maxPointWeight)*pointsPerUnit)))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seed returns the seed of an address. IPv4 and IPv4-mapped IPv6 addresses are equal.
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

// ring has the points of the ready endpoints in order. Reading it takes no lock. During
// a change a reader may see a point twice, the next point instead, or an endpoint that
// is not ready any more, as its state shows. Writers hold the balancer's mutex.
//
// The points are the words of one sorted table. Each is in the slot that the first bits
// of its place determine, or in one of the next slots: a hash table with linear probing
// whose hash keeps the order (Amble, Knuth, "Ordered Hash Tables", 1974). Finding or
// adding a point usually reads one cache line. The format of a word is
//
//	bits 63..24  the first 40 bits of its place
//	bits 23..0   the number of its endpoint in members, from 1
//
// An empty slot has the word 0.
type ring struct {
	table   atomic.Pointer[table]
	points  atomic.Int64
	members atomic.Pointer[[]atomic.Pointer[endpoint]] // never shrinks

	// Guarded by the balancer's mutex.
	has  map[*endpoint]membership
	free []uint64 // unused numbers
}

// membership has the number of an endpoint in members and the number of its points.
type membership struct {
	member uint64
	points int
}

type table struct {
	shift int
	slots []atomic.Uint64 // 1<<(64−shift) slots, and some more after them
}

const (
	memberBits = 24
	memberMask = 1<<memberBits - 1
	leastBits  = 6
	overrun    = 64 // number of additional slots; doubled if a run of points is longer
)

func newRing() *ring {
	r := &ring{has: make(map[*endpoint]membership)}
	r.members.Store(&[]atomic.Pointer[endpoint]{{}}) // member 0 is unused
	r.table.Store(newTable(leastBits, overrun))
	return r
}

func newTable(bits, more int) *table {
	return &table{shift: 64 - bits, slots: make([]atomic.Uint64, 1<<bits+more)}
}

func (t *table) bits() int { return 64 - t.shift }
func (t *table) size() int { return 1 << t.bits() }

// member returns the endpoint of a point.
func (r *ring) member(word uint64) *endpoint { return (*r.members.Load())[word&memberMask].Load() }

// add adds the points of e for its current weight, unless e is on the ring.
func (r *ring) add(e *endpoint) {
	if r.has[e].points > 0 {
		return
	}
	m := membership{r.addMember(e), pointsOf(e.plainWeight())}
	r.has[e] = m
	r.resize(int(r.points.Add(int64(m.points))))
	s := seed(e.id.Addr)
	for i := range m.points {
		word := place(s, i)&^memberMask | m.member
		for t := r.table.Load(); !r.insert(t, word); t = r.table.Load() {
			r.rebuild(t.bits(), 2*(len(t.slots)-t.size()))
		}
	}
}

// remove removes the points of e. The weight of e may have changed since add.
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
	r.resize(int(r.points.Add(-int64(m.points))))
}

// addMember adds e to members and returns its number.
func (r *ring) addMember(e *endpoint) uint64 {
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

// before reports whether the point a is before b. Points at the same place are ordered
// by the ID of their endpoints, so that the order of additions does not matter.
func (r *ring) before(a, b uint64) bool {
	if (a^b)&^memberMask != 0 {
		return a < b
	}
	return compareIDs(r.member(a).id, r.member(b).id) < 0
}

// insert inserts word. It moves the points after it by one slot, the last one first, so
// that a reader finds every point. It returns false if there is no free slot.
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

// remove removes word. It moves the following points back by one slot, unless they are
// in their own slot.
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

// resize replaces the table if points occupy less than one or more than five of eight slots.
func (r *ring) resize(points int) {
	size := r.table.Load().size()
	if 8*points <= 5*size && (8*points > size || size == 1<<leastBits) {
		return
	}
	r.rebuild(max(leastBits, bits.Len(uint(2*points))), overrun)
}

// rebuild replaces the table by one with 1<<bits slots and more additional ones. If
// these are too few, it doubles more.
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

// from returns a cursor at the first point at or after the place at.
func (r *ring) from(at uint64) cursor {
	t := r.table.Load()
	c := cursor{ring: r, table: t, at: int(at >> t.shift), left: len(t.slots)}
	for at &^= memberMask; c.at < len(t.slots) && t.slots[c.at].Load() < at; {
		c.at++
	}
	return c
}

// cursor is a position on the ring.
type cursor struct {
	ring  *ring
	table *table
	at    int // index of the next slot
	left  int // number of remaining slots
}

// next returns the endpoint of the next point, or nil after one turn around the ring.
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
