package balance

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"
)

// ConsistentHash sends requests with the same key of [layer.WithAffinity] to the same
// endpoint, as long as the load of the endpoint allows it: consistent hashing with bounded
// loads. The rule of the zero [Picker] applies to a request without affinity. Requests with
// affinity ignore costs, zones and slow start.
//
// An endpoint has 100 points on the ring per unit of weight, and at most 6400. The places of the
// points depend only on its address. Therefore all balancers over the same endpoints agree on the
// endpoint of a key. If an endpoint becomes ready or unready, only its share of the keys moves.
//
// An endpoint gets at most ⌈bound·(m+1)·w/W⌉ requests in flight. m is the number of requests in
// flight at all endpoints, and w/W is the endpoint's share of the total weight. An endpoint with
// fewer requests has room. A request goes to the first endpoint with room among the 16 points from
// the place of its key. If these are full, it goes to a random endpoint with room. If all endpoints
// are full, it goes to the endpoint of the key. A retry or hedge goes to the next untried endpoint.
// A lower bound distributes the load more evenly, but moves more requests. A bound of 0 means 1.25.
// Another bound is at least 1.05, and math.Inf(1) disables the bound.
//
// m is counted at most once per millisecond, and again if no endpoint has room. Above 256
// endpoints, m is estimated. The error is 7 % with one request per endpoint, and 4 % with
// ten. Concurrent picks may exceed the bound by one request each.
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

// draws returns the number of random endpoints that a pick examines to find one with room. The
// endpoints without room have less than 1/bound of the weight. With this number, at most one in a
// million picks examines only endpoints without room.
func draws(bound float64) int { return max(8, int(math.Ceil(math.Log(1e6)/math.Log(bound)))) }

// hashing is the picker of ConsistentHash.
type hashing struct {
	*group
	ring          *ring
	inFlightCount inFlightCount
	bound         float64
	draws         int    // see the function draws
	other         picker // for requests without affinity
}

func (h *hashing) joined(e *endpoint) { h.ring.add(e) }
func (h *hashing) left(e *endpoint)   { h.ring.remove(e) }

// pick returns the endpoint for a request. Without affinity, h.other picks it. With affinity, pick
// searches for an endpoint with room, first on the ring from the place of the key, and then among
// random endpoints. If neither search finds one, pick counts the requests in flight again and
// repeats both searches. If both fail again, it returns the endpoint of the key. With at most
// h.draws endpoints, pick counts before the first random search, because the count is then faster.
func (h *hashing) pick(q query) *endpoint {
	if !q.hasAffinity {
		return h.other.pick(q)
	}
	e, found := h.along(q)
	if found || e == nil {
		return e
	}
	if h.len() > h.draws { // a count takes longer than some draws
		if next := h.anywhere(q); next != nil {
			return next
		}
	}
	h.recount(q.now)
	if next, found := h.along(q); found {
		return next
	}
	if next := h.anywhere(q); next != nil {
		return next
	}
	return e
}

