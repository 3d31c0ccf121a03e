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

// ConsistentHash sends requests with the same [layer.WithAffinity] key to the same endpoint, as
// long as its load allows: consistent hashing with bounded loads. Requests without affinity follow
// the rule of the zero [Picker]. Requests with affinity ignore costs, zones and slow start.
//
// An endpoint occupies 100 points on the ring per unit of weight, and at most 6400. Where they lie
// depends only on its address, so all balancers over the same endpoints agree on a key's endpoint.
// If an endpoint becomes ready or unready, only its share of the keys moves.
//
// An endpoint gets at most ⌈bound·(m+1)·w/W⌉ requests in flight. m is the number of requests in
// flight at all endpoints, and w/W is the endpoint's share of the total weight. As long as it has
// fewer, there is room. A request goes to the first endpoint with room among the 16 points that
// follow its key. If these are full, it goes to a random endpoint with room. If all endpoints are
// full, it goes to the key's endpoint. A retry or hedge goes to the next untried endpoint. A lower
// bound distributes the load more evenly, but moves more requests. A bound of 0 means 1.25. Another
// bound is at least 1.05, and math.Inf(1) disables the bound.
//
// m is counted at most once per millisecond, and again if no endpoint has room. Above 256
// endpoints, m is estimated. The error is 7 % with one request per endpoint, and 4 % with ten.
// Concurrent picks may exceed the bound by one request each.
func ConsistentHash(bound float64) Picker {
	if !(bound > 0) {
		bound = usualBound
	}
	bound = max(bound, leastBound)
	return Picker{fmt.Sprintf("hash, bound %g", bound), func(g *group) picker {
		// Requests without affinity use the zero Picker.
		return &hashing{group: g, ring: newRing(), bound: bound, draws: draws(bound), fallback: Picker{}.newPicker(g)}
	}}
}

// The default and the least bound, and the length of a search on the ring.
const (
	usualBound = 1.25
	leastBound = 1.05
	hops       = 16 // number of points on the ring that are examined for a key
)

// draws returns how many random endpoints a pick examines to find one with room. Those without
// room make up less than 1/bound of the weight. With this number, at most one in a million picks
// examines only endpoints without room.
func draws(bound float64) int { return max(8, int(math.Ceil(math.Log(1e6)/math.Log(bound)))) }

// hashing is the picker of ConsistentHash.
type hashing struct {
	*group
	ring          *ring
	inFlightCount inFlightCount
	bound         float64
	draws         int    // see the function draws
	fallback      picker // for requests without affinity
}

// joined and left keep the ring up to date with the ready endpoints.
func (h *hashing) joined(e *endpoint) { h.ring.add(e) }
func (h *hashing) left(e *endpoint)   { h.ring.remove(e) }

// pick returns the endpoint for a request. With affinity, it looks for one with room, first on the ring
// from the place of the key, and then among random endpoints. If it finds none, the count of requests
// in flight may be too old, so it counts them again and looks once more. If all endpoints are full, it
// returns the key's endpoint. With at most h.draws endpoints, counting is cheaper than the random
// search, so it is done before.
func (h *hashing) pick(q query) *endpoint {
	if !q.hasAffinity {
		return h.fallback.pick(q)
	}
	// e is the first endpoint on the ring, which gets the request if all are full.
	e, found := h.searchRing(q)
	if found || e == nil {
		return e
	}
	if h.len() > h.draws { // a count takes longer than some draws
		if next := h.anywhere(q); next != nil {
			return next
		}
	}
	// The old count may be too low, so that endpoints with room look full.
	h.recount(q.now)
	if next, found := h.searchRing(q); found {
		return next
	}
	if next := h.anywhere(q); next != nil {
		return next
	}
	return e
}

