package balance

import (
	"context"
	"sync/atomic"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// node is an endpoint in the balancer, for as long as its ID stays.
type node[Req, Rsp any] struct {
	// work is how many requests the endpoint was given (bits 63..28, they may
	// wrap round) and how many of them are in flight (bits 27..0).
	work    atomic.Uint64
	latency estimate
	state   atomic.Uint32
	service layer.Service[Req, Rsp]

	id       resolve.ID
	endpoint atomic.Pointer[discover.Endpoint[Req, Rsp]] // as it is known now

	// Guarded by the balancer's mutex.
	slot   int                // in the ready set
	reason error              // why it is not ready
	stop   context.CancelFunc // ends the wait for it to be ready
}

const (
	given        = 1<<28 | 1
	inFlightMask = 1<<28 - 1
)

// The states of a node. They change under the balancer's mutex.
const (
	ready   uint32 = iota // in the ready set
	unready               // a goroutine waits in its Ready
	closed                // it will never be ready again
	removed               // it is not an endpoint any more
)

func stateName(state uint32) string {
	switch state {
	case ready:
		return "ready"
	case unready:
		return "unready"
	case closed:
		return "closed"
	}
	return "removed"
}

// begin counts one more request, if the node is ready. A node that was removed
// before is seen to be.
func (n *node[Req, Rsp]) begin() bool {
	n.work.Add(given)
	if n.state.Load() == ready {
		return true
	}
	n.takeBack()
	return false
}

// takeBack is for a request that the endpoint did not get after all.
func (n *node[Req, Rsp]) takeBack() { n.work.Add(^uint64(given - 1)) }

// end is for a request that is over.
func (n *node[Req, Rsp]) end() { n.work.Add(^uint64(0)) }

func (n *node[Req, Rsp]) inFlight() uint64 { return n.work.Load() & inFlightMask }

func (n *node[Req, Rsp]) picks() uint64 { return n.work.Load() >> 28 }

// cost is what one more request would cost: the latency that is expected, times
// the requests that would then be in flight. It is as of an age ago, and has
// faded since; see less.
type cost struct {
	value float64
	age   uint32
}

func (n *node[Req, Rsp]) cost(now uint32) cost {
	value, age := n.latency.load(now)
	return cost{float64(value) * float64(n.inFlight()+1), age}
}

// less compares what the costs are now. Both faded by e^(−age/decay), so the
// younger age divides out, and when neither is older there is nothing to
// compute.
func (c cost) less(o cost, decay float64) bool {
	switch {
	case c.age > o.age:
		return c.value*fade(c.age-o.age, decay) < o.value
	case c.age < o.age:
		return c.value < o.value*fade(o.age-c.age, decay)
	}
	return c.value < o.value
}
