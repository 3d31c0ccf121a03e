package tcplayer

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/gotower/gotower/layer/layertest"
)

// Layers with detection keep the contract of the services behind them, for
// connections with an address, which can be returned.
func TestDetectConforms(t *testing.T) {
	type svc = *endable[net.Conn, ByteCount]
	for name, peekFirst := range map[string]func(Server) Server{
		"detect": func(s Server) Server { return Detect(Protocols{Opaque: s}) },
		"all": func(s Server) Server {
			return Transparent(FixedDst(ofServer), DetectTLS(nil, MatchServerName(), TLSServers{Cleartext: Detect(Protocols{Opaque: s})}), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var network layertest.Network
			client := func(int) net.Conn {
				l, err := network.Listen("tcp", "10.0.0.2:0")
				if err != nil {
					panic(err)
				}
				defer l.Close()
				near, _ := network.DialContext(context.Background(), "tcp", l.Addr().String())
				io.WriteString(near, "hello")
				closeWrite(near)
				far, _ := l.Accept()
				return OverrideAddrs(far, netip.AddrPort{}, netip.AddrPort{})
			}
			layertest.Run(t, layertest.ServiceOf[net.Conn, ByteCount]{
				New: func(ctx context.Context) Server {
					h := newHome(ctx)
					live, end := context.WithCancel(ctx)
					return &endable[net.Conn, ByteCount]{peekFirst(Forward(h.endpoint(live, h.DialContext))), h, end}
				},
				Request: client,
				Fill:    func(s Server) func() { return fill(s.(svc).home, s, client(0)) },
				Served:  func(s Server) int { return int(s.(svc).served.Load()) },
				Close:   func(s Server) { s.(svc).end() },
			})
		})
	}
}
