package balance

import (
	"fmt"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer"
)

// examined has the endpoints that one pick examined. All methods of a nil *examined do nothing.
type examined struct{ endpoints []examinedEndpoint }

type examinedEndpoint struct {
	*endpoint
	reading
}

// add records r as the reading of e. It replaces an earlier reading of e.
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

// read records the current state of e. It does nothing if e is nil.
func (x *examined) read(g *group, e *endpoint, now uint32) {
	if x != nil && e != nil {
		x.add(e, g.read(e, now))
	}
}

// maxUnready is the largest number of unready endpoints in one explanation.
const maxUnready = 16

// explain adds one pick to the explanation: the endpoints that the pick for q examined, the
// chosen one, and why other endpoints were not ready. The argument chosen is nil if the
// pick found no endpoint.
func (b *Balancer[Req, Rsp]) explain(to *layer.Explanation, q query, chosen *node[Req, Rsp]) {
	d := layer.Node{Name: "balance", State: layer.State{
		{Key: "target", Value: b.target}, {Key: "pick", Value: b.pickName}, {Key: "cost", Value: b.group.cost},
	}}
	d.State = append(d.State, b.group.apertures()...)
	if chosen != nil {
		d.State = append(d.State, layer.Attr{Key: "chosen", Value: chosen.id.Addr})
	}
	d.State = addIf(q.hasAffinity, d.State, "affinity", fmt.Sprintf("%016x", q.affinity))
	b.mu.Lock()
	for _, x := range q.examined.endpoints {
		d.Children = append(d.Children, b.explainExamined(x, q, chosen))
	}
	d.Children = append(d.Children, b.explainUnready()...)
	b.mu.Unlock()
	to.Add(d)
}

// explainExamined returns the description of one endpoint that a pick examined. The
// argument chosen is the one that the pick chose, or nil. The caller must hold mu.
func (b *Balancer[Req, Rsp]) explainExamined(x examinedEndpoint, q query, chosen *node[Req, Rsp]) layer.Node {
	result := "higher cost"
	switch {
	case chosen != nil && x.endpoint == &chosen.endpoint:
		result = "chosen"
	case x.reading.atLimit:
		result = "probing, at its limit of requests"
	case q.attempts.Has(x.endpoint):
		result = "previous attempt"
	case x.status.fails():
		result = "consecutive failures"
	case chosen != nil && x.far && !chosen.far:
		result = "other zone, below spillover"
	}
	state := layer.State{
		{Key: "addr", Value: x.id.Addr}, {Key: "result", Value: result}, {Key: "cost", Value: b.showCost(x.reading.cost)},
		{Key: "latency", Value: b.expected(x.endpoint, q.now).Round(time.Microsecond)},
		{Key: "in_flight", Value: x.reading.inFlight},
	}
	state = addIf(x.reading.weight != 1, state, "weight", x.reading.weight)
	state = addIf(x.status.fails(), state, "consecutive_failures", x.fails.Load())
	state = addIf(x.far, state, "other_zone", true)
	return layer.Node{Name: "endpoint", State: state}
}

// showCost returns the text for a cost: a duration for EWMA, a number for LeastRequest, and
// "none" for an excluded endpoint.
func (b *Balancer[Req, Rsp]) showCost(cost float32) string {
	switch {
	case cost >= excludedCost:
		return "none"
	case b.group.cost == EWMA:
		return time.Duration(cost).Round(time.Microsecond).String()
	}
	return strconv.FormatFloat(float64(cost), 'g', 4, 32)
}

// explainUnready returns the descriptions of up to maxUnready endpoints that are not ready.
// The caller must hold mu.
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

// Describe returns the state of the balancer. Its children are the endpoints in the order
// of their addresses, each with its stack.
func (b *Balancer[Req, Rsp]) Describe() layer.Node {
	b.mu.Lock()
	nodes, states := b.states()
	state := layer.State{
		{Key: "target", Value: b.target}, {Key: "state", Value: b.state}, {Key: "pick", Value: b.pickName},
		{Key: "cost", Value: b.group.cost.String()}, {Key: "endpoints", Value: len(nodes)}, {Key: "ready", Value: b.group.len()},
	}
	state = append(state, b.group.apertures()...)
	if b.detection.enabled() {
		state = append(state, layer.State{
			{Key: "ejected", Value: b.ejected}, {Key: "ejections", Value: b.ejections}, {Key: "ejections_skipped", Value: b.skipped},
		}...)
	}
	err := b.err
	b.mu.Unlock()
	d := layer.Node{Name: "balance"}
	var picks, farPicks uint64
	for i, n := range nodes {
		s, next := states[i], layer.Describe(n.service)
		d.Children = append(d.Children, layer.Node{Name: "endpoint", State: s.attributes(), Next: &next})
		if picks += s.Picks; s.OtherZone {
			farPicks += s.Picks
		}
	}
	state = append(state, layer.Attr{Key: "picks", Value: picks})
	state = addIf(b.zone != "", state, "other_zone_picks", farPicks)
	if err != nil {
		state = append(state, layer.Attr{Key: "error", Value: err.Error()})
	}
	if ended := b.ended.Load(); ended != nil {
		state = append(state, layer.Attr{Key: "closed", Value: ended.Error()})
	}
	d.State = state
	return d
}

func (s EndpointState) attributes() layer.State {
	state := layer.State{
		{Key: "addr", Value: s.ID.Addr}, {Key: "state", Value: s.State}, {Key: "ewma", Value: s.Latency.Round(time.Microsecond)},
	}
	state = addIf(!s.Known, state, "known", false)
	state = append(state, layer.Attr{Key: "in_flight", Value: s.InFlight}, layer.Attr{Key: "picks", Value: s.Picks})
	state = addIf(s.Weight != 1, state, "weight", s.Weight)
	state = addIf(s.Failures > 0, state, "consecutive_failures", s.Failures)
	state = addIf(s.OutsideAperture, state, "outside_aperture", true)
	state = addIf(s.OtherZone, state, "other_zone", true)
	state = addIf(len(s.Labels) > 0, state, "labels", s.Labels)
	if s.Reason != nil {
		state = append(state, layer.Attr{Key: "reason", Value: s.Reason.Error()})
	}
	return state
}

// addIf adds an attribute to state if present is true.
func addIf(present bool, state layer.State, key string, value any) layer.State {
	if !present {
		return state
	}
	return append(state, layer.Attr{Key: key, Value: value})
}