// along visits the next points on the ring from the place of the key of q. It considers only
// endpoints that the request has not tried. It returns the first of them with room, and true. If
// all of them are full, it returns the first of them, and false. If the request has tried all
// endpoints at these points, it returns the endpoint that h.other picks, and true.
func (h *hashing) along(q query) (first *endpoint, found bool) {
	var last *endpoint
	tried := false
	t := h.ring.table.Load()
	i := t.find(mix(q.affinity))
	for range hops {
		var e *endpoint
		if e, i = t.next(i); e == nil {
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
		return h.other.pick(q), true // picks a tried endpoint if all were tried
	}
	return first, false
}

// anywhere draws random endpoints, and returns the first one that has room and that the
// request has not tried. It returns nil if none of its draws finds one. The probabilities
// of endpoints are proportional to their points.
func (h *hashing) anywhere(q query) *endpoint {
	random, t := h.draw(), h.ring.table.Load()
	for i := range h.draws {
		e, _ := t.next(t.find(place(random, i)))
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

// inFlightCount stores the number of requests in flight at all endpoints. It is the sum of
// the counts of the endpoints, because a common counter would be contended. A pick counts
// again if the stored number is from an earlier tick (1.05 ms). If the number is too low,
// some requests go to other endpoints without need.
//
// Up to 256 endpoints, the number is exact except for concurrent changes. Above that, its
// relative standard error is below √((c−1+1/m)/256). Here c is the bound, and m is the mean
// number of requests at an endpoint. No endpoint has more than c·m+1 requests.
type inFlightCount struct {
	word atomic.Uint64 // bits 63..32: tick of the count; bits 31..0: number of requests
}

const countSample = 256

// inFlight returns the number of requests in flight at all endpoints. If the stored count
// is from an earlier tick, one caller counts again while other callers use the old count.
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

// count returns the number of requests in flight at up to countSample endpoints, scaled to
// all endpoints.
func (h *hashing) count() uint64 {
	here, there := h.sets[near].slots.Load(), h.sets[far].slots.Load()
	nearby := int(here.n.Load())
	n := nearby + int(there.n.Load())
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

// hasRoom reports whether the bound allows e one more request. An idle endpoint always has room.
func (h *hashing) hasRoom(e *endpoint, now uint32) bool {
	has := e.inFlight()
	if has == 0 || math.IsInf(h.bound, 1) {
		return true
	}
	points, all := pointsOf(e.plainWeight()), int(h.ring.points.Load())
	return points >= all || float64(has) < capacity(h.bound, h.inFlight(now), points, all)
}

// capacity returns ⌈c·(m+1)·w/W⌉, the number of requests that the bound allows an endpoint.
// c is bound, m is inFlight, and w/W is points/all, the endpoint's share of all points. The
// formula is that of Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded
// Loads", 2016, with weights.
func capacity(bound float64, inFlight uint64, points, all int) float64 {
	return math.Ceil(bound * float64(inFlight+1) * float64(points) / float64(all))
}

// gamma is the constant γ in the places on the ring. These places must never change,
// because processes of different releases must agree on them:
//
//	seed of an endpoint   FNV-1a, 64 bits, of its address as text: "10.0.0.1:80", "[2001:db8::1]:80"
//	its i-th point        mix(seed + i·γ)
//	a key                 mix(key)
//
// mix and γ are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014). The points do not depend on the identity and the protocol of an endpoint.
const gamma = 0x9e3779b97f4a7c15

// pointsPerUnit is the number of points of an endpoint of weight 1. The share of the keys
// that an endpoint gets deviates by 1/√points: with 100 points, nine of ten endpoints are
// within 16 % of the mean. A point uses about 30 bytes.
const pointsPerUnit = 100

// maxPointWeight is the weight above which the number of points does not grow, because
// adding points takes time.
const maxPointWeight = 64

// pointsOf returns the number of points of an endpoint with the given weight. The number
// also determines the load that the bound allows the endpoint.
func pointsOf(weight float64) int {
	return max(1, int(math.Round(min(weight, maxPointWeight)*pointsPerUnit)))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seed returns the number from which the points of an address are computed. An IPv4-mapped
// IPv6 address has the seed of the IPv4 address.
func seed(addr netip.AddrPort) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).AppendTo(nil)) // never fails
	return h.Sum64()
}

func place(seed uint64, i int) uint64 { return mix(seed + uint64(i)*gamma) }

// ring has the points of the ready endpoints in order. Reading it takes no lock. During a change, a
// reader may miss points. It may also find a point with the endpoint of an adjacent point, or with
// an endpoint that has become unready. Writers hold the balancer's mutex.
type ring struct {
	table  atomic.Pointer[table]
	points atomic.Int64      // number of points on the ring
	has    map[*endpoint]int // number of points of each endpoint; guarded by the balancer's mutex
}

// table is a hash table in which the points are in the order of their places (Amble, Knuth,
// "Ordered Hash Tables", 1974). A point is in the slot that slotOf returns for its place, or in one
// of the next slots. A reader therefore rarely fetches a second cache line.
type table struct {
	size  int    // number of slots that slotOf can return
	slots []slot // size, and at least leastSlots for points after the last place
}

type slot struct {
	at atomic.Uint64            // the place of a point
	e  atomic.Pointer[endpoint] // nil if the slot is empty
}

// leastSlots is the smallest size of a table. A table has at least this number of additional slots
// at its end. They are for points that are in a later slot than slotOf returns.
const leastSlots = 64

func newRing() *ring {
	r := &ring{has: make(map[*endpoint]int)}
	r.table.Store(newTable(leastSlots))
	return r
}

func newTable(size int) *table { return &table{size, make([]slot, size+leastSlots)} }

// slotOf returns the index of the slot for a point, which is at·size/2⁶⁴. The argument at is the
// place of the point on the ring. If another point has this slot, the point is in one of the next
// slots.
func (t *table) slotOf(at uint64) int {
	i, _ := bits.Mul64(at, uint64(t.size))
	return int(i)
}

// find returns the index of the slot with the first point at or after a place on the ring, which is
// the argument at. If an empty slot comes before this point, find returns the index of the empty
// slot. It searches from the slot that slotOf returns for the place.
func (t *table) find(at uint64) int {
	i := t.slotOf(at)
	for i < len(t.slots) && t.slots[i].e.Load() != nil && t.slots[i].at.Load() < at {
		i++
	}
	return i
}

// next returns the endpoint of the first point from slot i on, and the index after it. After the
// last slot, it continues at the first one. It returns nil if the table has no point.
func (t *table) next(i int) (*endpoint, int) {
	for range t.slots {
		if i == len(t.slots) {
			i = 0
		}
		e := t.slots[i].e.Load()
		if i++; e != nil {
			return e, i
		}
	}
	return nil, i
}

// insert adds a point and moves the points after it by one slot, up to the first empty one.
// Points of endpoints with the same address are in the order of the IDs. insert returns t,
// or a larger copy if the last slot is not empty.
func (t *table) insert(at uint64, e *endpoint) *table {
	if t.slots[len(t.slots)-1].e.Load() != nil {
		t = &table{t.size, append(slices.Clip(t.slots), make([]slot, leastSlots)...)}
	}
	i := t.find(at)
	for o := t.slots[i].e.Load(); o != nil && t.slots[i].at.Load() == at && fmt.Sprint(o.id) < fmt.Sprint(e.id); o = t.slots[i].e.Load() {
		i++
	}
	for ; e != nil; i++ {
		s := &t.slots[i]
		its, next := s.at.Load(), s.e.Load()
		s.at.Store(at)
		s.e.Store(e)
		at, e = its, next
	}
	return t
}

// remove removes a point. It moves the following points back by one slot. It stops at an
// empty slot, or at a point that is already in the slot of its place.
func (t *table) remove(at uint64, e *endpoint) {
	i := t.find(at)
	for t.slots[i].e.Load() != e {
		i++
	}
	for ; i+1 < len(t.slots); i++ {
		next, its := t.slots[i+1].e.Load(), t.slots[i+1].at.Load()
		if next == nil || t.slotOf(its) == i+1 {
			break
		}
		t.slots[i].at.Store(its)
		t.slots[i].e.Store(next)
	}
	t.slots[i].e.Store(nil)
}

// add adds the points of e to the ring, as many as its current weight requires. It does
// nothing if e is already on the ring.
func (r *ring) add(e *endpoint) {
	if r.has[e] > 0 {
		return
	}
	n := pointsOf(e.plainWeight())
	r.has[e] = n
	t, s := r.resized(int(r.points.Add(int64(n)))), seed(e.id.Addr)
	for i := range n {
		t = t.insert(place(s, i), e)
	}
	r.table.Store(t)
}

// remove removes the points of e from the ring. It removes as many as add added, because
// the weight of e may have changed since then. It does nothing if e is not on the ring.
func (r *ring) remove(e *endpoint) {
	n, t, s := r.has[e], r.table.Load(), seed(e.id.Addr)
	delete(r.has, e)
	for i := range n {
		t.remove(place(s, i), e)
	}
	r.table.Store(r.resized(int(r.points.Add(-int64(n)))))
}

// resized returns a table with a suitable size for the given number of points. The current table is
// suitable if the points fill a quarter to three quarters of its slots. A table of the smallest
// size, leastSlots, may be emptier. If the current table is not suitable, the result is a copy with
// 2 · points slots, but at least leastSlots.
func (r *ring) resized(points int) *table {
	t := r.table.Load()
	if 4*points <= 3*t.size && (4*points >= t.size || t.size == leastSlots) {
		return t
	}
	next := newTable(max(2*points, leastSlots))
	for i := range t.slots {
		if e := t.slots[i].e.Load(); e != nil {
			next = next.insert(t.slots[i].at.Load(), e)
		}
	}
	return next
}
