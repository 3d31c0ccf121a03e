package tap

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
)

// contact is a connection as conditions see it.
type contact struct {
	ctx                 context.Context //nolint:containedctx // a contact lives as long as the look
	place               *place
	source, destination netip.AddrPort
}

// look finds those who want to see the connection. It returns nil if nobody
// does.
func (v *contact) look(present *audience) *connection {
	var x *connection
	route := layer.RouteFromContext(v.ctx)
	draw, drawn := 0.0, false
	now := time.Now().UnixNano()
	for _, w := range present.watchers {
		if !w.connections || w.full() || w.pace.spent(now) {
			continue
		}
		if w.sample > 0 {
			if !drawn {
				draw, drawn = w.reg.draw(), true
			}
			if draw >= w.sample {
				continue
			}
		}
		if !v.meets(w.match, route) {
			continue
		}
		if x == nil {
			x = v.connection(route)
		}
		x.seats = append(x.seats, seat{watcher: w})
	}
	return x
}

// draw is a number from 0 to 1.
func (r *Registry) draw() float64 {
	if r.random != nil {
		return r.random()
	}
	return rand.Float64()
}

// meets is holds for a connection, of which there is less to see.
func (v *contact) meets(c *condition, route *layer.Route) bool {
	switch c.op {
	case opAll, opAny:
		for i := range c.subs {
			if v.meets(&c.subs[i], route) == (c.op == opAny) {
				return c.op == opAny
			}
		}
		return c.op == opAll
	case opNot:
		return !v.meets(&c.subs[0], route)
	case opSource:
		return c.address(v.source)
	case opDestination:
		return c.address(v.destination)
	case opDestinationLabel:
		return v.place.destinationLabels[c.key] == c.text
	case opRouteLabel:
		return route != nil && route.Labels[c.key] == c.text
	default:
		return false
	}
}

func (v *contact) connection(route *layer.Route) *connection {
	x := &connection{common: Event{
		Direction:         v.place.direction,
		Source:            v.source,
		Destination:       v.destination,
		SourceLabels:      v.place.sourceLabels,
		DestinationLabels: v.place.destinationLabels,
	}}
	if route != nil {
		if x.common.RouteLabels = route.Labels; x.common.RouteLabels == nil {
			x.common.RouteLabels = map[string]string{}
		}
	}
	x.seats = x.first[:0]
	return x
}

// connection is a connection, or the try to make one, for those who see it.
type connection struct {
	common Event
	start  time.Time // when it was made, or when that was tried
	opened bool
	seats  []seat
	first  [1]seat // room for one watcher without another allocation
}

// open tells of a connection that was made. Who has no room for that, is not
// shown it. Who wants to know the outcome is told at the end.
func (x *connection) open(now time.Time) {
	x.start, x.opened = now, true
	kept := x.seats[:0]
	for _, s := range x.seats {
		if s.outcome == nil && !x.enter(&s) {
			continue
		}
		kept = append(kept, s)
	}
	x.seats = kept
}

// enter gives s a place in the stream of its watcher, and sends the Open.
func (x *connection) enter(s *seat) bool {
	var ok bool
	if s.stream, ok = s.watcher.enter(); !ok {
		return false
	}
	if !x.opened {
		return true
	}
	e := x.common
	e.Open = &ConnectionOpen{}
	if !s.send(e) {
		s.leave()
		return false
	}
	return true
}

func (x *connection) unseen() bool { return len(x.seats) == 0 }

// close tells of the end. It is called once.
func (x *connection) close(now time.Time, sent, received uint64, why string) {
	end := &ConnectionClose{SinceOpen: now.Sub(x.start), Sent: sent, Received: received, Err: why}
	for i := range x.seats {
		s := &x.seats[i]
		if s.outcome != nil && !s.outcome.closes(end) {
			continue
		}
		if (s.outcome != nil || !x.opened) && !x.enter(s) {
			continue
		}
		e := x.common
		e.Close = end
		s.send(e)
		s.leave()
	}
}

// closes is holds for a connection: it has no status of any kind.
func (o *outcome) closes(end *ConnectionClose) bool {
	return o.hi == 0 && len(o.statuses) == 0 && (!o.failures || end.Err != "") && end.SinceOpen > o.slower
}
