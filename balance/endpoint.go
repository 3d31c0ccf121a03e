package balance

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// node is an endpoint with its service. The fields that a successful request uses are in the
// node, the others in a record. A node is 64 bytes long, like a cache line. With many endpoints,
// the number of fetched cache lines determines how long a pick takes.
type node[Req, Rsp any] struct {
	service layer.Service[Req, Rsp]
	endpoint
}

// endpoint is the part of a node that pickers use. A node is kept as long as the endpoint's
// resolve.ID stays the same.
type endpoint struct {
	// work holds the number of requests so far (bits 63..28, modulo 1<<36) and how many of them
	// are in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	status  status
	weight  atomic.Uint32 // the bits of a float32; the default weight is 1
	node    any           // the *node that contains this endpoint
	*record
}

// record holds the part of an endpoint's state that a successful request usually does not use: its
// failures, outlier detection, slow start and readiness.
type record struct {
	born          time.Duration // when the endpoint was added, relative to the balancer's start
	slowStartTick atomic.Uint32 // tick at which the slow start began
	lastProbe     atomic.Uint32 // tick of the last request while the endpoint had few samples
	doubt
	outlier outlierState
	id      resolve.ID
	group   atomic.Pointer[group] // nil before it was added

	// Guarded by the balancer's mutex.
	slot         int                // index in its ready set; invalid if the endpoint is not ready
	unreadySince uint32             // the tick at which it last became unready
	far          bool               // in another zone than the balancer
	counted      bool               // whether its group counts it
	info         *resolve.Endpoint  // the endpoint in the last update of the resolver
	reason       error              // why the endpoint is not ready
	isDown       bool               // whether an event has reported that it is down or ejected
	queued       bool               // whether it is in Balancer.waiting, or a goroutine calls its Ready
	stop         context.CancelFunc // cancels the current call of its Ready; nil without such a call
}

const (
	oneRequest   = 1<<28 | 1 // in endpoint.work: one more request so far, and one more in flight
	inFlightMask = 1<<28 - 1 // the bits of endpoint.work that count requests in flight
)

// begin counts a request as in flight and returns true, or returns false if the endpoint is not ready.
// now is the current time in ticks.
func (e *endpoint) begin(now uint32) bool {
	const mask, trusted = stateMask | samplesMask<<samplesShift, ready | trustedBits
	// Counting first and checking afterwards takes one atomic addition, and no lock.
	e.work.Add(oneRequest)
	// The usual endpoint is ready and has enough samples.
	return e.status.word.Load()&mask == trusted || e.beginSlowPath(now)
}

// beginSlowPath completes begin for an endpoint that is not ready or has too few samples to be trusted.
// If it is not ready, the count is undone, and the result is false. If it is still being probed, now
// becomes the time of its last probe.
func (e *endpoint) beginSlowPath(now uint32) bool {
	word := e.status.word.Load()
	if word&stateMask != ready {
		e.undoBegin()
		return false
	}
	// costOf needs the time for probeOverdue.
	if isProbing(samplesOf(word)) {
		e.lastProbe.Store(now)
	}
	return true
}

// beginSlowStart begins a slow start now, in which the endpoint's weight grows: see Policy.SlowStart.
func (e *endpoint) beginSlowStart(now uint32) {
	e.slowStartTick.Store(now)
	e.status.coolDown()
}

// undoBegin undoes begin for a request that was not sent.
func (e *endpoint) undoBegin() { e.work.Add(^uint64(oneRequest - 1)) }

// end removes a finished request from the number of requests in flight.
func (e *endpoint) end() { e.work.Add(^uint64(0)) }

// inFlight returns the number of requests in flight, including responses in progress.
func (e *endpoint) inFlight() uint64 { return e.work.Load() & inFlightMask }

// load returns how many requests wait for a response, and how many responses are in progress.
// During a concurrent change, each number may be wrong by one, or negative.
func (e *endpoint) load() (waiting, streams int32) {
	streams = e.status.streams()
	return int32(e.inFlight()) - streams, streams
}

