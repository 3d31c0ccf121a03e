package balance

import (
	"context"
	"math"
	"sync/atomic"

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

	born    uint32 // the tick when it was added
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
