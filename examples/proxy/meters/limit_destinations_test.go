package meters_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/profiles"
)

// Two hundred destinations get labels of their own. All others are counted together until there is
// room for them.
func TestDestinationLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := meters.New(meters.Config{RetainIdle: time.Minute})
		ok := answering{call: func(*http.Request) (*http.Response, error) { return response(http.StatusOK, ""), nil }}
		visit := func(ctx context.Context, i int) {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
			target := addr.String()
			clusterIP := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)
			m.Transport(meters.Outbound, meters.Source, meters.Target(clusterIP).With(meters.NoTLS("loopback"))).Opened.Add(1)
			labels := meters.Target(addr).With(meters.ServerTLS(target)).With(meters.Labels{"authority": target, "dst_pod": target})
			m.Transport(meters.Outbound, meters.Destination, labels).Opened.Add(1)
			counts := m.Routes(target, nil)
			balancer, queue := m.Balancer(ctx, "http", target, counts.Parent())
			queue.QueueWait.Observe(1)
			balancer.Endpoints.With("endpoint_state", "ready").Set(1)
			routes := []profiles.Route{routed("a")}
			counts.Attach(routes)
			route := routes[0].Value.(*meters.Route)
			requests, _ := route.Measured(routes[0])
			requests.Requests.Add(1)
			svc := route.Layer(routes[0], counts.Backend(backendAt(target), m.Endpoint(ctx, meters.Outbound, labels)(ok)))
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target, http.NoBody)
			require.NoError(t, err)
			rsp, err := svc.Call(ctx, req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		const noParent = `parent_group="",parent_kind="default",parent_name="",parent_namespace="",parent_port="",parent_section_name=""`
		overflow := []string{
			`tcp_open_total{direction="outbound",no_tls_reason="loopback",peer="src",tls="no_identity"} `,
			`tcp_open_total{direction="outbound",peer="dst",tls="true"} `,
			`request_total{direction="outbound",tls="true"} `,
			`route_request_total{direction="outbound",dst=""} `,
			`outbound_http_balancer_queue_requests_total{backend_group="",backend_kind="default",backend_name="",backend_namespace="",` +
				`backend_port="",backend_section_name="",dst="",` + noParent + `} `,
			`outbound_http_balancer_endpoints{backend_group="",backend_kind="default",backend_name="",backend_namespace="",` +
				`backend_port="",backend_section_name="",dst="",endpoint_state="ready",` + noParent + `} `,
		}
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 200 {
			visit(ctx, i)
		}
		visit(ctx, 7) // it keeps its place
		text := scrape(t, m)
		for _, series := range overflow {
			require.NotContains(t, text, "\n"+series)
		}
		require.Contains(t, text, `dst="10.1.0.199:80",rt_route="a"} 1`)
		for i := range 100 {
			visit(ctx, 200+i)
		}
		text = scrape(t, m)
		for _, series := range overflow {
			require.Contains(t, text, "\n"+series+"100\n")
		}
		for i := 200; i < 300; i += 19 {
			require.NotContains(t, text, fmt.Sprintf(`.%d.%d:80"`, i>>8, i&0xff))
		}
		require.Len(t, lines(t, m, "outbound_http_balancer_endpoints{"), 201)

		cancel()
		time.Sleep(61 * time.Second)
		_ = scrape(t, m)
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		visit(ctx, 200)
		require.Contains(t, scrape(t, m), `target_addr="10.1.0.200:80"`)
	})
}

// Two hundred endpoints get series of their own. All others are counted by target.
func TestEndpointLimit(t *testing.T) {
	m := meters.New(meters.Config{})
	const endpoints = 1500
	for i := range endpoints {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
		labels := meters.Target(addr).With(meters.NoTLS("disabled")).With(meters.Labels{"authority": "web:80", "dst_pod": addr.String(), "dst_service": "web"})
		m.Transport(meters.Outbound, meters.Destination, labels).Opened.Add(1)
	}
	series := lines(t, m, "tcp_open_total{")
	require.Len(t, series, 201)
	require.Contains(t, series, `tcp_open_total{authority="web:80",direction="outbound",dst_service="web",peer="dst",tls="disabled"} 1300`)
}
