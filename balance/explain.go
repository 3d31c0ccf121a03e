package balance

import (
	"fmt"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer"
)

// examined has the endpoints that one pick examined. The methods of a nil *examined do nothing.
type examined struct{ endpoints []examinedEndpoint }

type examinedEndpoint struct {
	*endpoint
	reading
}

// add records r. It replaces an earlier reading of e.
func (x *examined) add(e *endpoint, r reading) {
	if x == nil {
		return
	}
	for i := range x.endpoints {
		if x.endpoints[i].endpoint == e {
			x.endpoints[i].reading = r
			return
		}
	}
	x.endpoints = append(x.endpoints, examinedEndpoint{e, r})
}

// read records the current reading of e.
func (x *examined) read(g *group, e *endpoint, now uint32) {
	if x != nil && e != nil {
		x.add(e, g.read(e, now))
	}
}

// maxUnready is the largest number of endpoints that are not ready in an explanation.
const maxUnready = 16

// explain adds the choice of one pick to an explanation.
func (b *Balancer[Req, Rsp]) explain(to *layer.Explanation, q query, chosen *node[Req, Rsp]) {
	d := layer.Node{Name: "balance", State: layer.State{
		{Key: "target", Value: b.target}, {Key: "pick", Value: b.pickName}, {Key: "cost", Value: b.group.cost},
	}}
	if a := b.group.apertures(); a != nil {
		d.State = append(d.State, *a)
	}
	if chosen != nil {
		d.State = append(d.State, layer.Attr{Key: "chosen", Value: chosen.id.Addr})
	}
	if q.hasAffinity {
		d.State = append(d.State, layer.Attr{Key: "affinity", Value: fmt.Sprintf("%016x", q.affinity)})
	}
	b.mu.Lock()
	for _, x := range q.examined.endpoints {
		d.Children = append(d.Children, b.explainExamined(x, q, chosen != nil && x.endpoint == &chosen.endpoint))
	}
	d.Children = append(d.Children, b.explainUnready()...)
	b.mu.Unlock()
	to.Add(d)
}

// explainExamined returns the node of an examined endpoint. The caller must hold mu.
func (b *Balancer[Req, Rsp]) explainExamined(x examinedEndpoint, q query, chosen bool) layer.Node {
	result := "higher cost"
	switch {
	case chosen:
		result = "chosen"
	case x.reading.atLimit:
		result = "probing, at its limit of requests"
	case q.attempts.Has(x.endpoint):
		result = "previous attempt"
	case x.status.fails():
		result = "consecutive failures"
	}
	state := layer.State{
		{Key: "addr", Value: x.id.Addr}, {Key: "result", Value: result}, {Key: "cost", Value: b.showCost(x.reading.cost)},
		{Key: "latency", Value: b.expected(x.endpoint, q.now).Round(time.Microsecond)},
		{Key: "in_flight", Value: x.reading.inFlight},
	}
	if x.reading.weight != 1 {
		state = append(state, layer.Attr{Key: "weight", Value: x.reading.weight})
	}
	if x.status.fails() {
		state = append(state, layer.Attr{Key: "consecutive_failures", Value: x.fails.Load()})
	}
	if x.far {
		state = append(state, layer.Attr{Key: "other_zone", Value: true})
	}
	return layer.Node{Name: "endpoint", State: state}
}

// showCost returns a EWMA cost as a duration and any other cost as a number.
func (b *Balancer[Req, Rsp]) showCost(cost float32) string {
	switch {
	case cost >= excludedCost:
		return "none"
	case b.group.cost.of == nil:
		return time.Duration(cost).Round(time.Microsecond).String()
	}
	return strconv.FormatFloat(float64(cost), 'g', 4, 32)
}

// explainUnready returns nodes of endpoints that are not ready. The caller must hold mu.
func (b *Balancer[Req, Rsp]) explainUnready() []layer.Node {
	var unready []layer.Node
	for _, n := range b.nodes {
		if len(unready) == maxUnready {
			break
		}
		if state := n.status.state(); state != ready {
			d := layer.Node{Name: "endpoint", State: layer.State{
				{Key: "addr", Value: n.id.Addr}, {Key: "result", Value: stateName(state)},
			}}
			if n.reason != nil {
				d.State = append(d.State, layer.Attr{Key: "reason", Value: n.reason.Error()})
			}
			unready = append(unready, d)
		}
	}
	return unready
}

// Describe returns the endpoints in the order of their addresses, each with its stack.
func (b *Balancer[Req, Rsp]) Describe() layer.Node {
	b.mu.Lock()
	nodes, states := b.states()
	state := layer.State{
		{Key: "target", Value: b.target},
		{Key: "state", Value: b.state},
		{Key: "pick", Value: b.pickName},
		{Key: "cost", Value: b.group.cost.String()},
		{Key: "endpoints", Value: len(nodes)},
		{Key: "ready", Value: b.group.len()},
	}
	if a := b.group.apertures(); a != nil {
		state = append(state, *a)
	}
	if b.detection.enabled() {
		state = append(state, layer.State{
			{Key: "ejected", Value: b.ejected}, {Key: "ejections", Value: b.ejections}, {Key: "ejections_skipped", Value: b.skipped},
		}...)
	}
	err := b.err
	b.mu.Unlock()
	var picks uint64
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
	if s.Failures > 0 {
		state = append(state, layer.Attr{Key: "consecutive_failures", Value: s.Failures})
	}
	if s.OutsideAperture {
		state = append(state, layer.Attr{Key: "outside_aperture", Value: true})
	}
	if s.OtherZone {
		state = append(state, layer.Attr{Key: "other_zone", Value: true})
	}
	if len(s.Labels) > 0 {
		state = append(state, layer.Attr{Key: "labels", Value: s.Labels})
	}
	if s.Reason != nil {
		state = append(state, layer.Attr{Key: "reason", Value: s.Reason.Error()})
	}
	return state
}
