package balance

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer"
)

// examined collects the endpoints that one pick has examined, for an explanation. Its methods do
// nothing if it is nil, which is the usual case.
type examined struct{ endpoints []examinedEndpoint }

// examinedEndpoint is an endpoint with its state when the pick compared it.
type examinedEndpoint struct {
	*endpoint
	reading
}

// add records r as e's reading, and replaces an earlier one.
func (x *examined) add(e *endpoint, r reading) {
	if x == nil {
		return
	}
	// A retried pick may examine an endpoint twice.
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

// explain adds a node about one pick to explanation: the endpoints that the pick has examined with
// their costs, which one was chosen, and why others were not ready. chosen is nil if the pick found
// none.
func (b *Balancer[Req, Rsp]) explain(explanation *layer.Explanation, q query, chosen *node[Req, Rsp]) {
	d := layer.Node{Name: "balance", State: layer.State{
		{Key: "target", Value: b.target}, {Key: "pick", Value: b.policy.Load().Picker}, {Key: "cost", Value: b.policy.Load().Cost},
	}}
	// mu is held twice for a short time, rather than while the state is formatted.
	b.mu.Lock()
	d.State = append(d.State, b.apertures()...)
	b.mu.Unlock()
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
	explanation.Add(d)
}

// explainExamined returns the node of one examined endpoint, with the reason why it was not chosen, or
// "chosen". The caller must hold mu.
func (b *Balancer[Req, Rsp]) explainExamined(x examinedEndpoint, q query, chosen *node[Req, Rsp]) layer.Node {
	result := "higher cost"
	// The order matters: the first reason that applies is shown.
	switch {
	case chosen != nil && x.endpoint == &chosen.endpoint:
		result = "chosen"
	case x.reading.atLimit:
		result = "probing, at its limit of requests"
	case q.attempts.Has(x.endpoint):
		result = "previous attempt"
	case x.level.Load() > 0:
		result = "failed, waits for a probe"
	case chosen != nil && x.far && !chosen.far:
		result = "other zone"
	}
	state := layer.State{
		{Key: "addr", Value: x.id.Addr}, {Key: "result", Value: result}, {Key: "cost", Value: b.showCost(x.reading.cost)},
		{Key: "latency", Value: b.expected(x.endpoint, q.now).Round(time.Microsecond)},
		{Key: "in_flight", Value: x.reading.inFlight},
	}
	state = addIf(x.reading.weight != 1, state, "weight", x.reading.weight)
	state = addIf(x.fails.Load() > 0, state, "consecutive_failures", x.fails.Load())
	rate := float64(x.errorRate(q.now, b.groupOf(x.endpoint).params.Load()))
	state = addIf(x.status.isSuspected(), state, "error_rate", math.Round(1000*rate)/1000)
	state = addIf(x.far, state, "other_zone", true)
	return layer.Node{Name: "endpoint", State: state}
}

// showCost returns the text for a cost: a duration for EWMA, a number for LeastRequest, and
// "none" for an excluded endpoint.
func (b *Balancer[Req, Rsp]) showCost(cost float32) string {
	switch {
	case cost >= excludedCost:
		return "none"
	case b.policy.Load().Cost == EWMA:
		return time.Duration(cost).Round(time.Microsecond).String()
	}
	return strconv.FormatFloat(float64(cost), 'g', 4, 32)
}

// explainUnready returns the descriptions of up to maxUnready endpoints that are not ready.
// The caller must hold mu.
func (b *Balancer[Req, Rsp]) explainUnready() []layer.Node {
	var unready []layer.Node
	for _, n := range b.nodes {
		// A list of all endpoints of a large target would be unreadable.
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

// Describe returns the balancer's state. Its children are the endpoints in the order of their
// addresses, each with its stack.
func (b *Balancer[Req, Rsp]) Describe() layer.Node {
	b.mu.Lock()
	nodes, states := b.states()
	state := layer.State{
		{Key: "target", Value: b.target}, {Key: "state", Value: b.state}, {Key: "pick", Value: b.policy.Load().Picker.String()},
		{Key: "cost", Value: b.policy.Load().Cost.String()}, {Key: "endpoints", Value: len(nodes)}, {Key: "ready", Value: b.readyLen()},
	}
	state = append(state, b.apertures()...)
	state = append(state, b.division.Load().describe()...)
	if b.policy.Load().OutlierDetection.enabled() {
		state = append(state, layer.State{
			{Key: "ejected", Value: b.ejected}, {Key: "ejections", Value: b.ejections}, {Key: "ejections_skipped", Value: b.skipped},
		}...)
	}
	// The services describe themselves after the lock is released, because they are user code.
	err := b.err
	b.mu.Unlock()
	d := layer.Node{Name: "balance"}
	var picks, farPicks uint64
	for i, n := range nodes {
		s := states[i]
		next := layer.Describe(n.service)
		d.Children = append(d.Children, layer.Node{Name: "endpoint", State: s.attributes(), Next: &next})
		if picks += s.Picks; s.OtherZone {
			farPicks += s.Picks
		}
	}
	state = append(state, layer.Attr{Key: "picks", Value: picks})
	state = addIf(b.policy.Load().Zone != "", state, "other_zone_picks", farPicks)
	if err != nil {
		state = append(state, layer.Attr{Key: "error", Value: err.Error()})
	}
	if ended := b.ended.Load(); ended != nil {
		state = append(state, layer.Attr{Key: "closed", Value: ended.Error()})
	}
	d.State = state
	return d
}

// attributes returns s for Describe. It leaves out what is as usual.
func (s EndpointState) attributes() layer.State {
	state := layer.State{
		{Key: "addr", Value: s.ID.Addr}, {Key: "state", Value: s.State}, {Key: "ewma", Value: s.Latency.Round(time.Microsecond)},
	}
	state = addIf(!s.Known, state, "known", false)
	state = addIf(s.Cost > 0, state, "cost", s.Cost.Round(time.Microsecond))
	state = append(state, layer.Attr{Key: "in_flight", Value: s.InFlight}, layer.Attr{Key: "picks", Value: s.Picks})
	state = addIf(s.Weight != 1, state, "weight", s.Weight)
	state = addIf(s.Failures > 0, state, "consecutive_failures", s.Failures)
	state = addIf(s.Doubted, state, "doubted", true)
	state = addIf(s.ErrorRate >= 0.001, state, "error_rate", math.Round(1000*s.ErrorRate)/1000)
	state = addIf(s.OutsideAperture, state, "outside_aperture", true)
	state = addIf(s.OtherZone, state, "other_zone", true)
	state = addIf(s.Priority > 0, state, "priority", s.Priority)
	state = addIf(s.Locality != "", state, "locality", s.Locality)
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
