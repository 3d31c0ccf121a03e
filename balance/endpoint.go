package balance

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// node is an endpoint with its service. It has all fields that a successful request
// uses. It has 64 bytes, the size of a cache line, because with many endpoints the
// fetched cache lines determine the time of a pick.
type node[Req, Rsp any] struct {
	service layer.Service[Req, Rsp]
	endpoint
}

// endpoint is the state of an endpoint that pickers use. It lasts as long as the ID stays.
type endpoint struct {
	// work has the number of requests so far (bits 63..28, modulo 1<<36) and the number
	// of requests in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	status  status
	weight  atomic.Uint32 // the bits of a float32; 1 is one unit
	node    any           // the *node that contains it
	*record
}

// record is the rest of the state of an endpoint, which a successful request does not use.
type record struct {
	born          time.Duration // when the endpoint was added, relative to the balancer's start
	fails         atomic.Uint32 // consecutive failures; status.marked is set if it is not 0
	missed        atomic.Uint32 // consecutive missed deadlines; marked likewise
	slowStartTick atomic.Uint32 // start of the slow start
	lastProbe     atomic.Uint32 // tick of the last request while the endpoint was probed
	unpenalized   atomic.Uint32 // bits of a float32: the latency without penalties, 0 without penalties; marked likewise
	outlier       outlierState
	id            resolve.ID

	// Guarded by the balancer's mutex.
	slot         int                // index in its ready set
	weighted     bool               // the weight is not 1
	unreadySince uint32             // the tick at which it became unready
	far          bool               // in another zone than the balancer
	info         *resolve.Endpoint  // current
	reason       error              // why the endpoint is not ready
	queued       bool               // whether it waits for its turn or has it
	stop         context.CancelFunc // ends its turn; nil if it has none
}

const (
	began        = 1<<28 | 1
	inFlightMask = 1<<28 - 1
)

// begin counts one more request and reports true, unless the endpoint is not ready.
func (e *endpoint) begin(now uint32) bool {
	const mask, trusted = stateMask | samplesMask<<samplesShift, ready | trustedBits
	e.work.Add(began)
	return e.status.word.Load()&mask == trusted || e.beginSlowPath(now)
}

// beginSlowPath is begin for an endpoint that is not ready or not trusted.
func (e *endpoint) beginSlowPath(now uint32) bool {
	word := e.status.word.Load()
	if word&stateMask != ready {
		e.undoBegin()
		return false
	}
	if isProbing(samplesOf(word)) {
		e.lastProbe.Store(now)
	}
	return true
}

func (e *endpoint) beginSlowStart(now uint32) {
	e.slowStartTick.Store(now)
	e.status.coolDown()
}

// undoBegin undoes begin for a request that was not sent.
func (e *endpoint) undoBegin() { e.work.Add(^uint64(began - 1)) }

// end counts the end of a request.
func (e *endpoint) end() { e.work.Add(^uint64(0)) }

func (e *endpoint) inFlight() uint64 { return e.work.Load() & inFlightMask }

// load returns the number of requests that wait for a response, and of responses in
// progress. During a concurrent change each may be wrong by one, or negative.
func (e *endpoint) load() (waiting, streams int32) {
	streams = e.status.streams()
	return int32(e.inFlight()) - streams, streams
}

func (e *endpoint) picks() uint64 { return e.work.Load() >> 28 }

// unit is the weight in package resolve that corresponds to a weight of 1 here.
const unit = 10_000

// setWeight sets the weight w of a resolver, and reports whether it differs from one unit.
func (e *endpoint) setWeight(w uint32) (weighted bool) {
	share := inUnits(w)
	e.weight.Store(math.Float32bits(share))
	return share != 1
}

// weighs reports whether w differs from the current weight.
func (e *endpoint) weighs(w uint32) bool { return e.weight.Load() != math.Float32bits(inUnits(w)) }

// inUnits converts a weight of package resolve. 0 means one unit.
func inUnits(w uint32) float32 {
	if w == 0 {
		return 1
	}
	return float32(w) / unit
}

func (e *endpoint) plainWeight() float64 { return float64(math.Float32frombits(e.weight.Load())) }

// The following are numbers of samples of an endpoint. Below probeSamples the endpoint
// is probed: only few requests may wait for it at a time. Below trustedSamples its
// latency ages faster, because a new endpoint may be slow only at first.
//
// The count starts at 0 for an endpoint that joins others, and at initialSet for an
// endpoint of the first set, which is probed but trusted. It stops at allSamples.
const (
	probeSamples   = 4
	trustedSamples = 10
	initialSet     = 16 // a count of at least this is trusted
	allSamples     = initialSet + probeSamples
)

// atLimit reports whether e is probed and has the largest number of waiting requests:
// one until its first response, then two, four and eight.
func (e *endpoint) atLimit(waiting int32) bool { return atProbeLimit(e.status.samples(), waiting) }

func atProbeLimit(samples uint32, waiting int32) bool {
	return isProbing(samples) && waiting >= 1<<(samples%initialSet)
}

func isProbing(samples uint32) bool { return samples%initialSet < probeSamples }

