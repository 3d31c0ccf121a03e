package meters_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
)

type serverFunc = layer.Func[net.Conn, tcplayer.ByteCount]

func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		routes := m.Routes("10.0.0.1:5432", nil)
		r := meters.Connections(func() *meters.Routes { return routes })
		var failure error
		svc := r.Handled(meters.Opaque, r.Forwarded(serverFunc(func(context.Context, net.Conn) (tcplayer.ByteCount, error) {
			time.Sleep(time.Second)
			return tcplayer.ByteCount{}, failure
		})))
		detected := r.Handled(meters.Detected, serverFunc(func(context.Context, net.Conn) (tcplayer.ByteCount, error) { return tcplayer.ByteCount{}, nil }))
		require.Empty(t, lines(t, m, "outbound_tcp_"))
		_, err := svc.Call(t.Context(), nil)
		require.NoError(t, err)
		_, err = detected.Call(t.Context(), nil)
		require.NoError(t, err)
		failure = errors.New("broken")
		go svc.Call(t.Context(), nil)
		synctest.Wait()
		const parent = `parent_group="",parent_kind="default",parent_name="10.0.0.1",parent_namespace="",parent_port="5432",parent_section_name=""`
		labels := parent + "," + ofRoute("default", "default") + `,target_ip="10.0.0.1",target_port="5432"} `
		require.ElementsMatch(t, []string{
			"outbound_tcp_route_open_total{" + labels + "2",
			`outbound_tcp_route_close_total{error="",` + labels + "1",
			`outbound_tcp_protocol_connections_total{` + parent + `,protocol="opaq"} 2`,
			`outbound_tcp_protocol_connections_total{` + parent + `,protocol="detect"} 1`,
		}, lines(t, m, "outbound_tcp_"))

		// Connections that began before the new name count under the old one.
		routes = m.Routes("db.shop.svc:5432", nil)
		_, err = detected.Call(t.Context(), nil)
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Contains(t, lines(t, m, "outbound_tcp_route"), `outbound_tcp_route_close_total{error="unexpected",`+labels+"1")
		time.Sleep(2 * time.Minute)
		require.Empty(t, lines(t, m, "outbound_tcp_route"))
		_, err = detected.Call(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, []string{`outbound_tcp_protocol_connections_total{parent_group="core",parent_kind="Service",parent_name="db",` +
			`parent_namespace="shop",parent_port="5432",parent_section_name="",protocol="detect"} 1`}, lines(t, m, "outbound_tcp_"))
	})
}

// Connections with an unknown Handling do not count.
func TestConnectionsNotCounted(t *testing.T) {
	m := meters.New(meters.Config{})
	served := 0
	next := serverFunc(func(context.Context, net.Conn) (tcplayer.ByteCount, error) {
		served++
		return tcplayer.ByteCount{}, nil
	})
	_, err := connectionsTo(m, "web:80").Handled("tls", next).Call(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, served)
	require.Empty(t, lines(t, m, "outbound_tcp_"))
}

func connectionsTo(m *meters.Meters, dst string) meters.Connections {
	routes := m.Routes(dst, nil)
	return func() *meters.Routes { return routes }
}

func TestConnectionLayersConform(t *testing.T) {
	for name, wrap := range map[string]func(meters.Connections, tcplayer.Server) tcplayer.Server{
		"handled": func(c meters.Connections, next tcplayer.Server) tcplayer.Server {
			return c.Handled(meters.Detected, next)
		},
		"forwarded": meters.Connections.Forwarded,
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.LayerOf[net.Conn, tcplayer.ByteCount]{
				New: func(_ context.Context, next tcplayer.Server) tcplayer.Server {
					return wrap(connectionsTo(meters.New(meters.Config{}), "web:80"), next)
				},
				Request:  func(int) net.Conn { return new(net.TCPConn) },
				Response: func(i int) tcplayer.ByteCount { return tcplayer.ByteCount{Sent: int64(i)} },
			})
		})
	}
}

func TestStacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		m.Endpoint(ctx, meters.Outbound, nil)
		m.Endpoint(ctx, meters.Inbound, nil) // inbound endpoints do not count
		m.Balancer(ctx, "tcp", "web.example:80", meters.Parent{})
		m.Balancer(ctx, "tcp", "10.0.0.1:80", meters.Parent{}) // an address is its own endpoint
		m.Endpoint(t.Context(), meters.Outbound, nil)
		cancel()
		synctest.Wait()
		require.ElementsMatch(t, []string{
			`stack_create_total{direction="outbound",name="endpoint",protocol="http"} 2`,
			`stack_create_total{direction="outbound",name="balance",protocol="tcp"} 1`,
			`stack_drop_total{direction="outbound",name="endpoint",protocol="http"} 1`,
			`stack_drop_total{direction="outbound",name="balance",protocol="tcp"} 1`,
		}, lines(t, m, "stack_"))
	})
}

func TestDetect(t *testing.T) {
	m := meters.New(meters.Config{})
	i := m.Detect(meters.Inbound, meters.Server(meters.DefaultResource("deny"), netip.AddrPort{}))
	i.Results.With("result", "http/1").Add(3)
	i.Latency.Observe(50) // milliseconds
	const (
		name = "inbound_tcp_detect_http_"
		srv  = `srv_group="",srv_kind="default",srv_name="deny"`
	)
	require.Equal(t, []string{
		name + `duration_seconds_bucket{` + srv + `,le="0.001"} 0`, name + `duration_seconds_bucket{` + srv + `,le="0.1"} 1`,
		name + `duration_seconds_bucket{` + srv + `,le="+Inf"} 1`, name + "duration_seconds_sum{" + srv + "} 0.05",
		name + "duration_seconds_count{" + srv + "} 1", name + `results_total{result="http/1",` + srv + `} 3`,
	}, lines(t, m, name))
}

// Detection counts under the destination's name at the time when the protocol is known.
func TestRoutesDetect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		routes := m.Routes("10.0.0.1:80", nil)
		i := meters.Connections(func() *meters.Routes { return routes }).Detect()
		h1 := i.Results.With("result", "http/1") // bound once, as by tcplayer.Detect
		const name = "outbound_tcp_detect_http_"
		require.Empty(t, lines(t, m, name))
		h1.Add(1)
		routes = m.Routes("web.shop.svc.cluster.local:80", nil)
		h1.Add(2)
		i.Latency.Observe(50) // milliseconds
		const (
			before = `parent_group="",parent_kind="default",parent_name="10.0.0.1",parent_namespace="",parent_port="80",parent_section_name=""`
			parent = `parent_group="core",parent_kind="Service",parent_name="web",parent_namespace="shop",parent_port="80",parent_section_name=""`
		)
		require.Subset(t, lines(t, m, name), []string{
			name + "results_total{" + before + `,result="http/1"} 1`, name + "results_total{" + parent + `,result="http/1"} 2`,
			name + "duration_seconds_sum{" + parent + "} 0.05", name + "duration_seconds_count{" + before + "} 0",
		})
	})
}
