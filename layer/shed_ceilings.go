package layer

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// shedCeilings is the arithmetic of Shed: what is in flight, and at how much
// of it a priority is refused. The highest has no ceiling.
type shedCeilings struct {
	shares   [priorities - 1]float64
	inFlight atomic.Int64

	// In parts of a request, so that they can rise by less than one. room is
	// what was in flight when inner refused last: a ceiling as high as that is
	// none.
	ceilings [priorities - 1]atomic.Int64
	room     atomic.Int64

	came shedComers
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
	c.came.start = time.Now()
}

// enter counts a request in, unless that is above the ceiling of its priority.
func (c *shedCeilings) enter(rank int) bool {
	c.came.add(rank)
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
// counted in. The lower ones leave it their share. Its own and those above it
// have filled what there is, too: each leaves the share of the next higher one
// that comes at all, before that is refused.
func (c *shedCeilings) short(rank int) {
	others := c.inFlight.Load() - 1
	c.room.Store(others * shedParts)
	came := c.came.ranks()
	for i := range c.ceilings {
		share := c.shares[i]
		if i >= rank {
			higher := bits.TrailingZeros32(came >> (i + 1) << (i + 1))
			if higher >= priorities {
				return
			}
			share = c.shares[higher-1]
		}
		c.lower(i, others, share)
	}
}

// lower gives a rank its share of what is in flight, but for one place at the
// least, unless all of it is its share. One of the rank may always be in flight:
// its response is what lifts the ceilings again.
func (c *shedCeilings) lower(rank int, others int64, share float64) {
	to := int64(float64(others) * share * shedParts)
	if share < 1 {
		to = min(to, (others-1)*shedParts)
	}
	to = max(to, shedParts)
	for {
		at := c.ceilings[rank].Load()
		if at <= to || c.ceilings[rank].CompareAndSwap(at, to) {
			return
		}
	}
}

// leave counts out a request whose response ended, and lifts the ceilings. One
// that has come to where inner refused is taken away: so the last places are not
// filled for long before inner refuses again, or shows that it has more.
func (c *shedCeilings) leave() {
	n := c.inFlight.Add(-1)
	for i := range c.ceilings {
		for {
			at := c.ceilings[i].Load()
			if at == shedOpen {
				break
			}
			to := at + 1
			if to >= c.room.Load() || at > 2*shedParts*(n+2) {
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

// shedComers is which priorities came in this minute or the one before. The
// clock is read when inner refuses only.
type shedComers struct {
	start    time.Time
	turned   atomic.Int64 // when this minute began, since start
	now, old atomic.Uint32
}

func (c *shedComers) add(rank int) {
	if bit := uint32(1) << rank; c.now.Load()&bit == 0 {
		c.now.Or(bit)
	}
}

// ranks returns a set of bits.
func (c *shedComers) ranks() uint32 {
	now, turned := int64(time.Since(c.start)), c.turned.Load()
	if now-turned >= int64(time.Minute) && c.turned.CompareAndSwap(turned, now) {
		c.old.Store(c.now.Swap(0))
	}
	return c.now.Load() | c.old.Load()
}