// probeOverdue reports whether e gets one more request although it is at its probe
// limit, because the last one began long ago. Responses in progress, and requests from
// before an ejection, may last for hours.
func (e *endpoint) probeOverdue(now uint32, median float32) bool {
	const atLeast = float32(100 * time.Millisecond) // a new endpoint has to connect
	tooLong := max(min(median*penaltyFactor, float32(maxPenalty)), 2*median, atLeast)
	return time.Duration(since(now, e.lastProbe.Load()))<<tickShift > time.Duration(tooLong)
}

// setFailed records whether a response was a failure with a penalty. The second
// consecutive one makes the endpoint failing. It reports whether it was that one.
func (e *endpoint) setFailed(failed bool) (second bool) {
	if failed {
		fails := e.fails.Add(1)
		if fails > 1 {
			e.status.fail()
		}
		e.status.mark()
		return fails == 2
	}
	word := e.status.word.Load()
	if word&badRecord != 0 && e.fails.Load() != 0 {
		e.fails.Store(0)
	}
	if word&failing != 0 {
		e.status.recover()
	}
	return false
}

// maxMissed is the number of consecutive missed deadlines from which each is a failure.
const maxMissed = 3

// missDeadline counts a missed deadline and reports whether it is a failure.
func (e *endpoint) missDeadline() bool {
	row := e.missed.Add(1)
	e.status.mark()
	return row >= maxMissed
}

// endMissed resets the count of missed deadlines.
func (e *endpoint) endMissed() {
	if e.status.marked() && e.missed.Load() != 0 {
		e.missed.Store(0)
	}
}

// penalize stores the latency before the first penalty, unless one is stored.
func (e *endpoint) penalize(latency time.Duration) {
	if e.unpenalized.CompareAndSwap(0, math.Float32bits(float32(max(latency, 1)))) {
		e.status.mark()
	}
}

// clearPenalty updates the stored latency with that of a good response. It ends the penalty
// when the estimate is below twice the latency. One of two concurrent responses is lost.
func (e *endpoint) clearPenalty(latency, estimated time.Duration) {
	old := e.unpenalized.Load()
	if old == 0 {
		return
	}
	next := uint32(0)
	if 2*latency < estimated {
		was := math.Float32frombits(old)
		next = math.Float32bits(max(was+(float32(latency)-was)/8, 1))
	}
	e.unpenalized.CompareAndSwap(old, next)
}

// isPenalized reports whether the estimated latency includes a penalty.
func (e *endpoint) isPenalized() bool { return e.status.marked() && e.unpenalized.Load() != 0 }

// unmarkIfClean clears the mark if the record is clean. A concurrent failure sets the
// mark later, or the second check sets it.
func (e *endpoint) unmarkIfClean() {
	if e.clean() {
		e.status.unmark()
		if !e.clean() {
			e.status.mark()
		}
	}
}

func (r *record) clean() bool {
	return r.fails.Load()|r.missed.Load()|r.unpenalized.Load()|r.outlier.row.Load() == 0
}

// status is the state of an endpoint in one word:
//
//	bits 31..11  number of responses in progress: signed, up to a million
//	bit 10       the slow start has ended
//	bit 9        the record has failures: see record.clean
//	bit 8        the endpoint is failing: see endpoint.setFailed
//	bits 7..3    number of samples, up to allSamples
//	bits 2..0    ready, unready, ...
type status struct{ word atomic.Uint32 }

const (
	stateMask    = 1<<3 - 1
	samplesShift = 3
	samplesMask  = 1<<5 - 1
	failing      = 1 << 8
	badRecord    = 1 << 9
	isWarm       = 1 << 10
	streamShift  = 11

	// The mask and the bits of a trusted endpoint that is not failing.
	trustedMask = failing | samplesMask<<samplesShift
	trustedBits = allSamples << samplesShift
)

// The states of an endpoint. They change only with the balancer's mutex held.
const (
	ready   uint32 = iota // in a ready set
	unready               // the balancer waits for its Ready
	ejected               // see OutlierDetection
	closed                // will never be ready
	removed               // no longer in the set
)

func stateName(state uint32) string {
	return [...]string{"ready", "unready", "ejected", "closed", "removed"}[min(state, removed)]
}

func (s *status) state() uint32 { return s.word.Load() & stateMask }

// setState sets the state and returns the old one.
func (s *status) setState(state uint32) (old uint32) {
	return s.change(stateMask, state) & stateMask
}

func (s *status) samples() uint32 { return samplesOf(s.word.Load()) }

func (s *status) setSamples(n uint32) { s.change(samplesMask<<samplesShift, n<<samplesShift) }

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

func samplesOf(word uint32) uint32 { return word >> samplesShift & samplesMask }
func streamsOf(word uint32) int32  { return int32(word) >> streamShift }

// addSample increments the number of samples, up to allSamples.
func (s *status) addSample() {
	for {
		word := s.word.Load()
		n := samplesOf(word)
		next := n + 1
		switch n {
		case allSamples:
			return
		case trustedSamples - 1:
			next = allSamples
		}
		if s.word.CompareAndSwap(word, word+(next-n)<<samplesShift) {
			return
		}
	}
}
