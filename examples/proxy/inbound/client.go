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
	secure bool   // this proxy terminates its TLS
	id     string // its proven identity; "" means no identity
}

func clientOf(conn net.Conn) client {
	var c client
	if conn == nil {
		return c
	}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = tcp.AddrPort().Addr().Unmap()
	}
	if state, ok := tcplayer.TLSState(conn); ok {
		c.secure = true
		c.id, _ = identity.PeerIdentity(state)
	}
	return c
}

// clientKey is the context key of the *client of a connection.
type clientKey struct{}

// withClient returns ctx with the client of conn. The client is stored, because clientOf
// parses the certificate.
func withClient(ctx context.Context, conn net.Conn) (context.Context, *client) {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return ctx, c
	}
	c := clientOf(conn)
	return context.WithValue(ctx, clientKey{}, &c), &c
}

// clientFromContext returns the client of a request.
func clientFromContext(ctx context.Context) client {
	if c, ok := ctx.Value(clientKey{}).(*client); ok {
		return *c
	}
	return clientOf(httplayer.ConnFromContext(ctx))
}

// clientID returns the identity of the client of a request.
func clientID(req *http.Request) string { return clientFromContext(req.Context()).id }

// byClient serves clients without an identity by the embedded Server, and clients with
// one by meshed.
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

// Describe shows both servers.
func (b *byClient) Describe() layer.Node {
	return layer.Node{Name: "client", Children: []layer.Node{
		{Name: "meshed", Children: []layer.Node{layer.Describe(b.meshed)}},
		{Name: "unmeshed", Children: []layer.Node{layer.Describe(b.Server)}},
	}}
}

// clientMetrics is a layer that counts connections by port and client. It belongs
// below TLS, where the client is known. passthrough means that TLS does not end here.
func (in *Inbound) clientMetrics(passthrough bool) layer.Layer[net.Conn, tcplayer.ByteCount] {
	return func(next tcplayer.Server) tcplayer.Server { return &clientMetrics{next, in, passthrough} }
}

type clientMetrics struct {
	tcplayer.Server
	in          *Inbound
	passthrough bool
}

func (m *clientMetrics) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	ctx, c := withClient(ctx, conn)
	labels := m.in.metricsClient(dst, *c)
	labels.Passed = m.passthrough
	return m.in.clients(dst, labels).WrapServer(m.Server).Call(ctx, conn)
}

func (m *clientMetrics) Next() tcplayer.Server { return m.Server }

func (m *clientMetrics) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// metricsClient returns c for metrics.
func (in *Inbound) metricsClient(dst netip.AddrPort, c client) meters.Client {
	return meters.Client{Secure: c.secure, ID: c.id, Skipped: !c.secure && in.OpaquePorts.Contains(dst.Port())}
}
