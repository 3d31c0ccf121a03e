package balance

import "sync/atomic"

// status is how an endpoint is doing, in one word:
//
//	bits 31..11  of the requests in flight, the responses whose latency was taken: signed, up to a million
//	bit 10       its slow start is over, which ticks alone forget: they wrap round
//	bit 9        there is something bad in its record
//	bit 8        it is failing: see endpoint.judged
//	bits 7..3    samples so far, as far as they matter: see full
//	bits 2..0    its state
//
// All but the first change a few times in a life, or when something fails.
type status struct{ word atomic.Uint32 }

const (
	stateMask   = 1<<3 - 1
	provenShift = 3
	provenMask  = 1<<5 - 1
	failing     = 1 << 8
	badRecord   = 1 << 9
	isWarm      = 1 << 10
	streamShift = 11

	// Of an endpoint of which enough is known, and which does not fail.
	knownMask = failing | provenMask<<provenShift
	known     = proof << provenShift
)

// The states of an endpoint. They change under the balancer's mutex.
const (
	ready   uint32 = iota // in a ready set
	unready               // a goroutine waits in its Ready
	ejected               // it failed more than others: it waits for its time
	closed                // it will never be ready again
	removed               // it is not an endpoint any more
)

func stateName(state uint32) string {
	return [...]string{"ready", "unready", "ejected", "closed", "removed"}[min(state, removed)]
}

func (s *status) state() uint32 { return s.word.Load() & stateMask }

// setState returns what the state was.
func (s *status) setState(state uint32) (old uint32) {
	return s.change(stateMask, state) & stateMask
}

func (s *status) proven() uint32 { return provenOf(s.word.Load()) }

func (s *status) setProven(p uint32) { s.change(provenMask<<provenShift, p<<provenShift) }

func (s *status) change(mask, to uint32) (old uint32) {
	for {
		if old = s.word.Load(); s.word.CompareAndSwap(old, old&^mask|to) {
			return old
		}
	}
}

func (s *status) streams() int32 { return streamsOf(s.word.Load()) }
func (s *status) stream(n int32) { s.word.Add(uint32(n) << streamShift) }

func (s *status) marked() bool { return s.word.Load()&badRecord != 0 }
func (s *status) mark()        { s.word.Or(badRecord) }
func (s *status) unmark()      { s.word.And(^uint32(badRecord)) }

func (s *status) fails() bool { return s.word.Load()&failing != 0 }
func (s *status) fail()       { s.word.Or(failing) }
func (s *status) recover()    { s.word.And(^uint32(failing)) }

func (s *status) warm() bool { return s.word.Load()&isWarm != 0 }
func (s *status) warmUp()    { s.word.Or(isWarm) }
func (s *status) coolDown()  { s.word.And(^uint32(isWarm)) }

func provenOf(word uint32) uint32 { return word >> provenShift & provenMask }
func streamsOf(word uint32) int32 { return int32(word) >> streamShift }

// prove counts a sample towards trust.
func (s *status) prove() {
	for {
		word := s.word.Load()
		p := provenOf(word)
		next := p + 1
		switch p {
		case proof:
			return
		case trusted - 1:
			next = proof
		}
		if s.word.CompareAndSwap(word, word+(next-p)<<provenShift) {
			return
		}
	}
}
