package balance

import (
	"maps"
	"slices"
	"time"

	"github.com/gotower/gotower/resolve"
)

// EndpointState is what a balancer knows of an endpoint at a moment.
type EndpointState struct {
	ID        resolve.ID
	State     string            // ready, unready, ejected, closed
	Reason    error             // why it is not ready
	Latency   time.Duration     // what is expected of it
	Known     bool              // there was a response; if not, Latency is what is usual
	InFlight  uint64            // requests that it has now
	Picks     uint64            // requests that it was given
	Weight    float64           // 1 is one unit
	OtherZone bool              // it is in another zone than the balancer
	Age       time.Duration     // since it was added
	Labels    map[string]string // not to be changed
}

// Snapshot returns the endpoints, in the order of their addresses.
func (b *Balancer[Req, Rsp]) Snapshot() []EndpointState {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, states := b.survey()
	return states
}

// survey is the nodes and their states, in the order of their addresses. The
// mutex is held.
func (b *Balancer[Req, Rsp]) survey() ([]*node[Req, Rsp], []EndpointState) {
	now := time.Since(b.start)
	nodes := slices.SortedFunc(maps.Values(b.nodes), func(a, c *node[Req, Rsp]) int { return compareIDs(a.id, c.id) })
	states := make([]EndpointState, len(nodes))
	for i, n := range nodes {
		states[i] = EndpointState{
			ID: n.id, State: stateName(n.status.state()), Reason: n.reason,
			Latency: b.expected(&n.endpoint, tick(now)), Known: n.latency.word.Load() != 0,
			InFlight: n.inFlight(), Picks: n.picks(), Weight: n.plainWeight(), OtherZone: n.far,
			Age: now - n.born, Labels: n.info.Labels,
		}
	}
	return nodes, states
}
