package balance

import (
	"math"
	"sync/atomic"
)

// crowd is how many requests all endpoints have in flight. Counting each as it
// comes and goes would make all requests meet at one word; the endpoints have
// their own counts already. So it adds those up, whenever it is asked for
// after a while: all of them up to 256, and else 256 drawn at random.
//
// What is true of it, with n endpoints:
//
//   - It is at most a tick old, 1.05 ms. More came since than it knows of: then
//     the bound is too tight, and some requests go elsewhere without need. As
//     soon as no room is found it is counted anew. More went: then the bound is
//     what it was a tick ago. It has nothing to say of requests under way.
//   - Up to 256 endpoints it is exact but for what came and went during the
//     count.
//   - Beyond, with a mean of m requests at an endpoint, its relative standard
//     error is below √((c−1+1/m)/256), 7 % for m=1 and 4 % for m=10: as long as
//     no endpoint has more than c·m+1, the variance is below m·((c−1)·m+1).
type crowd struct{ word atomic.Uint64 } // bits 63..32 the tick when it was counted, 31..0 the number

const counted = 256

// inFlight is how many requests there are, more or less. Who finds that the
// number is old counts anew; the others take the old one meanwhile.
func (h *hashing) inFlight(now uint32) uint64 {
	word := h.crowd.word.Load()
	if since(now, uint32(word>>32)) > 0 && h.crowd.word.CompareAndSwap(word, word&math.MaxUint32|uint64(now)<<32) {
		return h.recount(now)
	}
	return word & math.MaxUint32
}

func (h *hashing) recount(now uint32) uint64 {
	n := min(h.count(), math.MaxUint32)
	h.crowd.word.Store(uint64(now)<<32 | n)
	return n
}

// count adds up what some endpoints have, of both sets alike, and concludes
// from their share of the weight what all have.
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
	for range min(n, counted) {
		s, i := here, w.next()
		if i >= nearby {
			s, i = there, i-nearby
		}
		if e := s.at[i].Load(); e != nil {
			requests += e.inFlight()
			points += pointsOf(e.plainWeight())
		}
	}
	if n <= counted || points == 0 {
		return requests
	}
	return uint64(math.Round(float64(requests) * float64(h.ring.points.Load()) / float64(points)))
}

// hasRoom reports whether e may get one more request: whether it has fewer than
// its capacity, its share of c times all requests including this one, rounded
// up. So one that has nothing to do has room, whatever the count is.
func (h *hashing) hasRoom(e *endpoint, now uint32) bool {
	has := e.inFlight()
	if has == 0 || math.IsInf(h.bound, 1) {
		return true
	}
	points, all := pointsOf(e.plainWeight()), int(h.ring.points.Load())
	return points >= all || float64(has) < capacity(h.bound, h.inFlight(now), points, all)
}

// capacity is ⌈c·(m+1)·w/W⌉ (Mirrokni, Thorup, Zadimoghaddam, "Consistent
// Hashing with Bounded Loads", 2016, with weights).
func capacity(bound float64, inFlight uint64, points, all int) float64 {
	return math.Ceil(bound * float64(inFlight+1) * float64(points) / float64(all))
}
