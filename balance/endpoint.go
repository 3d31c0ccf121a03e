package balance

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// node is an endpoint with its service. The fields that a successful request uses are in
// the node, the others in a record. A node has 64 bytes, the size of a cache line. With
// many endpoints, the number of fetched cache lines determines the time of a pick.
type node[Req, Rsp any] struct {
	service layer.Service[Req, Rsp]
	endpoint
}

// endpoint is the part of a node that pickers use. A node is kept as long as the resolve.ID
// of the endpoint stays the same.
type endpoint struct {
	// work has the number of requests so far (bits 63..28, modulo 1<<36) and the number
	// of requests in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	status  status
	weight  atomic.Uint32 // the bits of a float32; the default weight is 1
	node    any           // the *node that contains this endpoint
	*record
}

// record has the part of the state of an endpoint that a successful request usually does not use:
// its failures, outlier detection, slow start and readiness.
type record struct {
	born          time.Duration // when the endpoint was added, relative to the balancer's start
	fails         atomic.Uint32 // consecutive failures; if not 0, the bit badRecord is set
	missed        atomic.Uint32 // consecutive missed deadlines; if not 0, the bit badRecord is set
	slowStartTick atomic.Uint32 // tick at which the slow start began
	lastProbe     atomic.Uint32 // tick of the last request while the endpoint was probed
	// the bits of a float32: the moving average, in ns, of latencies without penalties. 0
	// means that the latency estimate includes no penalty. If it is not 0, the bit
	// badRecord of the status is set.
	unpenalized atomic.Uint32
	outlier     outlierState
	id          resolve.ID

	// Guarded by the balancer's mutex.
	slot         int                // index in its ready set; invalid if the endpoint is not ready
	unreadySince uint32             // the tick at which it last became unready
	far          bool               // in another zone than the balancer
	info         *resolve.Endpoint  // the endpoint in the last update of the resolver
	reason       error              // why the endpoint is not ready
	queued       bool               // whether it is in Balancer.waiting, or a goroutine calls its Ready
	stop         context.CancelFunc // cancels the current call of its Ready; nil without such a call
}

const (
	began        = 1<<28 | 1
	inFlightMask = 1<<28 - 1
)

// begin counts a request as in flight and returns true. If the endpoint is not ready, begin
// does not count the request and returns false. now is the current time in ticks.
func (e *endpoint) begin(now uint32) bool {
	const mask, trusted = stateMask | samplesMask<<samplesShift, ready | trustedBits
	e.work.Add(began)
	return e.status.word.Load()&mask == trusted || e.beginSlowPath(now)
}

// beginSlowPath completes begin for an endpoint that is not ready or has fewer than allSamples
// samples. If the endpoint is not ready, it undoes the count of the request and returns false.
// Otherwise it returns true. If the endpoint is being probed, it records now as the time of the
// last probe.
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

// undoBegin removes a request that was not sent from both counts of begin: the requests so
// far and the requests in flight.
func (e *endpoint) undoBegin() { e.work.Add(^uint64(began - 1)) }

// end removes a finished request from the number of requests in flight.
func (e *endpoint) end() { e.work.Add(^uint64(0)) }

func (e *endpoint) inFlight() uint64 { return e.work.Load() & inFlightMask }

// load returns the number of requests that wait for a response, and the number of responses
// in progress. During a concurrent change, each number may be wrong by one, or negative.
func (e *endpoint) load() (waiting, streams int32) {
	streams = e.status.streams()
	return int32(e.inFlight()) - streams, streams
}

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

// inUnits converts w, a weight of package resolve, to a weight of this package: w / unit.
// It returns 1 if w is 0.
func inUnits(w uint32) float32 {
	if w == 0 {
		return 1
	}
	return float32(w) / unit
}

func (e *endpoint) plainWeight() float64 { return float64(math.Float32frombits(e.weight.Load())) }

// These constants are numbers of samples of an endpoint. A new endpoint starts with 0 samples. If
// no endpoint of the balancer has a sample yet, it starts with initialSet samples and is trusted at
// once. An endpoint is probed for its first probeSamples samples: only a few requests may wait for
// it at a time.
//
// An endpoint that started at 0 is trusted after trustedSamples samples. The count then changes to
// allSamples, the largest count. Before that, the latency of the endpoint ages faster, because a
// new endpoint may be slow only at first.
const (
	probeSamples   = 4
	trustedSamples = 10
	initialSet     = 16 // an endpoint with at least this count is trusted
	allSamples     = initialSet + probeSamples
)

