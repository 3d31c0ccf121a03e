package balance

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// aperture limits the default picker to a part of the ready endpoints: the first endpoints of each
// ready set. The order of a ready set is random, so that different balancers use different
// endpoints. The random aperture of Finagle does the same. With fewer endpoints per client, each
// endpoint has more samples and more requests in flight, so that the estimate of its cost is more
// exact. When an endpoint joins or leaves the ready set, at most one endpoint of the aperture
// changes. A failing endpoint leaves the aperture, and one slower than slowFactor median latencies.
//
// The width is the number of endpoints in the aperture of a ready set. It grows by one at
// each pick of an endpoint with at least busyEndpoint requests in flight. Therefore it
// follows the number of requests in flight without a delay. About every 50 ms, when the
// median latency is updated, the width falls by a 64th if the endpoints of the aperture are
// idle: if they have less than a third of a request in flight on average.
type aperture struct {
	width atomic.Int64 // math.MaxInt64 for all endpoints
}

const (
	minAperture  = 8 // the smallest width
	busyEndpoint = 2
	narrowFactor = 64
	slowFactor   = 10
	idleFactor   = 3 // the aperture is idle with less than one request for this number of endpoints
)

// limit returns the number of endpoints in the aperture of a set of n endpoints. It returns
// n if n is at most maxExamined, and otherwise the smaller of n and the width.
func (a *aperture) limit(n int) int {
	if n <= maxExamined {
		return n
	}
	return int(min(int64(n), a.width.Load()))
}

// widen adds one endpoint to the aperture, if it has fewer than n.
func (a *aperture) widen(n int) {
	if width := a.width.Load(); width < int64(n) {
		a.width.CompareAndSwap(width, width+1)
	}
}

// narrow reduces the width if the endpoints of the aperture are idle. The argument known has the
// latencies and the requests in flight of randomly selected endpoints in the aperture. n is the
// number of all ready endpoints.
func (a *aperture) narrow(known []knownLatency, n int) {
	busy := 0
	for _, o := range known {
		busy += int(o.busy)
	}
	if width := a.width.Load(); width != math.MaxInt64 && idleFactor*busy < len(known) {
		width = min(width, int64(n))
		a.width.Store(max(width-max(width/narrowFactor, 1), minAperture))
	}
}

// leaveAperture exchanges the failing or slow endpoint e for a random endpoint outside the aperture.
// It does nothing if e is not ready or already outside, or if the aperture has all endpoints.
func (b *Balancer[Req, Rsp]) leaveAperture(e *endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.group.set(e).slots.Load()
	n := int(s.n.Load())
	if i, width := e.slot, b.group.aperture.limit(n); e.status.state() == ready && i < width && width < n {
		s.swap(i, width+int(b.group.draw()%uint64(n-width)))
		s.updateFront(i)
	}
}

// apertures returns an attribute for Describe, such as "24 of 100". The first number counts the
// endpoints in the apertures of the two ready sets of g. The second number counts all ready
// endpoints. If the numbers are equal, apertures returns nil.
func (g *group) apertures() layer.State {
	n, all := 0, g.len()
	for i := range g.sets {
		n += g.aperture.limit(g.sets[i].len())
	}
	if n == all {
		return nil
	}
	return layer.State{{Key: "aperture", Value: fmt.Sprintf("%d of %d", n, all)}}
}
