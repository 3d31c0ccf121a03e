package balance

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// node is an endpoint with its service: all that a request touches of it as a
// rule. It is 64 bytes, a cache line of its own: with many endpoints, a pick
// costs as much as the lines that it has to fetch, and two endpoints in one line
// would be in each other's way.
type node[Req, Rsp any] struct {
	service layer.Service[Req, Rsp]
	endpoint
}

// endpoint is what is known of an endpoint by those who choose one, for as long
// as its ID stays.
type endpoint struct {
	// work is how many requests the endpoint was given (bits 63..28, they may
	// wrap round) and how many of them are in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	status  status
	weight  atomic.Uint32 // the bits of a float32, 1 for one unit
	node    any           // the *node that it is a part of
	*record
}

// record is what else is known of an endpoint. What a request that goes well
// would need of it is in the status, so that none fetches it.
type record struct {
	born    time.Duration // when it was added, since the balancer began
	fails   atomic.Uint32 // in a row; status.marked if there are any
	missed  atomic.Uint32 // deadlines in a row without an answer; likewise
	started atomic.Uint32 // the tick when its slow start began
	begun   atomic.Uint32 // the tick of the last request that it got while few might wait
	fined   atomic.Uint32 // the bits of a float32: the latency without the price of failures, likewise; 0 if it has none of that
	conduct conduct
	id      resolve.ID

	// Guarded by the balancer's mutex.
	slot    int                // in its ready set
	special bool               // it weighs another than most
	away    uint32             // the tick since when it is not ready
	far     bool               // which of them that is
	left    uint64             // of its picks, how many were added to those of the departed
	info    *resolve.Endpoint  // as it is known now
	reason  error              // why it is not ready
	waits   bool               // for its turn, or in it
	stop    context.CancelFunc // ends its turn; nil while it has none
}

const (
	given        = 1<<28 | 1
	inFlightMask = 1<<28 - 1
)

// begin counts one more request, if the endpoint is ready. One that was removed
// before is seen to be.
func (e *endpoint) begin(now uint32) bool {
	const mask, known = stateMask | provenMask<<provenShift, ready | known
	e.work.Add(given)
	return e.status.word.Load()&mask == known || e.beginUnproven(now)
}

// beginUnproven is begin where the endpoint is not known to be ready and to have
// proven itself.
func (e *endpoint) beginUnproven(now uint32) bool {
	word := e.status.word.Load()
	if word&stateMask != ready {
		e.takeBack()
		return false
	}
	if fewOf(provenOf(word)) {
		e.begun.Store(now)
	}
	return true
}

// restart begins its slow start.
func (e *endpoint) restart(now uint32) {
	e.started.Store(now)
	e.status.coolDown()
}

// takeBack is for a request that the endpoint did not get after all.
func (e *endpoint) takeBack() { e.work.Add(^uint64(given - 1)) }

// end is for a request that is over.
func (e *endpoint) end() { e.work.Add(^uint64(0)) }

func (e *endpoint) inFlight() uint64 { return e.work.Load() & inFlightMask }

// load is how many requests wait for their response, and how many responses
// are here and go on. While one comes to be the other, either may be off by one,
// and below 0.
func (e *endpoint) load() (waiting, streams int32) {
	streams = e.status.streams()
	return int32(e.inFlight()) - streams, streams
}

func (e *endpoint) picks() uint64 { return e.work.Load() >> 28 }

// unit is the weight of resolve that counts as 1 here.
const unit = 10_000

// setWeight takes the weight of a resolver, and reports whether it is another
// than that of most endpoints. One that is not said counts as one unit.
func (e *endpoint) setWeight(w uint32) (special bool) {
	share := inUnits(w)
	e.weight.Store(math.Float32bits(share))
	return share != 1
}

// weighs reports whether w would be another weight than e has.
func (e *endpoint) weighs(w uint32) bool { return e.weight.Load() != math.Float32bits(inUnits(w)) }

func inUnits(w uint32) float32 {
	if w == 0 {
		return 1
	}
	return float32(w) / unit
}

