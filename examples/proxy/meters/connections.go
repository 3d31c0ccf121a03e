package meters

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/go-kit/kit/metrics"
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
	opened, closed, failed counter // of opaque connections
	protocols              map[Handling]counter
	detect                 func() tcplayer.DetectInstruments
}

func (r *Routes) newConnections(dst string) *connections {
	f, parent, rest := r.meters.tcpRoutes, r.meters.meta("parent", dst), r.meters.meta("parent", "")
	l := r.meters.limited(routeParents(Outbound), dst, parent, rest)
	ip := ""
	if addr, err := netip.ParseAddrPort(dst); err == nil {
		ip = addr.Addr().String()
	}
	route := r.labels(dst, "",
		Labels{"target_ip": ip, "target_port": parent["parent_port"]}, Labels{"target_ip": "", "target_port": ""})
	return &connections{
		opened: counter{f.opened.lazy(route)},
		closed: counter{f.closed.lazy(route.with(Labels{"error": ""}))},
		failed: counter{f.closed.lazy(route.with(Labels{"error": unexpected}))},
		protocols: map[Handling]counter{
			Detected: {f.protocols.lazy(l.with(Labels{"protocol": string(Detected)}))},
			Opaque:   {f.protocols.lazy(l.with(Labels{"protocol": string(Opaque)}))},
		},
		detect: sync.OnceValue(func() tcplayer.DetectInstruments { return r.meters.detect(r.direction, l) }),
	}
}

// Handling is the way in which the connections to a destination are handled.
type Handling string

// The ways to handle connections.
const (
	Detected Handling = "detect" // the protocol is detected
	Opaque   Handling = "opaq"   // forwarded as bytes
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
	if c := h.routes.current.Load().connections; c != nil {
		if protocol, ok := c.protocols[h.how]; ok {
			protocol.Add(1)
		}
	}
	return h.Server.Call(ctx, conn)
}

func (h *handled) Next() tcplayer.Server { return h.Server }

func (h *handled) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Forwarded is a layer that counts the connections that are forwarded to the destination
// as bytes: outbound_tcp_route_open_total and outbound_tcp_route_close_total. It counts
// nothing inbound. A rejection counts as a failed connection.
func (r *Routes) Forwarded(next tcplayer.Server) tcplayer.Server { return &forwarded{next, r} }

type forwarded struct {
	tcplayer.Server
	routes *Routes
}

func (f *forwarded) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	c := f.routes.current.Load().connections
	if c == nil {
		return f.Server.Call(ctx, conn)
	}
	c.opened.Add(1)
	ended := c.failed
	defer func() { ended.Add(1) }()
	t, err := f.Server.Call(ctx, conn)
	if err == nil {
		ended = c.closed
	}
	return t, err
}

func (f *forwarded) Next() tcplayer.Server { return f.Server }

func (f *forwarded) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Detect is [Meters.Detect] for the connections to the destination, with parent_* of the
// name in its profile. Inbound it counts nothing.
func (r *Routes) Detect() tcplayer.DetectInstruments {
	return tcplayer.DetectInstruments{Latency: detectLatency{r}, Results: detectResults{r, nil}}
}

type detectLatency struct{ *Routes }

func (d detectLatency) With(...string) metrics.Histogram { return d }

func (d detectLatency) Observe(ms float64) {
	if c := d.current.Load().connections; c != nil {
		c.detect().Latency.Observe(ms)
	}
}

type detectResults struct {
	*Routes
	result []string // the label; nil: not bound yet
}

func (d detectResults) With(label ...string) metrics.Counter { return detectResults{d.Routes, label} }

func (d detectResults) Add(delta float64) {
	if c := d.current.Load().connections; c != nil && d.result != nil {
		c.detect().Results.With(d.result...).Add(delta)
	}
}
