package layer

import (
	"math"
	"sync/atomic"
)

// shedCeilings is the arithmetic of Shed: what is in flight, and at how much
// of it a priority is refused. The highest has no ceiling.
type shedCeilings struct {
	shares   [priorities - 1]float64
	inFlight atomic.Int64

	// In parts of a request, so that they can rise by less than one.
	ceilings [priorities - 1]atomic.Int64
}

const (
	shedParts = 20            // of a request; one is what a ceiling rises by
	shedOpen  = math.MaxInt64 // no ceiling
)

func (c *shedCeilings) init(shares [priorities - 1]float64) {
	c.shares = shares
	for i := range c.ceilings {
		c.ceilings[i].Store(shedOpen)
	}
}

// enter counts a request in, unless that is above the ceiling of its priority.
func (c *shedCeilings) enter(rank int) bool {
	if rank >= len(c.ceilings) {
		c.inFlight.Add(1)
		return true
	}
	for {
		n := c.inFlight.Load()
		if (n+1)*shedParts > c.ceilings[rank].Load() {
			return false
		}
		if c.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// short is told that inner refused a request of this rank, which is still
// counted in. One of the lower ones may always be in flight: its response is
// what lifts the ceilings again.
func (c *shedCeilings) short(rank int) {
	others := float64(c.inFlight.Load() - 1)
	for i := range min(rank, len(c.ceilings)) {
		to := max(int64(others*c.shares[i]*shedParts), shedParts)
		for {
			at := c.ceilings[i].Load()
			if at <= to || c.ceilings[i].CompareAndSwap(at, to) {
				break
			}
		}
	}
}

// leave counts out a request whose response ended, and lifts the ceilings.
func (c *shedCeilings) leave() {
	n := c.inFlight.Add(-1)
	for i := range c.ceilings {
		for {
			at := c.ceilings[i].Load()
			if at == shedOpen {
				break
			}
			to := at + 1
			if at > 2*shedParts*n {
				to = shedOpen
			}
			if c.ceilings[i].CompareAndSwap(at, to) {
				break
			}
		}
	}
}

// of returns a ceiling in requests, if there is one.
func (c *shedCeilings) of(rank int) (float64, bool) {
	if rank >= len(c.ceilings) {
		return 0, false
	}
	at := c.ceilings[rank].Load()
	return float64(at) / shedParts, at != shedOpen
}
