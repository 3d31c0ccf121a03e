package balance

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// node is an endpoint with its service. It has all fields that a request touches unless
// something fails. Its 64 bytes are one cache line, because with many endpoints a pick
// costs as much as the lines that it fetches.
type node[Req, Rsp any] struct {
	service layer.Service[Req, Rsp]
	endpoint
}

// endpoint is the state of an endpoint that pickers use, as long as its ID stays.
type endpoint struct {
	// work has the number of requests (bits 63..28, modulo 1<<36) and the number of
	// requests in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	status  status
	weight  atomic.Uint32 // bits of a float32, 1 for one unit
	node    any           // the *node that contains it
	*record
}

// record is the other state of an endpoint. A successful request reads only the status.
type record struct {
	born          time.Duration // when it was added, since the balancer began
	fails         atomic.Uint32 // in a row; status.marked is set if it is not 0
	missed        atomic.Uint32 // deadlines in a row without a response; as fails
	slowStartTick atomic.Uint32 // begin of the slow start
	lastProbe     atomic.Uint32 // tick of the last request while the endpoint was probed
	unpenalized   atomic.Uint32 // bits of a float32: latency without penalties, 0 if there are none; as fails
	outlier       outlierState
	id            resolve.ID

	// Guarded by the balancer's mutex.
	slot         int                // in its ready set
	weighted     bool               // its weight is not 1
	unreadySince uint32             // tick
	far          bool               // in the ready set of other zones
	info         *resolve.Endpoint  // current
	reason       error              // why it is not ready
	queued       bool               // it waits for its turn, or has it
	stop         context.CancelFunc // ends its turn; nil without a turn
}

const (
	began        = 1<<28 | 1
	inFlightMask = 1<<28 - 1
)

// begin counts one more request if the endpoint is ready, and reports whether it is.
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

// undoBegin takes back begin for a request that was not sent.
func (e *endpoint) undoBegin() { e.work.Add(^uint64(began - 1)) }

// end counts the end of a request.
func (e *endpoint) end() { e.work.Add(^uint64(0)) }

func (e *endpoint) inFlight() uint64 { return e.work.Load() & inFlightMask }

// load returns the requests that wait for their response, and the responses in
// progress. During a change each may be off by one, and negative.
func (e *endpoint) load() (waiting, streams int32) {
	streams = e.status.streams()
	return int32(e.inFlight()) - streams, streams
}

func (e *endpoint) picks() uint64 { return e.work.Load() >> 28 }

// unit is the weight of package resolve that is 1 here.
const unit = 10_000

// setWeight sets the weight of a resolver and reports whether it differs from 1.
func (e *endpoint) setWeight(w uint32) (weighted bool) {
	share := inUnits(w)
	e.weight.Store(math.Float32bits(share))
	return share != 1
}

// weighs reports whether w differs from the current weight.
func (e *endpoint) weighs(w uint32) bool { return e.weight.Load() != math.Float32bits(inUnits(w)) }

// inUnits converts a weight of package resolve. An unset weight is one unit.
func inUnits(w uint32) float32 {
	if w == 0 {
		return 1
	}
	return float32(w) / unit
}

func (e *endpoint) plainWeight() float64 { return float64(math.Float32frombits(e.weight.Load())) }

// The number of samples of an endpoint, as far as it matters. Up to probeSamples it is
// probed: only few requests may wait there at the same time. Up to trustedSamples its
// latency ages faster, because a new endpoint may only be slow at first.
//
// The number begins at 0 for an endpoint that joins others, and at initialSet for one of
// the first set, which is only probed. It ends at allSamples.
const (
	probeSamples   = 4
	trustedSamples = 10
	initialSet     = 16 // and more: trusted
	allSamples     = initialSet + probeSamples
)

// atLimit reports whether e is probed and has as many requests waiting as it may: one
// until its first response, then two, four and eight.
func (e *endpoint) atLimit(waiting int32) bool { return atProbeLimit(e.status.samples(), waiting) }

func atProbeLimit(samples uint32, waiting int32) bool {
	return isProbing(samples) && waiting >= 1<<(samples%initialSet)
}

func isProbing(samples uint32) bool { return samples%initialSet < probeSamples }

// probeOverdue reports whether e, at its probe limit, gets one more request because the
// last one began long ago. Streams, and requests from before an ejection, may last for
// hours.
func (e *endpoint) probeOverdue(now uint32, median float32) bool {
	const atLeast = float32(100 * time.Millisecond) // a new endpoint has to connect
	tooLong := max(min(median*penaltyFactor, float32(maxPenalty)), 2*median, atLeast)
	return time.Duration(since(now, e.lastProbe.Load()))<<tickShift > time.Duration(tooLong)
}

// setFailed records whether a response was a failure with a penalty. The second in a row
// makes the endpoint failing.
func (e *endpoint) setFailed(failed bool) {
	if failed {
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

// maxMissed is the number of missed deadlines in a row that is a failure.
const maxMissed = 3

// missDeadline counts a deadline without a response and reports whether it is a failure.
func (e *endpoint) missDeadline() bool {
	row := e.missed.Add(1)
	e.status.mark()
	return row >= maxMissed
}

// endMissed ends a row of missed deadlines.
func (e *endpoint) endMissed() {
	if e.status.marked() && e.missed.Load() != 0 {
		e.missed.Store(0)
	}
}

// penalize keeps the latency from before the first penalty.
func (e *endpoint) penalize(latency time.Duration) {
	if e.unpenalized.CompareAndSwap(0, math.Float32bits(float32(max(latency, 1)))) {
		e.status.mark()
	}
}

// clearPenalty records a good response of a penalized endpoint, whose penalty ends when
// the estimate is below twice the latency. Of two concurrent responses one counts.
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

// unmarkIfClean clears the mark of an endpoint whose record is clean. A concurrent
// failure is found by the second look, or sets the mark later.
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
//	bits 31..11  responses in progress whose latency was taken: signed, up to a million
//	bit 10       its slow start has ended
//	bit 9        its record has failures: see record.clean
//	bit 8        it is failing: see endpoint.setFailed
//	bits 7..3    samples, as far as they matter: see endpoint.atLimit
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

	// Bits of a trusted endpoint that is not failing.
	trustedMask = failing | samplesMask<<samplesShift
	trustedBits = allSamples << samplesShift
)

// The states of an endpoint. They change under the balancer's mutex.
const (
	ready   uint32 = iota // in a ready set
	unready               // waits for its Ready
	ejected               // see OutlierDetection
	closed                // will never be ready
	removed               // not in the set any more
)

func stateName(state uint32) string {
	return [...]string{"ready", "unready", "ejected", "closed", "removed"}[min(state, removed)]
}

func (s *status) state() uint32 { return s.word.Load() & stateMask }

// setState returns the old state.
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

// addSample counts a sample.
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
