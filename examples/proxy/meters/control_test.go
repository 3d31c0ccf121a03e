package meters_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer, for a server that resets streams
	"golang.org/x/net/http2/hpack" //nolint:depguard // likewise
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/resolve/dns"
)

// serveNames is a DNS server that returns the same address for all names.
func serveNames(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, client, err := conn.ReadFrom(buf)
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
				_, _ = conn.WriteTo(packed, client)
			}
		}
	})
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// serveRefusing is a controller that refuses the first stream and responds to the next.
func serveRefusing(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		f, refused := http2.NewFramer(conn, conn), false
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			data, ok := frame.(*http2.DataFrame)
			switch {
			case !ok || !data.StreamEnded():
			case !refused:
				refused = true
				_ = f.WriteRSTStream(data.StreamID, http2.ErrCodeRefusedStream)
			default:
				var b bytes.Buffer
				e := hpack.NewEncoder(&b)
				for _, h := range [][2]string{{":status", "200"}, {"content-type", "application/grpc"}, {"grpc-status", "5"}} {
					_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
				}
				_ = f.WriteHeaders(http2.HeadersFrameParam{
					StreamID: data.StreamID, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true,
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// gRPC's transparent retries count as requests.
func TestControlCountsTransparentRetries(t *testing.T) {
	m := meters.New(meters.Config{})
	conn, err := grpc.NewClient("passthrough:///"+serveRefusing(t), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(m.Control("dst.linkerd:8086", nil)))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // before the server, which waits for it
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	const at = `{addr="dst.linkerd:8086"`
	require.Equal(t, []string{`control_request_total` + at + `} 2`}, lines(t, m, "control_request_total"))
	require.Equal(t, []string{`control_requests_in_flight` + at + `} 0`}, lines(t, m, "control_requests_in_flight"))
	require.ElementsMatch(t, []string{
		`control_response_total` + at + `,classification="failure",grpc_status="14"} 1`,
		`control_response_total` + at + `,classification="success",grpc_status="5",status_code="200"} 1`,
	}, lines(t, m, "control_response_total"))
	require.ElementsMatch(t, []string{
		`control_response_latency_ms_count` + at + `} 1`,
		`control_response_latency_ms_count` + at + `,status_code="200"} 1`,
	}, lines(t, m, "control_response_latency_ms_count"))
}

// Lookups at a real DNS server count.
func TestControlCountsLookups(t *testing.T) {
	_, port, err := net.SplitHostPort(serveHealth(t))
	require.NoError(t, err)

	m := meters.New(meters.Config{})
	lookups := dns.WithMetrics(m.DNS("destination"))
	m.DNS("identity").With("record_type", "SRV", "result", "ok").Add(2)
	conn, err := grpclayer.NewControlPlaneConn(t.Context(), grpclayer.ControlPlaneConfig{
		Addr: "dst.linkerd.test.:" + port, ConnectTimeout: 20 * time.Second,
		Resolver: dns.New(dns.WithServers(serveNames(t, netip.MustParseAddr("127.0.0.1"))), dns.WithRefresh(time.Hour, time.Hour), lookups),
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
