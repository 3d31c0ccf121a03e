package balance

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// endpoint is what is known of an endpoint by those who choose one, for as long
// as its ID stays.
type endpoint struct {
	// work is how many requests the endpoint was given (bits 63..28, they may
	// wrap round) and how many of them are in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	state   atomic.Uint32
	proven  atomic.Uint32 // samples so far, as far as they matter: see full
	weight  atomic.Uint32 // the bits of a float32, 1 for one unit
	streams atomic.Int32  // of those in flight, the responses whose latency was taken
	node    any           // the *node that it is a part of

	born    time.Duration // when it was added, since the balancer began
	fails   atomic.Uint32 // in a row
	fined   atomic.Uint32 // the bits of a float32: the latency without the price of failures; 0 if it has none of that
	warm    atomic.Bool   // its slow start is over, which ticks alone forget: they wrap round
	conduct conduct
	id      resolve.ID

	// Guarded by the balancer's mutex.
	slot int  // in its ready set
	far  bool // which of them that is
}

// node is an endpoint with its service. What a request needs comes first, in
// one cache line where lines are of 64 bytes: with many endpoints, a pick costs
// as much as the lines that it has to fetch.
type node[Req, Rsp any] struct {
	service layer.Service[Req, Rsp]
	endpoint

	info atomic.Pointer[discover.Endpoint[Req, Rsp]] // as it is known now

	// Guarded by the balancer's mutex.
	reason error              // why it is not ready
	stop   context.CancelFunc // ends the wait for it to be ready
}

const (
	given        = 1<<28 | 1
	inFlightMask = 1<<28 - 1
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

// begin counts one more request, if the endpoint is ready. One that was removed
// before is seen to be.
func (e *endpoint) begin() bool {
	e.work.Add(given)
	if e.state.Load() == ready {
		return true
	}
	e.takeBack()
	return false
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
	streams = e.streams.Load()
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
func (e *endpoint) full(waiting int32) bool {
	p := e.proven.Load() % founder
	return p < tried && waiting >= 1<<p
}

// judged takes whether a response was a failure that costs something. An
// endpoint is failing after the second in a row: what a few requests do not get
// everywhere makes none of them so.
func (e *endpoint) judged(bad bool) {
	if bad {
		if e.fails.Add(1) > 1 {
			e.latency.mark(true)
		}
		return
	}
	if e.fails.Load() != 0 {
		e.fails.Store(0)
	}
	e.latency.mark(false)
}

// fine notes what was expected of e before a failure had its price.
func (e *endpoint) fine(expected time.Duration) {
	e.fined.CompareAndSwap(0, math.Float32bits(float32(max(expected, 1))))
}

// pay takes a good response where failures have had their price, until what is
// expected is a latency again. Of two that meet one does not count.
func (e *endpoint) pay(took, expected time.Duration) {
	old := e.fined.Load()
	if old == 0 {
		return
	}
	paid := uint32(0)
	if 2*took < expected {
		was := math.Float32frombits(old)
		paid = math.Float32bits(max(was+(float32(took)-was)/8, 1))
	}
	e.fined.CompareAndSwap(old, paid)
}

// prove counts a sample towards trust.
func (e *endpoint) prove() {
	p := e.proven.Load()
	switch p {
	case proof:
	case trusted - 1:
		e.proven.CompareAndSwap(p, proof)
	default:
		e.proven.CompareAndSwap(p, p+1)
	}
}
