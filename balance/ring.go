package balance

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"net/netip"
	"sync/atomic"
)

// ConsistentHash sends requests with the same key of [layer.WithAffinity] to the same
// endpoint, as long as the load of the endpoint allows it: consistent hashing with bounded
// loads. The rule of the zero [Picker] applies to a request without affinity. Requests with
// affinity ignore costs, zones and slow start.
//
// An endpoint has 100 points on the ring per unit of weight, and at most 6400. The points
// depend only on its address. Therefore all balancers over the same endpoints agree. An
// endpoint that becomes ready or unready moves only its own share of the keys.
//
// An endpoint gets at most ⌈bound·(m+1)·w/W⌉ requests in flight. m is the number of
// requests in flight at all endpoints, and w/W is the endpoint's share of the total weight.
// Further requests go to the first endpoint with room among the next 16 points. If none of
// these has room, they go to a random endpoint with room, or else to the endpoint of the
// key. A retry or hedge goes to the next endpoint that was not tried. A lower bound
// distributes the load more evenly, but moves more requests to other endpoints. A bound of
// 0 means 1.25. Another bound is at least 1.05, and math.Inf(1) disables the bound.
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

// draws returns the number of random endpoints that a pick examines to find one with room.
// Endpoints without room have less than 1/bound of the weight, so that all draws fail only
// once in a million times.
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

// pick looks for an endpoint with room on the ring, from the place of the key, and then
// among random endpoints. If none has room, it counts the requests in flight again and
// repeats the search. If there are few endpoints, it counts again before it examines random
// endpoints. If still none has room, it returns the endpoint of the key.
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
		return h.other.pick(q), true // picks a tried endpoint if all were tried
	}
	return first, false
}

// anywhere draws random endpoints, and returns the first one that has room and that the
// request has not tried. It returns nil if none of its draws finds one. The probabilities
// of endpoints are proportional to their points.
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

// inFlightCount is the number of requests in flight at all endpoints. It is the sum of the
// counts of the endpoints, because a common counter would be contended. It is at most one
// tick (1.05 ms) old. If the number is too low, some requests go to other endpoints without
// need.
//
// Up to 256 endpoints, it is exact except for concurrent changes. Above that, its relative
// standard error is below √((c−1+1/m)/256). Here c is the bound, and m is the mean number
// of requests at an endpoint. No endpoint has more than c·m+1 requests.
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

// hasRoom reports whether the bound allows e one more request. An idle endpoint always has
// room.
func (h *hashing) hasRoom(e *endpoint, now uint32) bool {
	has := e.inFlight()
	if has == 0 || math.IsInf(h.bound, 1) {
		return true
	}
	points, all := pointsOf(e.plainWeight()), int(h.ring.points.Load())
	return points >= all || float64(has) < capacity(h.bound, h.inFlight(now), points, all)
}

// capacity returns ⌈c·(m+1)·w/W⌉. c is bound, m is inFlight, and w/W is points/all, the
// share of an endpoint of all points. The formula is that of Mirrokni, Thorup,
// Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016, with weights.
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
// mix and γ are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom
// Number Generators", 2014). The points do not depend on the identity and the protocol of
// an endpoint.
const gamma = 0x9e3779b97f4a7c15

// pointsPerUnit is the number of points of an endpoint of weight 1. The share of the keys
// that an endpoint gets deviates by 1/√points: with 100 points, nine of ten endpoints are
// within 16 % of the mean. A point uses about 40 bytes.
const pointsPerUnit = 100

// maxPointWeight is the weight above which the number of points does not grow, because
// adding points takes time.
const maxPointWeight = 64

// pointsOf returns the number of points of an endpoint with the given weight. The bound of
// its load depends on the same number.
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

