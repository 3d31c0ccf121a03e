package sidecar_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/tap/match"
)

// Requests for which there was no endpoint count for their route, as failures.
func TestRejectionsOfRoute(t *testing.T) {
	ctl, _ := serveController(t, "127.0.0.1:0", routed(t, freeAddr(t)))
	tn := newTestProxy(t, ctl, func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast = 50 * time.Millisecond })
	status, _ := get(t, tn.client(t), "http://web.example/again")
	require.Equal(t, http.StatusGatewayTimeout, status)

	const every = `direction="outbound",dst="web.example:80",rt_route="any"`
	tn.shows(t,
		`route_request_total{`+every+`} 1`,
		`route_response_total{classification="failure",`+every+`} 1`,
		`route_actual_request_total{`+every+`} 1`,
		`route_actual_response_total{classification="failure",`+every+`} 1`,
	)
	require.NotContains(t, tn.scraped(t), `route_retryable_total{`+every+`,skipped=""} 1`, "fail-fast is not sent again")
}

// Tap shows the route's labels for each attempt.
func TestTapRoute(t *testing.T) {
	addr, _ := flaky(t)
	ctl, _ := serveController(t, "127.0.0.1:0", routed(t, addr))
	tn := newTestProxy(t, ctl)

	conn, err := grpc.NewClient("passthrough:///"+tn.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{Limit: 3, Match: match.All()})
	require.NoError(t, err)
	_, err = stream.Header() // sent when the tap is in place
	require.NoError(t, err)

	c := tn.client(t)
	status, _ := get(t, c, "http://web.example/again")
	require.Equal(t, http.StatusOK, status, "the second try succeeded")
	status, _ = get(t, c, "http://web.example/once")
	require.Equal(t, http.StatusServiceUnavailable, status)

	routes := map[string][]string{} // by path
	for range 9 {
		e, err := stream.Recv()
		require.NoError(t, err)
		labels := e.GetRouteMeta().GetLabels()
		require.NotNil(t, labels, "%v", e)
		if init := e.GetHttp().GetRequestInit(); init != nil {
			routes[init.GetPath()] = append(routes[init.GetPath()], labels["route"])
		}
	}
	require.Equal(t, map[string][]string{"/again": {"any", "any"}, "/once": {"once"}}, routes)
}

// Tap shows which parent, route and backend in an outbound policy a request used, with the same
// labels as the metrics.
func TestTapPolicy(t *testing.T) {
	tn := newPolicyProxy(t, map[string][]string{serviceName("v1"): {backend(t, "v1")}, serviceName("v2"): {backend(t, "v2")}})
	tn.set(shopPolicy(nil, &outbound.HttpRoute_Rule{Backends: shared(map[string]uint32{"v1": 50, "v2": 50})}))

	conn, err := grpc.NewClient("passthrough:///"+tn.Tap, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stream, err := pb.NewTapClient(conn).Observe(t.Context(), &pb.ObserveRequest{Limit: 20, Match: match.All()})
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)

	c := tn.client(t)
	for range 20 {
		name := servedBy(t, c, "http://web.example/")
		e, err := stream.Recv()
		require.NoError(t, err)
		require.NotNil(t, e.GetHttp().GetRequestInit())
		require.Equal(t, map[string]string{
			"parent_group": "core", "parent_kind": "Service", "parent_namespace": "shop", "parent_name": "web",
			"parent_port": "80", "parent_section_name": "",
			"route_group": "gateway.networking.k8s.io", "route_kind": "HTTPRoute", "route_namespace": "shop", "route_name": "web-route",
			"backend_group": "core", "backend_kind": "Service", "backend_namespace": "shop", "backend_name": name,
			"backend_port": "80", "backend_section_name": "",
		}, e.GetRouteMeta().GetLabels())
		for range 2 { // the response
			_, err = stream.Recv()
			require.NoError(t, err)
		}
	}
}
