package inbound

import (
	"context"
	"net"
	"net/netip"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// measured counts the connections that next serves, by the port that they are for
// and by who made them: that is known once TLS has ended, or is not there, or, if
// passed, is not for this proxy.
func (in *Inbound) measured(next tcplayer.Server, passed bool) tcplayer.Server {
	return &measured{next, in, passed}
}

// meterOf is the meter of a client's connections to a port.
type meterOf = func(dst netip.AddrPort, by meters.Client) *tcplayer.Meter

type measured struct {
	tcplayer.Server
	of     *Inbound
	passed bool
}

func (m *measured) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	ctx, by := withClient(ctx, conn)
	who := m.of.meter(dst, *by)
	who.Passed = m.passed
	return m.of.clients(dst, who).WrapServer(m.Server).Call(ctx, conn)
}

func (m *measured) Next() tcplayer.Server { return m.Server }

func (m *measured) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// meter is who meters have a client for.
func (in *Inbound) meter(dst netip.AddrPort, c client) meters.Client {
	return meters.Client{Secure: c.secure, ID: c.id, Skipped: !c.secure && in.OpaquePorts.Contains(dst.Port())}
}