// atLimit reports whether e is being probed and has as many waiting requests as the probe
// limit allows. The limit is one request before the first response. It doubles with each
// response: two, four, eight. The argument waiting is the number of waiting requests of e.
func (e *endpoint) atLimit(waiting int32) bool {
	samples := e.status.samples()
	return isProbing(samples) && waiting >= 1<<(samples%initialSet)
}

func isProbing(samples uint32) bool { return samples%initialSet < probeSamples }

// probeOverdue reports whether the last probe of e was so long ago that e gets one more request in
// spite of its probe limit. The required time is twenty median latencies, but at most 5 s. It is at
// least 100 ms and at least two median latencies, even if that exceeds 5 s. Without this rule, slow
// responses, or requests from before an ejection, could stop the probes for hours.
func (e *endpoint) probeOverdue(now uint32, median float32) bool {
	const atLeast = float32(100 * time.Millisecond) // a new endpoint has to connect
	tooLong := max(min(median*penaltyFactor, float32(maxPenalty)), 2*median, atLeast)
	return time.Duration(since(now, e.lastProbe.Load()))<<tickShift > time.Duration(tooLong)
}

// setFailed records the result of a response. The argument failed is true for a failure with a
// penalty. The second failure in a row makes the endpoint failing, and the next success ends this
// state. The result second is true for the second failure in a row.
func (e *endpoint) setFailed(failed bool) (second bool) {
	if failed {
		fails := e.fails.Add(1)
		if fails > 1 {
			e.status.fail()
		}
		e.status.mark()
		return fails == 2
	}
	e.fails.Store(0)
	e.status.recover()
	return false
}

// maxMissed is the least number of missed deadlines in a row at which the last of them counts as a
// failure. The first two of a row do not count.
const maxMissed = 3

// missDeadline counts a missed deadline of e. It returns true if e has now missed at least
// maxMissed deadlines in a row, so that this deadline counts as a failure.
func (e *endpoint) missDeadline() bool {
	row := e.missed.Add(1)
	e.status.mark()
	return row >= maxMissed
}

// penalize marks the latency estimate of e as increased by a penalty, which the caller adds to the
// estimate. It sets e.unpenalized, the average of the latencies without penalties, to the argument
// latency. If e already has this mark, penalize does nothing.
func (e *endpoint) penalize(latency time.Duration) {
	if e.unpenalized.CompareAndSwap(0, math.Float32bits(float32(max(latency, 1)))) {
		e.status.mark()
	}
}

// clearPenalty updates the penalty of e after a response. The arguments are the latency of the
// response and the latency estimate of e. If the estimate is at most twice the latency, the penalty
// ends. Otherwise clearPenalty adds the latency to the average of latencies without penalties. If
// two responses are concurrent, one of them is ignored.
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

// isPenalized reports whether the latency estimate of e includes a penalty.
func (e *endpoint) isPenalized() bool { return e.status.marked() && e.unpenalized.Load() != 0 }

// unmarkIfClean clears the bit badRecord of the status if the record has no failures, missed
// deadlines and penalties. Another goroutine may record a failure at the same time. Therefore
// unmarkIfClean checks the record again afterwards, and sets the bit again if needed.
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
//	bit 10       isWarm: the slow start has ended
//	bit 9        badRecord: the record has failures, see record.clean
//	bit 8        failing: the endpoint is failing, see endpoint.setFailed
//	bits 7..3    number of samples, up to allSamples
//	bits 2..0    state: ready, unready, ejected, closed or removed
type status struct{ word atomic.Uint32 }

const (
	stateMask    = 1<<3 - 1
	samplesShift = 3
	samplesMask  = 1<<5 - 1
	failing      = 1 << 8
	badRecord    = 1 << 9
	isWarm       = 1 << 10
	streamShift  = 11

	// trustedMask selects bits of a status. These bits equal trustedBits if the endpoint is
	// trusted and not failing.
	trustedMask = failing | samplesMask<<samplesShift
	trustedBits = allSamples << samplesShift
)

// The states of an endpoint. They change only with the balancer's mutex held.
const (
	ready   uint32 = iota // in a ready set; pickers may choose it
	unready               // the balancer waits for its Ready
	ejected               // see OutlierDetection
	closed                // its Ready or Call returned layer.ErrClosed
	removed               // the resolver removed it, or the balancer has ended
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

// addSample increments the number of samples. When the number reaches trustedSamples,
// addSample sets it to allSamples, where it stays.
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
