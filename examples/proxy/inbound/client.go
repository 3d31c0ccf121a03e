package inbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// client describes the client of a connection.
type client struct {
	addr   netip.Addr
	secure bool   // the client uses TLS that this proxy terminates
	id     string // from the verified certificate, or ""

	opaque bool        // the policy marks the connection as opaque, so TLS is not detected
	policy *portPolicy // the port's policy; nil if the connection did not pass withPolicy
	target string      // name:port in another cluster's transport header, for the gateway; usually ""
}

// clientOf returns conn's client, or the zero value for a nil conn.
func clientOf(conn net.Conn) client {
	var c client
	if conn == nil {
		return c
	}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = tcp.AddrPort().Addr().Unmap().WithZone("") // because networks have no zone
	}
	if state, ok := tcplayer.TLSState(conn); ok {
		c.secure = true
		c.id, _ = identity.PeerIdentity(state)
	}
	return c
}

// clientKey is the context key for a connection's *client.
type clientKey struct{}

// withClient adds conn's client to ctx. If ctx already contains a client, it is reused, which
// avoids parsing the certificate again.
func withClient(ctx context.Context, conn net.Conn) (context.Context, *client) {
	// An outer layer of this connection has already determined the client.
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return ctx, c
	}
	c := clientOf(conn)
	// The policy is missing if the connection did not pass withPolicy, and the zero header has no name.
	c.policy, _ = ctx.Value(policyKey{}).(*portPolicy)
	c.opaque = protocolOf(ctx) == opaque
	h, _ := tcplayer.TransportHeaderFromContext(ctx)
	c.target = target(h)
	return context.WithValue(ctx, clientKey{}, &c), &c
}

// clientFromContext returns the client that sent ctx's request. The result is shared by all
// requests on the connection, so it must not be modified.
func clientFromContext(ctx context.Context) *client {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return c
	}
	// Without withClient, for example in a test, the connection itself is the source.
	c := clientOf(httplayer.ConnFromContext(ctx))
	return &c
}

// originOf returns the original destination of ctx's request, and the server in its port's policy.
func originOf(ctx context.Context) (dst netip.AddrPort, server meters.Resource) {
	// A connection without an original destination leaves dst invalid, which metrics show as unknown.
	dst, _ = tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	if c := clientFromContext(ctx); c.policy != nil {
		server = c.policy.current.Load().resource
	}
	return dst, server
}

// clientID returns the identity of req's client, or "".
func clientID(req *http.Request) string { return clientFromContext(req.Context()).id }

// byClient passes connections from clients with an identity to meshed, and all others to the
// embedded Server.
type byClient struct {
	tcplayer.Server
	meshed tcplayer.Server
}

// Call chooses the server by whether the client has an identity, that is, whether it used mutual TLS.
func (b *byClient) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	ctx, c := withClient(ctx, conn)
	if c.id != "" {
		return b.meshed.Call(ctx, conn)
	}
	return b.Server.Call(ctx, conn)
}

// Describe shows both servers.
func (b *byClient) Describe() layer.Node {
	return layer.Node{Name: "client", Children: []layer.Node{
		{Name: "meshed", Children: []layer.Node{layer.Describe(b.meshed)}},
		{Name: "unmeshed", Children: []layer.Node{layer.Describe(b.Server)}},
	}}
}

// clientMetrics returns a layer that counts connections by port and client. It must be below the
// TLS layer, which verifies the client. passthrough is true if TLS is forwarded instead of
// terminated.
func (in *Inbound) clientMetrics(passthrough bool) layer.Layer[net.Conn, tcplayer.ByteCount] {
	return func(next tcplayer.Server) tcplayer.Server { return &clientMetrics{next, in, passthrough} }
}

// clientMetrics counts connections by port and client.
type clientMetrics struct {
	tcplayer.Server
	in          *Inbound
	passthrough bool // TLS is forwarded, not terminated
}

// Call counts the connection and its bytes under labels that describe the client.
func (m *clientMetrics) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	// TLS that is forwarded hides the client, so it is counted apart.
	ctx, c := withClient(ctx, conn)
	labels := m.in.metricsClient(*c)
	labels.Passed = m.passthrough
	var server meters.Resource
	if c.policy != nil {
		server = c.policy.current.Load().resource
	}
	return m.in.clients(dst, labels, server).WrapServer(m.Server).Call(ctx, conn)
}

func (m *clientMetrics) Next() tcplayer.Server { return m.Server }

func (m *clientMetrics) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// metricsClient converts c for package meters.
func (in *Inbound) metricsClient(c client) meters.Client {
	return meters.Client{Secure: c.secure, ID: c.id, Skipped: !c.secure && c.opaque}
}
