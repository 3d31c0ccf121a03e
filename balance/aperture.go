package balance

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// aperture limits the default pick to the first endpoints of each ready set, as Finagle's random
// aperture does. With few endpoints per client, each has more samples and more requests in
// flight, so that their costs are exact. The order of a ready set is random, so that different
// balancers use different endpoints. An endpoint that joins or leaves changes one endpoint of
// the aperture at most. A failing endpoint leaves it.
//
// The number of endpoints doubles while they have more than one request in flight on average,
// and falls by a 64th while they have less than a fifth. It changes at most once for each
// update of the median, 20 times per second.
type aperture struct {
	width atomic.Int64  // math.MaxInt64 for all endpoints
	load  atomic.Uint64 // the bits of a float64: the average number of requests in flight
}

const (
	minAperture  = 12 // the smallest width, as in Finagle
	widenAbove   = 1.0
	narrowBelow  = 0.2
	narrowFactor = 64
	loadWeight   = 1.0 / 8 // of a new value in the average
)

// limit returns the number of endpoints to use of n.
func (a *aperture) limit(n int) int {
	if n <= fullScanMax {
		return n
	}
	return int(min(int64(n), a.width.Load()))
}

// adapt changes the width. known has a sample of the endpoints in use, and n is the number of
// all. It must not be called concurrently with itself.
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

// leaveAperture moves a failing endpoint out of the aperture. The caller must hold mu.
func (g *group) leaveAperture(e *endpoint) {
	s := g.set(e).slots.Load()
	n := int(s.n.Load())
	if width := g.aperture.limit(n); e.slot < width && width < n {
		i := e.slot
		s.swap(i, width+int(g.draw()%uint64(n-width)))
		s.list(i)
	}
}

// apertures returns the width as an attribute, or nil if all endpoints get requests.
func (g *group) apertures() *layer.Attr {
	n, all := 0, g.len()
	for i := range g.sets {
		n += g.aperture.limit(g.sets[i].len())
	}
	if n == all {
		return nil
	}
	return &layer.Attr{Key: "aperture", Value: fmt.Sprintf("%d of %d", n, all)}
}
