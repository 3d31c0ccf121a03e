package meters

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// tcpRouteFamilies has the metrics of outbound connections by destination.
type tcpRouteFamilies struct{ opened, closed, protocols *family[*counterValue] }

func (m *Meters) tcpRouteFamilies() tcpRouteFamilies {
	return tcpRouteFamilies{
		opened:    m.counters("outbound_tcp_route_open_total", "The number of connections opened."),
		closed:    m.counters("outbound_tcp_route_close_total", "The number of connections closed."),
		protocols: m.counters("outbound_tcp_protocol_connections_total", "Outbound TCP connections by protocol configuration."),
	}
}

// connections has the series of the connections to one destination. A series is exported
// after the first connection that it counts.
type connections struct {
	opened, closed, failed counter // of opaque connections
	protocols              map[Handling]counter
	detect                 func() tcplayer.DetectInstruments
}

// newConnections returns the series of the connections to the destination with the name or
// address dst. It returns nil if r is for inbound connections.
func (r *Routes) newConnections(dst string) *connections {
	if r.direction != Outbound {
		return nil
	}
	f, parent := r.meters.tcpRoutes, r.meters.meta("parent", dst)
	l := r.meters.limited(routeParents(Outbound), dst, parent, func(Labels) labelSet { return fixed(r.meters.meta("parent", "")) })
	ip := ""
	if addr, err := netip.ParseAddrPort(dst); err == nil {
		ip = addr.Addr().String()
	}
	route := r.labels(&destination{dst: dst}, routeMeta("", nil),
		Labels{"target_ip": ip, "target_port": parent["parent_port"]}, func() Labels { return Labels{"target_ip": "", "target_port": ""} })
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

// Handling specifies whether the protocol of a connection is detected.
type Handling string

// The ways to handle a connection.
const (
	Detected Handling = "detect" // the protocol is detected
	Opaque   Handling = "opaq"   // forwarded as bytes
)

// Handled returns a server that counts the connections to the destination of r and passes
// them to next. The metric is outbound_tcp_protocol_connections_total, and its label
// protocol has the value h. Nothing is counted if r is for inbound connections, or if h is
// neither [Detected] nor [Opaque].
func (r *Routes) Handled(h Handling, next tcplayer.Server) tcplayer.Server {
	return &handled{next, r, h}
}

// handled is a server that counts connections by their [Handling], and passes them to the
// embedded Server.
type handled struct {
	tcplayer.Server
	routes *Routes
	how    Handling
}

func (h *handled) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if c := h.routes.current.Load().connections(); c != nil {
		if protocol, ok := c.protocols[h.how]; ok {
			protocol.Add(1)
		}
	}
	return h.Server.Call(ctx, conn)
}

func (h *handled) Next() tcplayer.Server { return h.Server }

func (h *handled) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Forwarded returns a server that counts opaque connections and passes them to next, which
// forwards them as bytes. A connection counts in outbound_tcp_route_open_total when it
// begins, and in outbound_tcp_route_close_total when it ends. A connection that fails or
// is rejected also counts in both. It has the label error="unexpected" in the second
// metric. Inbound connections are not counted.
func (r *Routes) Forwarded(next tcplayer.Server) tcplayer.Server { return &forwarded{next, r} }

// forwarded is a server that counts opaque connections when they begin and end. The
// embedded Server forwards them.
type forwarded struct {
	tcplayer.Server
	routes *Routes
}

func (f *forwarded) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	c := f.routes.current.Load().connections()
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

// Detect returns the instruments of tcplayer.Detect for the connections to the destination
// of r. They count in outbound_tcp_detect_http_*. The labels parent_* describe the
// destination by its name. [Routes.OnProfile] sets this name. Before the first call of
// OnProfile, the name is the target that [Meters.Routes] received. If r is for inbound
// connections, the instruments count nothing.
func (r *Routes) Detect() tcplayer.DetectInstruments {
	return tcplayer.DetectInstruments{Latency: detectLatency{r}, Results: detectResults{r, nil}}
}

// detectLatency is the histogram of the time that protocol detection takes. Its labels
// describe the destination by the profile that applies at the time of each detection.
type detectLatency struct{ *Routes }

func (d detectLatency) With(...string) metrics.Histogram { return d }

func (d detectLatency) Observe(ms float64) {
	if c := d.current.Load().connections(); c != nil {
		c.detect().Latency.Observe(ms)
	}
}

// detectResults counts the detected protocols. Its labels describe the destination by the
// profile that applies at the time of each detection.
type detectResults struct {
	*Routes
	result []string // name and value of the label; nil until With sets it
}

func (d detectResults) With(label ...string) metrics.Counter { return detectResults{d.Routes, label} }

func (d detectResults) Add(delta float64) {
	if c := d.current.Load().connections(); c != nil && d.result != nil {
		c.detect().Results.With(d.result...).Add(delta)
	}
}
