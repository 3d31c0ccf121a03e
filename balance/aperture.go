package balance

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// aperture limits the default picker to the first endpoints of each ready set, as the
// random aperture of Finagle does. With fewer endpoints per client, each endpoint has more
// samples and more requests in flight, so that its cost is more exact. The order of a ready
// set is random, so that different balancers use different endpoints. When an endpoint
// joins or leaves the ready set, at most one endpoint of the aperture changes. A failing
// endpoint leaves the aperture.
//
// The width is the number of endpoints in the aperture of a ready set. It can change only
// when the median latency is updated, about every 50 ms. It doubles if the endpoints have
// more than one request in flight on average. It falls by a 64th if they have less than a
// fifth of a request on average.
type aperture struct {
	width atomic.Int64  // math.MaxInt64 for all endpoints
	load  atomic.Uint64 // the bits of a float64: the average number of requests in flight
}

const (
	minAperture  = 12 // the smallest width, as in Finagle
	widenAbove   = 1.0
	narrowBelow  = 0.2
	narrowFactor = 64
	loadWeight   = 1.0 / 8 // the weight of a new value in the average load
)

// limit returns the number of endpoints in the aperture of a set of n endpoints. It returns
// n if n is at most fullScanMax, and otherwise the smaller of n and the width.
func (a *aperture) limit(n int) int {
	if n <= fullScanMax {
		return n
	}
	return int(min(int64(n), a.width.Load()))
}

// adapt doubles the width if the average number of requests in flight per endpoint is above
// widenAbove. It reduces the width by a 64th if the average is below narrowBelow. The
// argument known has the requests in flight at randomly selected endpoints of the aperture.
// n is the number of all ready endpoints. Calls of adapt must not be concurrent.
func (a *aperture) adapt(known []knownLatency, n int) {
	width := a.width.Load()
	if width == math.MaxInt64 {
		return
	}
	busy := 0
	for _, o := range known {
		busy += int(o.busy)
	}
	load := math.Float64frombits(a.load.Load())
	load += (float64(busy)/float64(len(known)) - load) * loadWeight
	switch {
	case load > widenAbove && width < int64(n):
		width = min(2*width, int64(n))
		load /= 2
	case load < narrowBelow && width > minAperture:
		width = max(width-max(width/narrowFactor, 1), minAperture)
	}
	a.width.Store(width)
	a.load.Store(math.Float64bits(load))
}

// leaveAperture moves the failing endpoint e out of the aperture, in exchange for a random
// endpoint outside. It does nothing if e is already outside, or if the aperture has all
// endpoints of the set. The caller must hold the balancer's mutex.
func (g *group) leaveAperture(e *endpoint) {
	s := g.set(e).slots.Load()
	n := int(s.n.Load())
	if width := g.aperture.limit(n); e.slot < width && width < n {
		i := e.slot
		s.swap(i, width+int(g.draw()%uint64(n-width)))
		s.updateFront(i)
	}
}

// apertures returns an attribute for Describe, such as "24 of 100": the number of endpoints
// in the apertures of both ready sets, and the number of all ready endpoints. It returns nil
// if both numbers are equal.
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