func (e *endpoint) plainWeight() float64 { return float64(math.Float32frombits(e.weight.Load())) }

// What is known of an endpoint after its first samples is little. Until it gave
// tried of them, few requests may wait for it at a time. One that joined others,
// of which something was known, may be slow only because it is new: until it
// gave trusted samples, what is known of it fades faster. If it is slow for good,
// that costs so many slow responses; where all are new, as the first set is,
// none is behind the others, and they are not owed.
//
// Both are counted in proven, which begins at 0 for one that joined, and at
// founder for one of the first set, and ends at proof.
const (
	tried   = 4
	trusted = 10
	founder = 16 // and above: trusted
	proof   = founder + tried
)

// full reports whether e has as many requests waiting as it may while not enough
// is known of it: one until its first response, then two, four and eight.
func (e *endpoint) full(waiting int32) bool { return full(e.status.proven(), waiting) }

func full(proven uint32, waiting int32) bool {
	return fewOf(proven) && waiting >= 1<<(proven%founder)
}

// fewOf reports whether only few requests may wait, after so many samples.
func fewOf(proven uint32) bool { return proven%founder < tried }

// starves reports whether e, which is full, is owed one more request all the
// same, because it got the last one long ago. What it has may last for hours, as
// a watch does, or be older than its ejection: it tells nothing until its end.
func (e *endpoint) starves(now uint32, usual float32) bool {
	const atLeast = float32(100 * time.Millisecond) // a new endpoint may be cold, and has to connect
	tooLong := max(min(usual*timesUsual, float32(mostUsual)), 2*usual, atLeast)
	return time.Duration(since(now, e.begun.Load()))<<tickShift > time.Duration(tooLong)
}

// judged takes whether a response was a failure that costs something. An
// endpoint is failing after the second in a row: what a few requests do not get
// everywhere makes none of them so.
func (e *endpoint) judged(bad bool) {
	if bad {
		if e.fails.Add(1) > 1 {
			e.status.fail()
		}
		e.status.mark()
		return
	}
	word := e.status.word.Load()
	if word&badRecord != 0 && e.fails.Load() != 0 {
		e.fails.Store(0)
	}
	if word&failing != 0 {
		e.status.recover()
	}
}

// missedDeadlines is how many deadlines in a row that an endpoint misses are a
// failure of it: fewer may be bad luck.
const missedDeadlines = 3

// miss counts a deadline that passed without an answer, and reports whether that
// was one too many.
func (e *endpoint) miss() bool {
	row := e.missed.Add(1)
	e.status.mark()
	return row >= missedDeadlines
}

// answer ends a row of missed deadlines.
func (e *endpoint) answer() {
	if e.status.marked() && e.missed.Load() != 0 {
		e.missed.Store(0)
	}
}

// fine notes what was expected of e before a failure had its price.
func (e *endpoint) fine(expected time.Duration) {
	if e.fined.CompareAndSwap(0, math.Float32bits(float32(max(expected, 1)))) {
		e.status.mark()
	}
}

// pay takes a good response where failures have had their price, until what is
// expected is a latency again. Of two that meet one does not count.
func (e *endpoint) pay(took, expected time.Duration) {
	old := e.fined.Load()
	if old == 0 {
		return // another one paid the last of it
	}
	paid := uint32(0)
	if 2*took < expected {
		was := math.Float32frombits(old)
		paid = math.Float32bits(max(was+(float32(took)-was)/8, 1))
	}
	e.fined.CompareAndSwap(old, paid)
}

// isFined reports whether what is expected of e has the price of failures in it.
func (e *endpoint) isFined() bool { return e.status.marked() && e.fined.Load() != 0 }

// settle takes the mark away once nothing bad is left in the record. What comes
// in between is seen by the second look, or marks it after that.
func (e *endpoint) settle() {
	if e.clean() {
		e.status.unmark()
		if !e.clean() {
			e.status.mark()
		}
	}
}

func (r *record) clean() bool {
	return r.fails.Load()|r.missed.Load()|r.fined.Load()|r.conduct.row.Load() == 0
}

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
