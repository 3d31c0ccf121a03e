package balance

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// Describe shows the endpoints in the order of their addresses, each with its
// stack.
func (b *Balancer[Req, Rsp]) Describe() layer.Node {
	b.mu.Lock()
	nodes, states := b.survey()
	picks := b.departed
	state := layer.State{
		{Key: "target", Value: b.target},
		{Key: "state", Value: b.state},
		{Key: "pick", Value: b.pickName},
		{Key: "cost", Value: b.group.cost.String()},
		{Key: "endpoints", Value: len(nodes)},
		{Key: "ready", Value: b.group.len()},
	}
	state = append(state, b.jury.attributes()...)
	err := b.err
	b.mu.Unlock()
	for _, s := range states {
		picks += s.Picks
	}
	state = append(state, layer.Attr{Key: "picks", Value: picks})
	if err != nil {
		state = append(state, layer.Attr{Key: "error", Value: err.Error()})
	}
	if ended := b.ended.Load(); ended != nil {
		state = append(state, layer.Attr{Key: "closed", Value: ended.Error()})
	}
	d := layer.Node{Name: "balance", State: state}
	for i, n := range nodes {
		next := layer.Describe(n.service)
		d.Children = append(d.Children, layer.Node{Name: "endpoint", State: states[i].attributes(), Next: &next})
	}
	return d
}

func (s EndpointState) attributes() layer.State {
	state := layer.State{
		{Key: "addr", Value: s.ID.Addr},
		{Key: "state", Value: s.State},
		{Key: "ewma", Value: s.Latency.Round(time.Microsecond)},
	}
	if !s.Known {
		state = append(state, layer.Attr{Key: "known", Value: false})
	}
	state = append(state, layer.Attr{Key: "in_flight", Value: s.InFlight}, layer.Attr{Key: "picks", Value: s.Picks})
	if s.Weight != 1 {
		state = append(state, layer.Attr{Key: "weight", Value: s.Weight})
	}
	if s.OtherZone {
		state = append(state, layer.Attr{Key: "far", Value: true})
	}
	if len(s.Labels) > 0 {
		state = append(state, layer.Attr{Key: "labels", Value: s.Labels})
	}
	if s.Reason != nil {
		state = append(state, layer.Attr{Key: "reason", Value: s.Reason.Error()})
	}
	return state
}
