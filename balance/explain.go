package balance

import (
	"fmt"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer"
)

// looks are the endpoints that were looked at for one choice. A nil looks takes
// nothing.
type looks struct{ seen []look }

type look struct {
	*endpoint
	reading
}

// saw takes how an endpoint was when it was looked at last.
func (l *looks) saw(e *endpoint, r reading) {
	if l == nil {
		return
	}
	for i := range l.seen {
		if l.seen[i].endpoint == e {
			l.seen[i].reading = r
			return
		}
	}
	l.seen = append(l.seen, look{e, r})
}

// look looks at e only if somebody wants to know.
func (l *looks) look(g *group, e *endpoint, now uint32) {
	if l != nil && e != nil {
		l.saw(e, g.read(e, now))
	}
}

// maxOut bounds how many endpoints that were not to choose from are named.
const maxOut = 16

// explain says how the choice was made.
func (b *Balancer[Req, Rsp]) explain(to *layer.Explanation, q query, chosen *node[Req, Rsp]) {
	d := layer.Node{Name: "balance", State: layer.State{
		{Key: "target", Value: b.target}, {Key: "pick", Value: b.pickName}, {Key: "cost", Value: b.group.cost},
	}}
	if chosen != nil {
		d.State = append(d.State, layer.Attr{Key: "chosen", Value: chosen.id.Addr})
	}
	if q.hasAffinity {
		d.State = append(d.State, layer.Attr{Key: "affinity", Value: fmt.Sprintf("%016x", q.affinity)})
	}
	b.mu.Lock()
	for _, s := range q.why.seen {
		d.Children = append(d.Children, b.explainLook(s, q, chosen != nil && s.endpoint == &chosen.endpoint))
	}
	d.Children = append(d.Children, b.explainOut()...)
	b.mu.Unlock()
	to.Add(d)
}

// explainLook says of an endpoint that was looked at what was made of it. The
// mutex is held.
func (b *Balancer[Req, Rsp]) explainLook(s look, q query, chosen bool) layer.Node {
	verdict := "passed over"
	switch {
	case chosen:
		verdict = "chosen"
	case s.reading.full:
		verdict = "unknown, and tried out by others"
	case q.tries.Has(s.endpoint):
		verdict = "tried before"
	}
	state := layer.State{
		{Key: "addr", Value: s.id.Addr}, {Key: "verdict", Value: verdict}, {Key: "cost", Value: b.showCost(s.reading.cost)},
		{Key: "latency", Value: b.expected(s.endpoint, q.now).Round(time.Microsecond)},
		{Key: "in_flight", Value: s.reading.inFlight},
	}
	if s.reading.weight != 1 {
		state = append(state, layer.Attr{Key: "weight", Value: s.reading.weight})
	}
	if s.status.fails() {
		state = append(state, layer.Attr{Key: "failing", Value: true})
	}
	if s.far {
		state = append(state, layer.Attr{Key: "far", Value: true})
	}
	return layer.Node{Name: "endpoint", State: state}
}

// showCost shows a latency times requests as a time, and any other cost as it
// is.
func (b *Balancer[Req, Rsp]) showCost(cost float32) string {
	switch {
	case cost >= dear:
		return "none"
	case b.group.cost.of == nil:
		return time.Duration(cost).Round(time.Microsecond).String()
	}
	return strconv.FormatFloat(float64(cost), 'g', 4, 32)
}

// explainOut says of the endpoints that were not to choose from why not. The
// mutex is held.
func (b *Balancer[Req, Rsp]) explainOut() []layer.Node {
	var out []layer.Node
	for _, n := range b.nodes {
		if len(out) == maxOut {
			break
		}
		if state := n.status.state(); state != ready {
			d := layer.Node{Name: "endpoint", State: layer.State{
				{Key: "addr", Value: n.id.Addr}, {Key: "verdict", Value: stateName(state)},
			}}
			if n.reason != nil {
				d.State = append(d.State, layer.Attr{Key: "reason", Value: n.reason.Error()})
			}
			out = append(out, d)
		}
	}
	return out
}

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