// picks returns the number of requests that were sent to the endpoint, modulo 1<<36.
func (e *endpoint) picks() uint64 { return e.work.Load() >> 28 }

// unit is the weight in package resolve that corresponds to a weight of 1 in this package.
const unit = 10_000

// setWeight sets the weight of e to w. In w, as in package resolve, 10 000 is the default
// weight. setWeight reports whether the weight differs from the default.
func (e *endpoint) setWeight(w uint32) (weighted bool) {
	share := inUnits(w)
	e.weight.Store(math.Float32bits(share))
	return share != 1
}

// weightDiffers reports whether the weight w differs from the current weight of e. In w, as
// in package resolve, 10 000 is the default weight.
func (e *endpoint) weightDiffers(w uint32) bool {
	return e.weight.Load() != math.Float32bits(inUnits(w))
}

// inUnits converts w, a weight in package resolve, to a weight in this package: w / unit. It
// returns 1 if w is 0.
func inUnits(w uint32) float32 {
	if w == 0 {
		return 1
	}
	return float32(w) / unit
}

// plainWeight returns the weight without the slow start.
func (e *endpoint) plainWeight() float64 { return float64(math.Float32frombits(e.weight.Load())) }

// These constants are numbers of samples. A new endpoint starts with 0 samples. If no endpoint was
// sampled yet, it starts with initialSet samples and is trusted at once. An endpoint is probed for
// its first probeSamples samples: only a few requests may wait for it at a time.
//
// An endpoint that started at 0 is trusted after trustedSamples samples. The count then changes to
// allSamples, the largest count. Before that, its latency ages faster, because a new endpoint may
// be slow only at first.
const (
	probeSamples   = 4
	trustedSamples = 10
	initialSet     = 16 // an endpoint with at least this count is trusted
	allSamples     = initialSet + probeSamples
)

// atLimit reports whether e is being probed and may not get another request yet. At first only one
// request may wait there; with each of the first responses, the limit doubles to two, four and eight.
// Otherwise many requests could wait at a new endpoint that turns out to be slow. waiting is how many
// wait.
func (e *endpoint) atLimit(waiting int32) bool {
	// samples%initialSet is the number of responses since the probing began.
	samples := e.status.samples()
	return isProbing(samples) && waiting >= 1<<(samples%initialSet)
}

// isProbing reports whether an endpoint with so many samples gets only a few requests at a time.
func isProbing(samples uint32) bool { return samples%initialSet < probeSamples }

// probeOverdue reports whether an endpoint at its limit (see atLimit) should get one more request,
// because its last one began long ago: twenty median latencies, but at least 100 ms and two medians,
// and otherwise at most 5 s. Without this, slow responses, or requests from before an ejection, could
// keep an endpoint at its limit for hours.
func (e *endpoint) probeOverdue(now uint32, median float32) bool {
	const atLeast = float32(100 * time.Millisecond) // a new endpoint has to connect
	// At most maxPenalty, unless two medians are longer.
	tooLong := max(min(median*penaltyFactor, float32(maxPenalty)), 2*median, atLeast)
	return time.Duration(since(now, e.lastProbe.Load()))<<tickShift > time.Duration(tooLong)
}

// unmarkIfClean clears the status bit badRecord if the record contains no failures and missed
// deadlines, which makes later successes cheaper. A concurrent failure may be recorded between the
// check and the change, so unmarkIfClean checks again afterwards.
func (e *endpoint) unmarkIfClean() {
	if e.clean() {
		e.status.unmark()
		if !e.clean() {
			e.status.mark()
		}
	}
}

// clean reports whether the record contains no failures and no missed deadlines.
func (r *record) clean() bool {
	return r.fails.Load()|r.missed.Load()|r.outlier.row.Load() == 0
}

