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

// tcpRouteFamilies contains the metrics of outbound connections by destination.
type tcpRouteFamilies struct{ opened, closed, protocols *family[*counterValue] }

// tcpRouteFamilies makes the metrics for the routes of connections.
func (m *Meters) tcpRouteFamilies() tcpRouteFamilies {
	return tcpRouteFamilies{
		opened:    m.counters("outbound_tcp_route_open_total", "The number of connections opened."),
		closed:    m.counters("outbound_tcp_route_close_total", "The number of connections closed."),
		protocols: m.counters("outbound_tcp_protocol_connections_total", "Outbound TCP connections by protocol configuration."),
	}
}

// connections contains the series for the connections to one destination. A series is exported
// after the first connection that it counts.
type connections struct {
	opened, closed, failed counter                           // of opaque connections
	protocols              map[Handling]counter              // all connections, by whether their protocol is detected
	detect                 func() tcplayer.DetectInstruments // makes the series of detections at its first call
}

// newConnections returns the series for the connections to dst, a name or address.
func (m *Meters) newConnections(dst string) *connections {
	f := m.tcpRoutes
	parent := m.meta("parent", dst)
	// Beyond the limit, connections to further names share the labels of an unknown destination.
	l := m.limited(routeParents(Outbound), dst, parent, func(Labels) labelSet { return fixed(m.meta("parent", "")) })
	// A name has no address, so target_ip is empty for it.
	ip := ""
	if addr, err := netip.ParseAddrPort(dst); err == nil {
		ip = addr.Addr().String()
	}
	route := (&Routes{meters: m, dst: dst}).labels(routeMeta("", nil),
		Labels{"target_ip": ip, "target_port": parent["parent_port"]}, func() Labels { return Labels{"target_ip": "", "target_port": ""} })
	return &connections{
		opened: counter{f.opened.lazy(route)},
		closed: counter{f.closed.lazy(route.with(Labels{"error": ""}))},
		// A connection either closes normally or with an error, so one metric has two series.
		failed: counter{f.closed.lazy(route.with(Labels{"error": unexpected}))},
		protocols: map[Handling]counter{
			Detected: {f.protocols.lazy(l.with(Labels{"protocol": string(Detected)}))},
			Opaque:   {f.protocols.lazy(l.with(Labels{"protocol": string(Opaque)}))},
		},
		// Only destinations whose connections are detected get these series.
		detect: sync.OnceValue(func() tcplayer.DetectInstruments { return m.detect(Outbound, l) }),
	}
}

// Handling specifies whether a connection's protocol is detected.
type Handling string

// Ways to handle a connection.
const (
	Detected Handling = "detect" // the protocol is detected
	Opaque   Handling = "opaq"   // forwarded as bytes
)

// Connections counts the connections to one outbound destination. It returns the destination's current [Routes],
// so that a connection counts by the profile at that time.
type Connections func() *Routes

// Handled returns a server that counts the connections in
// outbound_tcp_protocol_connections_total before it passes them to next. The label protocol is h,
// which must be [Detected] or [Opaque].
func (c Connections) Handled(h Handling, next tcplayer.Server) tcplayer.Server {
	return &handled{next, c, h}
}

// handled counts connections by their [Handling].
type handled struct {
	tcplayer.Server
	current  Connections
	handling Handling
}

// Call counts the connection by the way in which its protocol was chosen.
func (h *handled) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	// The protocol is a label's value, so unknown values of Handling would have no series.
	if protocol, ok := h.current().connections().protocols[h.handling]; ok {
		protocol.Add(1)
	}
	return h.Server.Call(ctx, conn)
}

func (h *handled) Next() tcplayer.Server { return h.Server }

func (h *handled) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Forwarded returns a server that counts opaque connections before it passes them to next, which
// forwards their bytes. A connection counts in outbound_tcp_route_open_total when it begins, and in
// outbound_tcp_route_close_total when it ends. If it fails or is rejected, it counts in both as
// well, with error="unexpected" in the second.
func (c Connections) Forwarded(next tcplayer.Server) tcplayer.Server { return &forwarded{next, c} }

// forwarded counts opaque connections when they begin and end.
type forwarded struct {
	tcplayer.Server
	current Connections
}

// Call counts the connection when it is opened, and its result when it ends.
func (f *forwarded) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	c := f.current().connections()
	c.opened.Add(1)
	// Assume a failure, which then also counts if Call panics.
	outcome := c.failed
	defer func() { outcome.Add(1) }()
	t, err := f.Server.Call(ctx, conn)
	if err == nil {
		outcome = c.closed
	}
	return t, err
}

func (f *forwarded) Next() tcplayer.Server { return f.Server }

func (f *forwarded) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// Detect returns the instruments for tcplayer.Detect and the connections. They count in outbound_tcp_detect_http_*.
func (c Connections) Detect() tcplayer.DetectInstruments {
	return tcplayer.DetectInstruments{Latency: detectLatency{c}, Results: detectResults{current: c}}
}

// detectLatency observes how long protocol detection takes. Its labels describe the destination by
// the profile at that time.
type detectLatency struct{ current Connections }

func (d detectLatency) With(...string) metrics.Histogram { return d }

// Observe records how long a detection took.
func (d detectLatency) Observe(ms float64) { d.current().connections().detect().Latency.Observe(ms) }

// detectResults counts detected protocols. Its labels describe the destination by the profile at
// that time.
type detectResults struct {
	current Connections
	result  []string // the label's name and value; nil until With sets it
}

func (d detectResults) With(label ...string) metrics.Counter { return detectResults{d.current, label} }

// Add counts detections with the result that With has set. Without one, it counts nothing.
func (d detectResults) Add(delta float64) {
	if d.result != nil {
		d.current().connections().detect().Results.With(d.result...).Add(delta)
	}
}
