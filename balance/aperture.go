package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// aperture limits the default picker to a part of the ready endpoints: the first width endpoints of
// each ready set. The order of a ready set is random, so that different balancers use different
// endpoints, as with the random aperture of Finagle. With fewer endpoints per client, each endpoint
// gets more samples and keeps more requests in flight, so that its cost is estimated more exactly. When
// an endpoint joins or leaves the ready set, at most one endpoint of the aperture changes. An endpoint
// leaves the aperture if it fails, or if its latency exceeds slowFactor medians.
//
// The width grows by one whenever the picked endpoint already has busyEndpoint requests in flight, so
// it follows the load without a delay. About every 50 ms, when the median latency is updated, the width
// falls by a 64th if the aperture's endpoints are idle, that is, if on average they serve less than a
// third of a request.
type aperture struct {
	width atomic.Int64 // math.MaxInt64 for all endpoints
	peers atomic.Int64 // Peer.Count
}

// The parameters by which an aperture becomes wider and narrower.
const (
	minAperture  = 8  // the smallest width
	busyEndpoint = 2  // requests in flight of a picked endpoint from which the width grows
	narrowFactor = 64 // an idle aperture loses the width divided by this
	slowFactor   = 10 // an endpoint leaves the aperture if its latency exceeds this number of medians
	idleFactor   = 3  // the aperture is idle with less than one request for this number of endpoints
)

// limit returns how many of a ready set's n endpoints are in the aperture: all if that is at most
// maxExamined, and otherwise as many as the width, but with peers at least one peer's share.
func (a *aperture) limit(n int) int {
	if n <= maxExamined {
		return n
	}
	width := a.width.Load()
	// Together, the peers must cover all endpoints, so each takes at least its part, rounded up.
	if peers := a.peers.Load(); peers > 0 {
		width = max(width, (int64(n)+peers-1)/peers)
	}
	return int(min(int64(n), width))
}

// arrange sorts g's ready sets in the order on which all peers agree, that of a hash of the addresses,
// beginning at the place of p: see [Peer]. The caller must hold the balancer's mutex.
func (g *group) arrange(p Peer) {
	for i := range g.sets {
		old := g.sets[i].slots.Load()
		n := int(old.n.Load())
		endpoints := make([]*endpoint, n)
		for place := range endpoints {
			endpoints[place] = old.endpoints[place].Load()
		}
		// Addresses decide between equal hashes.
		slices.SortFunc(endpoints, func(a, b *endpoint) int {
			return cmp.Or(cmp.Compare(mix(seed(a.id.Addr)), mix(seed(b.id.Addr))), a.id.Addr.Compare(b.id.Addr))
		})
		s := &slots{endpoints: make([]atomic.Pointer[endpoint], len(old.endpoints))}
		for place := range n {
			// Rotated, so that the place of this peer comes first.
			e := endpoints[(place+p.Index*n/p.Count)%n]
			e.slot = place
			s.endpoints[place].Store(e)
		}
		s.n.Store(int64(n))
		s.updateFront(0)
		g.sets[i].slots.Store(s)
	}
}

// widen adds one endpoint to the aperture, if there are fewer than n.
func (a *aperture) widen(n int) {
	if width := a.width.Load(); width < int64(n) {
		// One of several concurrent calls is enough.
		a.width.CompareAndSwap(width, width+1)
	}
}

// narrow reduces the width if the aperture's endpoints are idle. latencies is a random sample of them,
// with their requests in flight. n is the number of all ready endpoints.
func (a *aperture) narrow(latencies []knownLatency, n int) {
	busy := 0
	for _, o := range latencies {
		busy += int(o.busy)
	}
	// All other pickers have no aperture.
	if width := a.width.Load(); width != math.MaxInt64 && idleFactor*busy < len(latencies) {
		// The width may exceed the number of endpoints, if some have left.
		width = min(width, int64(n))
		a.width.Store(max(width-max(width/narrowFactor, 1), minAperture))
	}
}

// leaveAperture moves e, which fails or is slow, out of the aperture: it changes places with a random
// endpoint outside, and then moves to the end, so that a wider aperture includes it last. Nothing
// changes if e is not ready or already outside, if the aperture includes all endpoints, or if the
// policy sets a [Peer], because peers must agree on the order.
func (b *Balancer[Req, Rsp]) leaveAperture(e *endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groupOf(e)
	if g.aperture.peers.Load() > 0 {
		return
	}
	s := g.set(e).slots.Load()
	n := int(s.n.Load())
	if i, width := e.slot, g.aperture.limit(n); e.status.state() == ready && i < width && width < n {
		s.swap(i, width+int(g.draw()%uint64(n-width)))
		s.swap(e.slot, n-1) // the first swap has changed e.slot
		s.updateFront(i)    // the lowest slot that has changed
	}
}

// apertures returns an attribute for Describe, such as "24 of 100". The first number counts the
// endpoints in all apertures, the second one all ready endpoints. If they are equal, apertures
// returns nil. The caller must hold mu.
func (b *Balancer[Req, Rsp]) apertures() layer.State {
	n, total := 0, 0
	for _, g := range b.groups {
		for i := range g.sets {
			n += g.aperture.limit(g.sets[i].len())
			total += g.sets[i].len()
		}
	}
	// Without apertures, there is nothing to show.
	if n == total {
		return nil
	}
	return layer.State{{Key: "aperture", Value: fmt.Sprintf("%d of %d", n, total)}}
}
