package meters

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// tcpRouteFamilies are the metrics of connections by destination.
type tcpRouteFamilies struct{ opened, closed, protocols *family[prometheus.Counter] }

func (m *Meters) tcpRouteFamilies() tcpRouteFamilies {
	return tcpRouteFamilies{
		opened:    m.counters("outbound_tcp_route_open_total", "The number of connections opened."),
		closed:    m.counters("outbound_tcp_route_close_total", "The number of connections closed."),
		protocols: m.counters("outbound_tcp_protocol_connections_total", "Outbound TCP connections by protocol configuration."),
	}
}

// connections is the series of one destination with one name. They are bound at the first
// connection.
type connections struct {
	over             context.CancelFunc
	seriesLease      *seriesLease
	route            func() tcpRoute
	detected, opaque func() prometheus.Counter
	looked           func() tcplayer.DetectInstruments
}

type tcpRoute struct{ opened, closed, failed prometheus.Counter }

func (r *Routes) newConnections(dst string) *connections {
	ctx, over := context.WithCancel(r.ctx)
	f, l, parent := r.meters.tcpRoutes, r.meters.seriesLease(ctx), r.meters.meta("parent", dst)
	protocol := func(h Handling) func() prometheus.Counter {
		return sync.OnceValue(func() prometheus.Counter {
			return f.protocols.bind(l, parent.With(Labels{"protocol": string(h)}))
		})
	}
	c := &connections{over: over, seriesLease: l, detected: protocol(Detected), opaque: protocol(Opaque)}
	c.looked = sync.OnceValue(func() tcplayer.DetectInstruments { return r.meters.detect(l, r.direction, parent) })
	c.route = sync.OnceValue(func() tcpRoute {
		labels := parent.With(routeMeta("")).With(Labels{"target_ip": "", "target_port": parent["parent_port"]})
		if addr, err := netip.ParseAddrPort(dst); err == nil {
			labels["target_ip"] = addr.Addr().String()
		}
		closed := func(err string) prometheus.Counter { return f.closed.bind(l, labels.With(Labels{"error": err})) }
		return tcpRoute{opened: f.opened.bind(l, labels), closed: closed(""), failed: closed(unexpected)}
	})
	return c
}

// Handling is how the connections to a destination are handled.
type Handling string

// The ways to handle connections.
const (
	Detected Handling = "detect" // it is looked which protocol they speak
	Opaque   Handling = "opaq"   // nobody looks into them
)

// Handled is a layer that counts the connections to the destination by Handling:
// outbound_tcp_protocol_connections_total. It counts nothing inbound, and nothing for an
// unknown Handling.
func (r *Routes) Handled(h Handling, next tcplayer.Server) tcplayer.Server {
	return &handled{next, r, h}
}

type handled struct {
	tcplayer.Server
	routes *Routes
	how    Handling
}

func (h *handled) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if c := h.routes.conns.Load(); c != nil {
		switch h.how {
		case Detected:
			c.detected().Inc()
		case Opaque:
			c.opaque().Inc()
		}
	}
	return h.Server.Call(ctx, conn)
}

func (h *handled) Next() tcplayer.Server { return h.Server }

func (h *handled) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Forwarded is a layer that counts the connections that are forwarded to the destination
// as bytes: outbound_tcp_route_open_total and outbound_tcp_route_close_total. It counts
// nothing inbound. A refusal counts as a failed connection.
func (r *Routes) Forwarded(next tcplayer.Server) tcplayer.Server { return &forwarded{next, r} }

type forwarded struct {
	tcplayer.Server
	routes *Routes
}

func (f *forwarded) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	c := f.routes.conns.Load()
	if c == nil {
		return f.Server.Call(ctx, conn)
	}
	c.seriesLease.hold()
	defer c.seriesLease.release()
	route := c.route()
	route.opened.Inc()
	ended := route.failed
	defer func() { ended.Inc() }()
	t, err := f.Server.Call(ctx, conn)
	if err == nil {
		ended = route.closed
	}
	return t, err
}

func (f *forwarded) Next() tcplayer.Server { return f.Server }

func (f *forwarded) Describe() layer.Node { return layer.Node{Name: "metrics"} }