// searchRing visits the points on the ring that follow q's key, and returns the first endpoint with
// room that the request has not tried, and true. If all are full, it returns the first untried one, and
// false. If the request has tried all endpoints at these points, the zero Picker's rule picks, and the
// result is true.
func (h *hashing) searchRing(q query) (first *endpoint, found bool) {
	var last *endpoint
	tried := false // an endpoint was left out, because the request has tried it
	t := h.ring.table.Load()
	// The place of a key is mixed as those of the endpoints are.
	i := t.find(mix(q.affinity))
	for range hops {
		var e *endpoint
		if e, i = t.next(i); e == nil {
			break
		}
		// Neighboring points often belong to the same endpoint. Points of endpoints that have just left may still be
		// there.
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
		return h.fallback.pick(q), true // picks a tried endpoint if all were tried
	}
	return first, false
}

// anywhere looks at random endpoints, and returns the first one with room that the request has not
// tried, or nil. The probability of an endpoint is proportional to its number of points.
func (h *hashing) anywhere(q query) *endpoint {
	random := h.draw()
	t := h.ring.table.Load()
	for i := range h.draws {
		// A random place on the ring hits an endpoint in proportion to its points.
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

// inFlightCount stores the number of requests in flight at all endpoints. It is the sum of the
// endpoints' counts, because a common counter would be contended. A pick counts again if the
// stored number is from an earlier tick (1.05 ms). If the number is too low, some requests go to
// other endpoints without need.
//
// Up to 256 endpoints, the number is exact except for concurrent changes. Above that, its
// relative standard error is below √((c−1+1/m)/256). Here c is the bound, and m is the mean
// number of requests per endpoint. No endpoint serves more than c·m+1 requests.
type inFlightCount struct {
	word atomic.Uint64 // bits 63..32: tick of the count; bits 31..0: number of requests
}

// countSample is how many endpoints are examined to estimate the mean load.
const countSample = 256

// inFlight returns the number of requests in flight at all endpoints, as counted in this tick. The
// first caller in a tick counts; concurrent callers use the old count.
func (h *hashing) inFlight(now uint32) uint64 {
	word := h.inFlightCount.word.Load()
	// The compare-and-swap sets the tick and keeps the count, so that only one goroutine counts per tick.
	if since(now, uint32(word>>32)) > 0 && h.inFlightCount.word.CompareAndSwap(word, word&math.MaxUint32|uint64(now)<<32) {
		return h.recount(now)
	}
	return word & math.MaxUint32
}

// recount counts the requests in flight and stores the result.
func (h *hashing) recount(now uint32) uint64 {
	n := min(h.count(), math.MaxUint32)
	h.inFlightCount.word.Store(uint64(now)<<32 | n)
	return n
}

// count returns the number of requests in flight at all endpoints. With more than countSample, it
// counts at a random sample of that size, and scales the result up.
func (h *hashing) count() uint64 {
	// The two sets are counted as if they were one: indexes up to nearby are in the first.
	nearSlots := h.sets[near].slots.Load()
	farSlots := h.sets[far].slots.Load()
	nearby := int(nearSlots.n.Load())
	n := nearby + int(farSlots.n.Load())
	var requests uint64
	var points int
	w := newWalk(h.draw(), n)
	for range min(n, countSample) {
		s := nearSlots
		i := w.next()
		if i >= nearby {
			s, i = farSlots, i-nearby
		}
		if e := s.endpoints[i].Load(); e != nil {
			requests += e.inFlight()
			points += pointsOf(e.plainWeight())
		}
	}
	// All endpoints were counted, or none was found.
	if n <= countSample || points == 0 {
		return requests
	}
	// Scaled by points and not by endpoints, because endpoints with a higher weight get more requests.
	return uint64(math.Round(float64(requests) * float64(h.ring.points.Load()) / float64(points)))
}

// hasRoom reports whether e may get one more request under the load bound of consistent hashing, which
// limits an endpoint's share of all requests in flight. There is always room at an idle endpoint.
func (h *hashing) hasRoom(e *endpoint, now uint32) bool {
	inFlight := e.inFlight()
	if inFlight == 0 || math.IsInf(h.bound, 1) {
		return true
	}
	points, total := pointsOf(e.plainWeight()), int(h.ring.points.Load())
	// An endpoint with all points is the only one.
	return points >= total || float64(inFlight) < capacity(h.bound, h.inFlight(now), points, total)
}

// capacity returns ⌈c·(m+1)·w/W⌉, the number of requests that the bound allows an endpoint, where c
// is bound, m is inFlight, and w/W is points/total, the endpoint's share of all points. The formula
// is from Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016, with
// weights.
func capacity(bound float64, inFlight uint64, points, total int) float64 {
	return math.Ceil(bound * float64(inFlight+1) * float64(points) / float64(total))
}

// gamma is the constant γ in the places on the ring. These places must never change, because
// processes of different releases must agree on them:
//
//	seed of an endpoint   FNV-1a, 64 bits, of its address as text: "10.0.0.1:80", "[2001:db8::1]:80"
//	its i-th point        mix(seed + i·γ)
//	a key                 mix(key)
//
// mix and γ are from SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014). The points do not depend on an endpoint's identity and protocol.
const gamma = 0x9e3779b97f4a7c15

// pointsPerUnit is how many points an endpoint of weight 1 gets. An endpoint's share of the keys
// deviates by 1/√points: with 100 points, nine of ten endpoints are within 16 % of the mean. A
// point uses about 30 bytes.
const pointsPerUnit = 100

// maxPointWeight is the weight above which the number of points does not grow, because
// adding points takes time.
const maxPointWeight = 64

// pointsOf returns how many points an endpoint with the given weight gets. The number also
// determines the load that the bound allows the endpoint.
func pointsOf(weight float64) int {
	return max(1, int(math.Round(min(weight, maxPointWeight)*pointsPerUnit)))
}

// mix is the mixing function of SplitMix64: see gamma.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seed returns the number from which an address's points are computed. An IPv4-mapped IPv6
// address gets the same seed as the IPv4 address.
func seed(addr netip.AddrPort) uint64 {
	h := fnv.New64a()
	// FNV-1a of the text, as the comment of gamma defines it.
	_, _ = h.Write(netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).AppendTo(nil)) // never fails
	return h.Sum64()
}

// place returns the place on the ring of an endpoint's i-th point.
func place(seed uint64, i int) uint64 { return mix(seed + uint64(i)*gamma) }

// ring holds the points of the ready endpoints in order. Reading it takes no lock. During a change,
// a reader may miss points. It may also find a point with an adjacent point's endpoint, or with an
// endpoint that has become unready. Writers hold the balancer's mutex.
type ring struct {
	table  atomic.Pointer[table]
	points atomic.Int64      // number of points on the ring
	counts map[*endpoint]int // number of points of each endpoint; guarded by the balancer's mutex
}

// table is a hash table in which the points are sorted by their places (Amble, Knuth, "Ordered Hash
// Tables", 1974). A point is in the slot that slotOf returns for its place, or in one of the next
// ones. A reader therefore rarely fetches a second cache line.
type table struct {
	size  int    // number of slots that slotOf can return
	slots []slot // size, and at least leastSlots for points after the last place
}

// slot is a slot of a table, which holds one point or is empty.
type slot struct {
	pos atomic.Uint64            // the place of a point
	e   atomic.Pointer[endpoint] // nil if the slot is empty
}

// leastSlots is the smallest size of a table. A table ends with at least this number of additional
// slots. They are for points that are in a later slot than slotOf returns.
const leastSlots = 64

// newRing returns a ring without endpoints.
func newRing() *ring {
	r := &ring{counts: make(map[*endpoint]int)}
	r.table.Store(newTable(leastSlots))
	return r
}

// newTable returns an empty table with size slots, and some more, so that a search need not wrap around.
func newTable(size int) *table { return &table{size, make([]slot, size+leastSlots)} }

// slotOf returns the slot index for a point at the place pos on the ring, which is pos·size/2⁶⁴.
// If the slot is taken, the point is in one of the next ones.
func (t *table) slotOf(pos uint64) int {
	// The upper half of the product is pos·size/2⁶⁴.
	i, _ := bits.Mul64(pos, uint64(t.size))
	return int(i)
}

// find returns the slot of the first point at or after the place pos. If an empty slot comes before
// this point, it returns the empty slot; next then goes on from there.
func (t *table) find(pos uint64) int {
	i := t.slotOf(pos)
	// The points are sorted, so the search ends at the first place that is not before pos.
	for i < len(t.slots) && t.slots[i].e.Load() != nil && t.slots[i].pos.Load() < pos {
		i++
	}
	return i
}

// next returns the endpoint at the first point from slot i on, and the index after it. After the
// last slot, it continues at the first one. It returns nil if the table is empty.
func (t *table) next(i int) (*endpoint, int) {
	for range t.slots {
		// The ring is closed: after the last slot comes the first one.
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

// insert adds a point of e at the place pos. The points after it move by one slot, up to the first
// empty one. Points at the same place, of endpoints that share an address, are in the order of their
// IDs. insert returns t, or a larger copy of it if the last slot is taken.
func (t *table) insert(pos uint64, e *endpoint) *table {
	// A point may move beyond the last slot, so there must be a free one.
	if t.slots[len(t.slots)-1].e.Load() != nil {
		t = &table{t.size, append(slices.Clip(t.slots), make([]slot, leastSlots)...)}
	}
	i := t.find(pos)
	// Points at the same place are ordered by ID, so that all balancers agree.
	for o := t.slots[i].e.Load(); o != nil && t.slots[i].pos.Load() == pos && fmt.Sprint(o.id) < fmt.Sprint(e.id); o = t.slots[i].e.Load() {
		i++
	}
	// Puts the point into its slot, and the point that was there into the next one, until a slot was
	// empty.
	for ; e != nil; i++ {
		s := &t.slots[i]
		oldPos := s.pos.Load()
		next := s.e.Load()
		s.pos.Store(pos)
		s.e.Store(e)
		pos, e = oldPos, next
	}
	return t
}

// remove removes the point of e at a place. The points after it move back by one slot, until an empty
// slot or a point that must not move back, because it is in the slot for its place.
func (t *table) remove(at uint64, e *endpoint) {
	i := t.find(at)
	// Several endpoints may have a point at this place.
	for t.slots[i].e.Load() != e {
		i++
	}
	for ; i+1 < len(t.slots); i++ {
		next := t.slots[i+1].e.Load()
		nextPos := t.slots[i+1].pos.Load()
		// A point in its own slot must stay there, because find begins at that slot.
		if next == nil || t.slotOf(nextPos) == i+1 {
			break
		}
		t.slots[i].pos.Store(nextPos)
		t.slots[i].e.Store(next)
	}
	t.slots[i].e.Store(nil)
}

// add adds the points of e to the ring, as many as its current weight requires. It does
// nothing if e is already on the ring.
func (r *ring) add(e *endpoint) {
	if r.counts[e] > 0 {
		return
	}
	n := pointsOf(e.plainWeight())
	r.counts[e] = n
	// The table is resized for all new points before they are inserted.
	t := r.resized(int(r.points.Add(int64(n))))
	s := seed(e.id.Addr)
	for i := range n {
		t = t.insert(place(s, i), e)
	}
	r.table.Store(t)
}

// remove removes e's points from the ring. It removes as many as add added, because e's weight
// may have changed since then. It does nothing if e is not on the ring.
func (r *ring) remove(e *endpoint) {
	n := r.counts[e]
	t := r.table.Load()
	s := seed(e.id.Addr)
	delete(r.counts, e)
	for i := range n {
		t.remove(place(s, i), e)
	}
	// The points may be so few now that a smaller table is enough.
	r.table.Store(r.resized(int(r.points.Add(-int64(n)))))
}

// resized returns a table of a suitable size for the given number of points: the current one if the
// points fill a quarter to three quarters of its slots, or a copy with about twice as many slots as
// points. The smallest table, of leastSlots, may be emptier.
func (r *ring) resized(points int) *table {
	t := r.table.Load()
	// Between a quarter and three quarters, the table is neither too sparse nor too full.
	if 4*points <= 3*t.size && (4*points >= t.size || t.size == leastSlots) {
		return t
	}
	next := newTable(max(2*points, leastSlots))
	for i := range t.slots {
		if e := t.slots[i].e.Load(); e != nil {
			next = next.insert(t.slots[i].pos.Load(), e)
		}
	}
	return next
}