// ring has the points of the ready endpoints in order. Reading it takes no lock. During a
// change, a reader may miss points, or see an endpoint that has just left the ring. The
// state of such an endpoint is not ready. Writers hold the balancer's mutex.
//
// The place of a point determines its bucket, which is a list of points in order. There are
// about as many buckets as points, so that finding or adding a point takes the same time
// for any number of points.
type ring struct {
	buckets atomic.Pointer[[]bucket]
	points  atomic.Int64      // number of points on the ring
	has     map[*endpoint]int // number of points of each endpoint; guarded by the balancer's mutex
}

// bucket is the first point of a list, or nil.
type bucket = atomic.Pointer[point]

// point is a place of an endpoint on the ring. A reader may be at a point that was removed.
// The points after it are still found from there.
type point struct {
	at   uint64
	e    *endpoint
	next bucket
}

func newRing() *ring {
	r := &ring{has: make(map[*endpoint]int)}
	r.buckets.Store(new(make([]bucket, 1)))
	return r
}

// bucketOf returns the index of the bucket of a place, among n buckets.
func bucketOf(at uint64, n int) int {
	i, _ := bits.Mul64(at, uint64(n))
	return int(i)
}

// insert adds a point to the buckets. at is its place.
func insert(buckets []bucket, at uint64, e *endpoint) {
	b := &buckets[bucketOf(at, len(buckets))]
	for p := b.Load(); p != nil && p.at < at; p = b.Load() {
		b = &p.next
	}
	added := &point{at: at, e: e}
	added.next.Store(b.Load())
	b.Store(added)
}

// add adds the points of e to the ring, as many as its current weight requires. It does
// nothing if e is already on the ring.
func (r *ring) add(e *endpoint) {
	if r.has[e] > 0 {
		return
	}
	n := pointsOf(e.plainWeight())
	r.has[e] = n
	r.resize(int(r.points.Add(int64(n))))
	s := seed(e.id.Addr)
	for i := range n {
		insert(*r.buckets.Load(), place(s, i), e)
	}
}

// remove removes the points of e from the ring. It removes as many as add added, because
// the weight of e may have changed since then. It does nothing if e is not on the ring.
func (r *ring) remove(e *endpoint) {
	n, all := r.has[e], *r.buckets.Load()
	delete(r.has, e)
	s := seed(e.id.Addr)
	for i := range n {
		b := &all[bucketOf(place(s, i), len(all))]
		for p := b.Load(); p != nil; p = b.Load() {
			if p.e == e {
				b.Store(p.next.Load())
			} else {
				b = &p.next
			}
		}
	}
	r.resize(int(r.points.Add(-int64(n))))
}

// resize replaces the buckets if the given number of points is more than twice or less than
// half of their number.
func (r *ring) resize(points int) {
	old := *r.buckets.Load()
	if points <= 2*len(old) && (2*points >= len(old) || len(old) == 1) {
		return
	}
	next := make([]bucket, max(points, 1))
	for i := range old {
		for p := old[i].Load(); p != nil; p = p.next.Load() {
			insert(next, p.at, p.e)
		}
	}
	r.buckets.Store(&next)
}

// from returns a cursor at the first point at or after the given place.
func (r *ring) from(at uint64) cursor {
	all := *r.buckets.Load()
	i := bucketOf(at, len(all))
	c := cursor{buckets: all, start: at, at: i, left: len(all), point: all[i].Load()}
	for c.point != nil && c.point.at < at {
		c.point = c.point.next.Load()
	}
	return c
}

// cursor is the position of a reader on the ring.
type cursor struct {
	buckets []bucket
	start   uint64
	at      int    // index of the current bucket
	left    int    // number of buckets after the current one; the last one is the first one again
	point   *point // next point of the current bucket, or nil
}

// next returns the endpoint of the next point, or nil after one turn around the ring.
func (c *cursor) next() *endpoint {
	for c.point == nil {
		if c.left == 0 {
			return nil
		}
		c.left--
		if c.at++; c.at == len(c.buckets) {
			c.at = 0
		}
		c.point = c.buckets[c.at].Load()
	}
	p := c.point
	if c.left == 0 && p.at >= c.start { // the turn is complete
		return nil
	}
	c.point = p.next.Load()
	return p.e
}
