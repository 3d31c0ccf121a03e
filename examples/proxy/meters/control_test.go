package meters_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/resolve/dns"
)

// serveNames is a DNS server that knows an address of all names, and no more.
func serveNames(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m = dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
					Body:   &dnsmessage.AResource{A: addr.As4()},
				}}
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	})
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// A controller is found by the names of a real DNS server, as the proxy does it.
func TestControlCountsLookups(t *testing.T) {
	_, port, err := net.SplitHostPort(serveHealth(t))
	require.NoError(t, err)

	m := meters.New(meters.Config{})
	lookups := dns.Measured(m.DNS("destination"))
	m.DNS("identity").With("record_type", "SRV", "result", "ok").Add(2)
	conn, err := grpclayer.NewControl(t.Context(), grpclayer.ControlConfig{
		Addr: "dst.linkerd.test.:" + port, ConnectTimeout: 20 * time.Second,
		Resolver: dns.New(dns.Servers(serveNames(t, netip.MustParseAddr("127.0.0.1"))), dns.Refresh(time.Hour, time.Hour), lookups),
	})
	require.NoError(t, err)
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	const name = "control_dns_resolutions_total{"
	require.ElementsMatch(t, []string{
		name + `client="destination",record_type="SRV",result="ok"} 0`,
		name + `client="destination",record_type="SRV",result="not_found"} 1`,
		name + `client="destination",record_type="A/AAAA",result="ok"} 1`,
		name + `client="destination",record_type="A/AAAA",result="not_found"} 0`,
		name + `client="identity",record_type="SRV",result="ok"} 2`,
	}, lines(t, m, name))
	require.NoError(t, conn.Close(context.Background()))
}
