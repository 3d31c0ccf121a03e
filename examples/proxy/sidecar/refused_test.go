package sidecar_test

import (
	"net/http"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/tap/match"
)

// Requests that no endpoint was there for are a route's requests, and failures.
func TestRejectionsCountForTheRoute(t *testing.T) {
	ctl, _ := serveController(t, "127.0.0.1:0", routed(t, freeAddr(t)))
	tn := newTown(t, ctl, func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast = 50 * time.Millisecond })
	status, _ := get(t, tn.client(t), "http://web.example/again")
	require.Equal(t, http.StatusGatewayTimeout, status)

	admin := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, metrics := get(t, admin, "http://"+tn.Admin+"/metrics")
	const every = `direction="outbound",dst="web.example:80",rt_route="any"`
	for _, line := range []string{
		`route_request_total{` + every + `} 1`,
		`route_response_total{classification="failure",` + every + `} 1`,
		`route_actual_request_total{` + every + `} 1`,
		`route_actual_response_total{classification="failure",` + every + `} 1`,
	} {
		require.Contains(t, metrics, line)
	}
	require.NotContains(t, metrics, `route_retryable_total{`+every+`,skipped=""} 1`, "fail-fast is not sent again")
}

// Tap shows the labels of the route for each attempt.
func TestTapSeesTheRoute(t *testing.T) {
	addr, _ := flaky(t)
	ctl, _ := serveController(t, "127.0.0.1:0", routed(t, addr))
	tn := newTown(t, ctl)

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
