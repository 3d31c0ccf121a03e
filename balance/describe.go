package balance

import (
	"maps"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
)

// Describe shows the endpoints in the order of their addresses, each with its
// stack.
func (b *Balancer[Req, Rsp]) Describe() layer.Node {
	b.mu.Lock()
	nodes := slices.Collect(maps.Values(b.nodes))
	reasons := make(map[*node[Req, Rsp]]error)
	picks := b.departed
	for _, n := range nodes {
		reasons[n] = n.reason
		picks += n.picks()
	}
	state := layer.State{
		{Key: "target", Value: b.target},
		{Key: "state", Value: b.state},
		{Key: "endpoints", Value: len(nodes)},
		{Key: "ready", Value: b.ready.len()},
		{Key: "picks", Value: picks},
	}
	if b.err != nil {
		state = append(state, layer.Attr{Key: "error", Value: b.err.Error()})
	}
	b.mu.Unlock()
	if ended := b.ended.Load(); ended != nil {
		state = append(state, layer.Attr{Key: "closed", Value: ended.Error()})
	}

	slices.SortFunc(nodes, func(a, c *node[Req, Rsp]) int { return a.id.Addr.Compare(c.id.Addr) })
	d := layer.Node{Name: "balance", State: state}
	for _, n := range nodes {
		d.Children = append(d.Children, b.describe(n, reasons[n]))
	}
	return d
}

func (b *Balancer[Req, Rsp]) describe(n *node[Req, Rsp], reason error) layer.Node {
	ewma := time.Duration(n.latency.read(tick(time.Since(b.start)), b.decay))
	state := layer.State{
		{Key: "addr", Value: n.id.Addr},
		{Key: "state", Value: stateName(n.state.Load())},
		{Key: "ewma", Value: ewma.Round(time.Microsecond)},
		{Key: "in_flight", Value: n.inFlight()},
		{Key: "picks", Value: n.picks()},
	}
	if labels := n.endpoint.Load().Labels; len(labels) > 0 {
		state = append(state, layer.Attr{Key: "labels", Value: labels})
	}
	if reason != nil {
		state = append(state, layer.Attr{Key: "reason", Value: reason.Error()})
	}
	next := layer.Describe(n.service)
	return layer.Node{Name: "endpoint", State: state, Next: &next}
}
