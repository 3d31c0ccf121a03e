package balance

import "math"

// Nearly every pick is among endpoints that weigh the same, by the usual cost,
// and nobody asks why. What a contest says of them is said here with as little as
// possible.
//
// First those are found who are looked at, and then what each costs, so that
// their lines are fetched side by side: with many endpoints a pick takes as long
// as it waits for memory. Costs are compared by their bits, which have the same
// order, so that a processor need not foresee which one is less.

// sideBySide is how many lines are fetched at a time.
const sideBySide = 8

// found is the cheapest of some endpoints.
type found struct {
	best   *endpoint
	least  uint32 // the bits of what it costs
	others bool   // some were passed over
	chance uint64 // for whatever comes next
}

// cheapestPlain is cheapest for these endpoints. What is drawn at random cannot
// be foreseen either: there is no branch where the walk turns.
func (g *group) cheapestPlain(s *slots, w walk, k int, now uint32, chance uint64) (best *endpoint, cost float32) {
	var room [sideBySide]*endpoint
	least := uint32(math.MaxUint32)
	at, first, i, n := s.at[:w.n], w.start, w.at, w.n
	back := w.stride - n
	for k > 0 {
		some := 0
		for ; k > 0 && some < len(room); k-- {
			e := at[i].Load()
			i += back
			i += n & (i >> 63)
			if i == first {
				i = again(i, n)
				first = i
			}
			if e != nil {
				room[some] = e
				e.latency.word.Load() // nobody waits for it, but the line is on its way
				some++
			}
		}
		f := g.cheapestKnown(room[:some], now, chance)
		if f.others {
			f.best, f.least = g.cheapestOther(room[:some], now, chance, f)
		}
		if f.least < least {
			best, least = f.best, f.least
		}
		chance = f.chance
	}
	return best, math.Float32frombits(least)
}

// cheapestOf looks at some endpoints that are in one piece.
func (g *group) cheapestOf(some []*endpoint, now uint32, chance uint64) found {
	f := g.cheapestKnown(some, now, chance)
	if f.others {
		f.best, f.least = g.cheapestOther(some, now, chance, f)
	}
	return f
}

// cheapestKnown looks at those that do not fail and have proven themselves, or are
// idle founders, and reports whether there are others. It is costOf written out,
// and calls nothing, so that what it needs stays in registers.
func (g *group) cheapestKnown(some []*endpoint, now uint32, chance uint64) found {
	usual, f := float32(g.usual.read()), g.fading
	var best *endpoint
	var others bool
	least := uint32(math.MaxUint32)
	for _, e := range some {
		chance = nextChance(chance)
		word := e.latency.word.Load()
		latency, at := math.Float32frombits(uint32(word)), uint32(word>>32)
		if now-at <= f.fresh { // it is not where since says 0
			age := float32(int32(now - at))
			latency += (latency - usual) * (age * (age*f.bend - f.slope))
		} else {
			left := halved(float32(since(now, at)) * f.halvings)
			latency = latency*left + usual*(1-left)
		}
		if word == 0 { // no sample yet
			latency = usual
		}
		status := e.status.word.Load()
		if word&failing != 0 || provenOf(status) != proof && !e.isIdleFounder(status) {
			others = true
			continue
		}
		streams := streamsOf(status)
		requests := float32(int32(e.inFlight())-streams) + onePart(chance)
		if its := math.Float32bits(latency*requests + float32(streams)*usual); its < least {
			least, best = its, e
		}
	}
	return found{best, least, others, chance}
}

// cheapestOther looks at those that cheapestKnown passed over, each with the same
// chance as there. If it found none, all are looked at: one may be known by now.
func (g *group) cheapestOther(some []*endpoint, now uint32, chance uint64, f found) (best *endpoint, least uint32) {
	usual := float32(g.usual.read())
	best, least = f.best, f.least
	for _, e := range some {
		chance = nextChance(chance)
		status := e.status.word.Load()
		known := e.latency.word.Load()&failing == 0 && (provenOf(status) == proof || e.isIdleFounder(status))
		if known && f.best != nil {
			continue
		}
		if its := math.Float32bits(g.costOf(e, now, usual, onePart(chance))); its < least {
			best, least = e, its
		}
	}
	return best, least
}

// isIdleFounder reports whether e is of the first set, and nobody waits there: it
// costs what it would if it had proven itself. Where it was slow at first, it may
// stay so for a while.
func (e *endpoint) isIdleFounder(status uint32) bool {
	return provenOf(status) >= founder && int32(e.inFlight()) == streamsOf(status)
}
