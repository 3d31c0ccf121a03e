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

// client describes the client that made a connection.
type client struct {
	addr   netip.Addr
	secure bool   // the connection uses TLS that this proxy terminates
	id     string // identity in its verified certificate, or ""

	opaque bool        // the policy marks the connection as opaque: TLS is not detected
	policy *portPolicy // of the port; nil if the connection did not pass withPolicy
}

// clientOf returns the client of conn. It returns the zero value if conn is nil.
func clientOf(conn net.Conn) client {
	var c client
	if conn == nil {
		return c
	}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = tcp.AddrPort().Addr().Unmap().WithZone("") // a network has no zone
	}
	if state, ok := tcplayer.TLSState(conn); ok {
		c.secure = true
		c.id, _ = identity.PeerIdentity(state)
	}
	return c
}

// clientKey is the context key of the *client that made a connection.
type clientKey struct{}

// withClient returns the client of conn, and a copy of ctx that contains this client. If
// ctx contains a client already, withClient returns ctx and its client, so that the
// certificate is not parsed again.
func withClient(ctx context.Context, conn net.Conn) (context.Context, *client) {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return ctx, c
	}
	c := clientOf(conn)
	c.policy, _ = ctx.Value(policyKey{}).(*portPolicy)
	c.opaque = protocolOf(ctx) == opaque
	return context.WithValue(ctx, clientKey{}, &c), &c
}

// clientFromContext returns the client that sent the request with the context ctx. The
// caller must not modify the result, because all requests of a connection share it.
func clientFromContext(ctx context.Context) *client {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return c
	}
	c := clientOf(httplayer.ConnFromContext(ctx))
	return &c
}

// clientID returns the identity of the client that sent req, or "" if it has none.
func clientID(req *http.Request) string { return clientFromContext(req.Context()).id }

// byClient passes a connection to one of two servers. The embedded Server is for clients
// without an identity. The field meshed is the server for clients with an identity.
type byClient struct {
	tcplayer.Server
	meshed tcplayer.Server
}

func (b *byClient) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	ctx, c := withClient(ctx, conn)
	if c.id != "" {
		return b.meshed.Call(ctx, conn)
	}
	return b.Server.Call(ctx, conn)
}

// Describe shows two children: the server of clients with an identity, and the server of
// clients without an identity.
func (b *byClient) Describe() layer.Node {
	return layer.Node{Name: "client", Children: []layer.Node{
		{Name: "meshed", Children: []layer.Node{layer.Describe(b.meshed)}},
		{Name: "unmeshed", Children: []layer.Node{layer.Describe(b.Server)}},
	}}
}

// clientMetrics returns a layer that counts connections by port and client. Place it below
// the TLS layer, which verifies the client. passthrough is true for TLS connections that
// this proxy forwards without terminating TLS.
func (in *Inbound) clientMetrics(passthrough bool) layer.Layer[net.Conn, tcplayer.ByteCount] {
	return func(next tcplayer.Server) tcplayer.Server { return &clientMetrics{next, in, passthrough} }
}

// clientMetrics is a server that counts connections by port and client, and passes them to
// the embedded Server.
type clientMetrics struct {
	tcplayer.Server
	in          *Inbound
	passthrough bool
}

func (m *clientMetrics) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
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

// metricsClient converts c to the type of package meters.
func (in *Inbound) metricsClient(c client) meters.Client {
	return meters.Client{Secure: c.secure, ID: c.id, Skipped: !c.secure && c.opaque}
}