// status is the state of an endpoint in one word:
//
//	bits 31..11  number of responses in progress: signed, up to a million
//	bit 10       isWarm: the slow start has ended
//	bit 9        badRecord: the record contains failures, see record.clean
//	bit 8        suspected: the endpoint is doubted, or its error rate is high: see doubt
//	bits 7..3    number of samples, up to allSamples
//	bits 2..0    state: ready, unready, ejected, closed or removed
type status struct{ word atomic.Uint32 }

// The masks and shifts of the parts of a status.
const (
	stateMask    = 1<<3 - 1
	samplesShift = 3
	samplesMask  = 1<<5 - 1
	suspected    = 1 << 8
	badRecord    = 1 << 9
	isWarm       = 1 << 10
	streamShift  = 11

	// trustedMask selects bits of a status. These bits equal trustedBits if the endpoint is
	// trusted and not suspected.
	trustedMask = suspected | samplesMask<<samplesShift
	trustedBits = allSamples << samplesShift
)

// An endpoint's states. They change only with the balancer's mutex held.
const (
	ready   uint32 = iota // in a ready set; pickers may choose it
	unready               // the balancer waits for its Ready
	ejected               // see OutlierDetection
	closed                // its Ready or Call returned layer.ErrClosed
	removed               // the resolver removed it, or the balancer has ended
)

// stateName returns the name of a state for Describe.
func stateName(state uint32) string {
	return [...]string{"ready", "unready", "ejected", "closed", "removed"}[min(state, removed)]
}

func (s *status) state() uint32 { return s.word.Load() & stateMask }

func (s *status) setState(state uint32) (old uint32) {
	return s.change(stateMask, state) & stateMask
}

// samples returns the number of samples, and setSamples sets it.
func (s *status) samples() uint32 { return samplesOf(s.word.Load()) }

func (s *status) setSamples(n uint32) { s.change(samplesMask<<samplesShift, n<<samplesShift) }

// change replaces the bits in mask by value, and returns the old word.
func (s *status) change(mask, value uint32) (old uint32) {
	for {
		if old = s.word.Load(); s.word.CompareAndSwap(old, old&^mask|value) {
			return old
		}
	}
}

// streams returns the number of responses in progress, to which stream adds n.
func (s *status) streams() int32 { return streamsOf(s.word.Load()) }
func (s *status) stream(n int32) { s.word.Add(uint32(n) << streamShift) }

// mark and unmark set and clear badRecord, suspect and trust suspected, and warmUp and coolDown isWarm.
func (s *status) mark()   { s.word.Or(badRecord) }
func (s *status) unmark() { s.word.And(^uint32(badRecord)) }

func (s *status) isSuspected() bool { return s.word.Load()&suspected != 0 }
func (s *status) suspect()          { s.word.Or(suspected) }
func (s *status) trust()            { s.word.And(^uint32(suspected)) }

func (s *status) warm() bool { return s.word.Load()&isWarm != 0 }
func (s *status) warmUp()    { s.word.Or(isWarm) }
func (s *status) coolDown()  { s.word.And(^uint32(isWarm)) }

// samplesOf and streamsOf extract the two numbers from a word, with the sign for the second one.
func samplesOf(word uint32) uint32 { return word >> samplesShift & samplesMask }
func streamsOf(word uint32) int32  { return int32(word) >> streamShift }

// addSample counts a response of an endpoint that is not yet trusted. At trustedSamples, the endpoint
// is trusted, and the number becomes allSamples, where it stays.
func (s *status) addSample() {
	for {
		word := s.word.Load()
		n := samplesOf(word)
		next := n + 1
		switch n {
		// Concurrent responses may have reached the last number.
		case allSamples:
			return
		// The endpoint is trusted from now on.
		case trustedSamples - 1:
			next = allSamples
		}
		if s.word.CompareAndSwap(word, word+(next-n)<<samplesShift) {
			return
		}
	}
}
