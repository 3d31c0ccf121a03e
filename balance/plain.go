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
	chance uint32 // for whatever comes next
}

func none(chance uint32) found { return found{least: math.MaxUint32, chance: chance} }

// cheapestPlain is cheapest for these endpoints. What is drawn at random cannot
// be foreseen either: there is no branch where the walk turns.
func (g *group) cheapestPlain(s *slots, w walk, k int, now, chance uint32) found {
	var room [sideBySide]*endpoint
	f := none(chance)
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
		f = g.cheapestOf(room[:some], now, f)
	}
	return f
}

// cheapestOf looks at some endpoints that are in one piece, after those of which
// f is the cheapest.
func (g *group) cheapestOf(some []*endpoint, now uint32, f found) found {
	for i := 0; ; i++ {
		if f, i = g.cheapestKnown(some, i, now, f); i >= len(some) {
			return f
		}
		f.chance = nextChance(f.chance)
		its := math.Float32bits(g.costOf(some[i], now, g.usual.read(), onePart(f.chance)))
		if its < f.least {
			f.best, f.least = some[i], its
		}
	}
}

// cheapestKnown looks at those from some[i] on, up to one that fails, has not
// proven itself, or was not heard of for long, and returns where that is. It is
// costOf written out, and calls nothing, so that what it needs stays in registers.
func (g *group) cheapestKnown(some []*endpoint, i int, now uint32, f found) (found, int) {
	usual, fade := g.usual.read(), &g.fading
	fresh, slope, bend := fade.fresh, fade.slope, fade.bend
	for i < len(some) {
		e := some[i]
		status := e.status.word.Load()
		word := e.latency.word.Load()
		if status&knownMask != known {
			if !e.isIdleFounder(status) {
				break
			}
			if word == 0 { // no sample yet
				word = pack(usual, now)
			}
		}
		age := now - uint32(word>>32)
		if age > fresh { // it also is where since says 0
			break
		}
		f.chance = nextChance(f.chance)
		ticks := float32(int32(age))
		latency := math.Float32frombits(uint32(word))
		latency += (latency - usual) * (ticks * (ticks*bend - slope))
		if latency < noise {
			latency = noise
		}
		streams := streamsOf(status)
		requests := float32(int32(e.inFlight())-streams) + onePart(f.chance)
		if its := math.Float32bits(latency*requests + float32(streams)*usual); its < f.least {
			f.least, f.best = its, e
		}
		i++
	}
	return f, i
}

// isIdleFounder reports whether e is of the first set and does not fail, and
// nobody waits there: it costs what it would if it had proven itself. Where it was
// slow at first, it may stay so for a while.
func (e *endpoint) isIdleFounder(status uint32) bool {
	return status&knownMask-founder<<provenShift < tried<<provenShift && int32(e.inFlight()) == streamsOf(status)
}
