package meters_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/go-kit/kit/metrics"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Scrapes over a real connection (H5 and H7).
func TestHandler(t *testing.T) {
	m := meters.New(meters.Config{Version: "v1.2.3"})
	srv := httptest.NewServer(m.Handler())
	defer srv.Close()
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	for accept, zipped := range map[string]bool{
		"": false, "gzip": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "*": true, "identity": false, "br;q=1": false,
		"*, gzip;q=0": false, "*;q=0, gzip": true, "identity, *;q=0": false,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		require.NoError(t, err)
		req.Header.Set("Accept-Encoding", accept)
		req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,application/vnd.google.protobuf;q=0.9")
		rsp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		body := io.Reader(rsp.Body)
		require.Equal(t, zipped, rsp.Header.Get("Content-Encoding") == "gzip", accept)
		if zipped {
			body, err = gzip.NewReader(rsp.Body)
			require.NoError(t, err)
		}
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.Contains(t, rsp.Header.Get("Content-Type"), "text/plain; version=0.0.4")
		require.True(t, strings.HasSuffix(string(text), "\n# EOF\n"), accept)
		for _, name := range []string{
			"process_start_time_seconds ", "process_cpu_seconds_total ", "process_open_fds ", "process_max_fds ",
			"process_virtual_memory_bytes ", "process_resident_memory_bytes ", "process_uptime_seconds_total ",
			`proxy_build_info{`, `version="v1.2.3"} 1`,
		} {
			require.Contains(t, string(text), name)
		}
		require.NotContains(t, string(text), ",,")
	}
}

// A canceled request's timeout does not count for a later failure.
func TestRouteTimeoutOfCanceledRequest(t *testing.T) {
	m := meters.New(meters.Config{})
	requests, _ := m.Route(meters.Outbound, "web.example:80", "a", nil)
	requests.Timeouts.With("limit", "response_header").Add(1)
	requests.Responses.With("class", "ignorable").Add(1)
	requests.Responses.With("class", "failure").Add(1)
	require.ElementsMatch(t, []string{
		`route_response_total{classification="failure",direction="outbound",dst="web.example:80",rt_route="a"} 1`,
		`route_response_total{classification="success",direction="outbound",dst="web.example:80",rt_route="a"} 1`,
	}, lines(t, m, "route_response_total{"))
}

// unread is a response that the client does not read until read is closed.
type unread struct {
	*httptest.ResponseRecorder
	writes chan<- struct{}
	read   <-chan struct{}
}

func (u unread) Write(p []byte) (int, error) {
	select {
	case u.writes <- struct{}{}:
	case <-u.read:
	}
	<-u.read
	return u.ResponseRecorder.Write(p)
}

func TestHandlerConcurrentScrapes(t *testing.T) {
	const limit = 8
	h := meters.New(meters.Config{}).Handler()
	scrape := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	writes, read := make(chan struct{}), make(chan struct{})
	var scraped sync.WaitGroup
	var open [limit]*httptest.ResponseRecorder
	for i := range open {
		open[i] = httptest.NewRecorder()
		scraped.Go(func() { h.ServeHTTP(unread{open[i], writes, read}, scrape) })
		<-writes
	}
	rejected := httptest.NewRecorder()
	h.ServeHTTP(rejected, scrape)
	require.Equal(t, http.StatusServiceUnavailable, rejected.Code)
	require.NotEmpty(t, rejected.Header().Get("Retry-After"))
	close(read)
	scraped.Wait()
	for _, w := range open {
		require.Equal(t, http.StatusOK, w.Code)
		require.True(t, strings.HasSuffix(w.Body.String(), "# EOF\n"))
	}
	after := httptest.NewRecorder()
	h.ServeHTTP(after, scrape)
	require.Equal(t, http.StatusOK, after.Code)
}

func TestRoute(t *testing.T) {
	m := meters.New(meters.Config{})
	requests, attempts := m.Route(meters.Outbound, "web.example:80", "GET /", map[string]string{"app": "web"})
	const of = `direction="outbound",dst="web.example:80",rt_app="web",rt_route="GET /"`
	success, failure := requests.Responses.With("class", "success"), requests.Responses.With("class", "failure")
	requests.Requests.Add(4)
	success.Add(1)
	requests.Responses.With("class", "ignorable").Add(1)
	requests.Responses.With("class", "retryable").Add(1)
	requests.Timeouts.With("limit", "response_header").Add(1)
	failure.Add(1) // caused by the timeout
	failure.Add(1)
	requests.Timeouts.With("limit", "attempt").Add(1)
	failure.Add(1)
	requests.Rejections.Add(1)
	requests.Retries.Add(2)
	requests.RetriesSkipped.With("reason", "budget").Add(1)
	requests.RetriesSkipped.With("reason", "body").Add(1)
	requests.Latency.Observe(42)
	attempts.Requests.Add(5)
	attempts.Responses.With("class", "throttled").Add(3)
	attempts.Rejections.Add(1)
	require.Equal(t, []string{`route_request_total{` + of + `} 5`}, lines(t, m, "route_request_total"))
	require.ElementsMatch(t, []string{
		`route_response_total{classification="success",` + of + `} 2`,
		`route_response_total{classification="failure",` + of + `} 4`,
		`route_response_total{classification="failure",` + strings.Replace(of, `",rt_app`, `",error="timeout",rt_app`, 1) + `} 1`,
	}, lines(t, m, "route_response_total"))
	require.Equal(t, []string{`route_actual_request_total{` + of + `} 6`}, lines(t, m, "route_actual_request_total"))
	require.Equal(t, []string{`route_actual_response_total{classification="failure",` + of + `} 4`}, lines(t, m, "route_actual_response_total"))
	require.ElementsMatch(t, []string{
		`route_retryable_total{` + of + `} 2`,
		`route_retryable_total{` + of + `,skipped="no_budget"} 1`,
		`route_retryable_total{` + of + `,skipped="body"} 1`,
	}, lines(t, m, "route_retryable_total"))
	require.Contains(t, scrape(t, m), `route_response_latency_ms_bucket{`+of+`,le="50"} 1`)
	require.NotContains(t, scrape(t, m), "route_actual_response_latency")
}

// Concurrent timeouts and failures add up.
func TestRouteTimeoutsInParallel(t *testing.T) {
	m := meters.New(meters.Config{})
	requests, _ := m.Route(meters.Outbound, "a:1", "", nil)
	head, failure := requests.Timeouts.With("limit", "response_header"), requests.Responses.With("class", "failure")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 500 {
				if i%2 == 0 {
					head.Add(1)
				}
				failure.Add(1)
			}
		})
	}
	wg.Wait()
	require.ElementsMatch(t, []string{
		`route_response_total{classification="failure",direction="outbound",dst="a:1"} 2000`,
		`route_response_total{classification="failure",direction="outbound",dst="a:1",error="timeout"} 2000`,
	}, lines(t, m, "route_response_total"))
}

func TestBalancer(t *testing.T) {
	m := meters.New(meters.Config{})
	b, q := m.Balancer(t.Context(), "http", "web.example:80", m.Routes("shop.example:8080", nil).Parent())
	b.Endpoints.With("endpoint_state", "ready").Set(3)
	b.Updates.With("op", "Reset").Add(1)
	b.Updates.With("op", "Add").Add(2)
	b.Ejections.With("cause", "consecutive").Add(1)
	q.QueueLength.Add(2)
	q.QueueWait.Observe(40)
	const backend = `backend_group="",backend_kind="default",backend_name="web.example",backend_namespace="",backend_port="80",` +
		`backend_section_name="",`
	const dst = `{` + backend + `dst="web.example:80"`
	const parent = `,parent_group="",parent_kind="default",parent_name="shop.example",parent_namespace="",parent_port="8080",parent_section_name=""`
	text := scrape(t, m)
	for _, line := range []string{
		`outbound_http_balancer_endpoints` + dst + `,endpoint_state="ready"` + parent + `} 3`,
		`outbound_http_balancer_p2c_updates_total` + dst + `,op="Add"` + parent + `} 2`,
		`outbound_http_balancer_queue_length` + dst + parent + `} 2`,
		`outbound_http_balancer_queue_requests_total` + dst + parent + `} 1`,
		`outbound_http_balancer_queue_latency_seconds_bucket` + dst + parent + `,le="0.005"} 0`,
		`outbound_http_balancer_queue_latency_seconds_bucket` + dst + parent + `,le="0.05"} 1`,
		`outbound_http_balancer_ejections_total{` + backend + `cause="consecutive",dst="web.example:80"` + parent + `} 1`,
	} {
		require.Contains(t, text, line+"\n")
	}
	none, _ := m.Balancer(t.Context(), "udp", "a", meters.Parent{})
	require.Nil(t, none.Updates)
}

// Two balancers for one target share the gauge for endpoints.
func TestBalancersOfOneTarget(t *testing.T) {
	m := meters.New(meters.Config{})
	ready := func() metrics.Gauge {
		b, _ := m.Balancer(t.Context(), "http", "web.example:80", meters.Parent{})
		return b.Endpoints.With("endpoint_state", "ready")
	}
	before, after := ready(), ready()
	before.Set(3)
	before.Set(2)
	after.Set(2)
	after.Add(1)
	before.Set(0)
	require.Equal(t, []string{"3"}, values(t, m, "outbound_http_balancer_endpoints"))
}

func TestTransport(t *testing.T) {
	m := meters.New(meters.Config{})
	tr := m.Transport(meters.Inbound, meters.Source,
		meters.Target(netip.MustParseAddrPort("[fd00::1]:80")).With(meters.NoTLS("no_tls_from_remote")))
	tr.Opened.Add(2)
	tr.Open.Add(1)
	tr.Read.Add(10)
	tr.Written.Add(20)
	tr.Closed.Add(1)
	tr.Closed.With("errno", "").Add(1)
	tr.Closed.With("errno", "ECONNRESET").Add(1)
	const of = `no_tls_reason="no_tls_from_remote",peer="src",target_addr="[fd00::1]:80",target_ip="fd00::1",target_port="80",tls="no_identity"} `
	require.ElementsMatch(t, []string{
		`tcp_close_total{direction="inbound",errno="ECONNRESET",` + of + "1",
		`tcp_close_total{direction="inbound",errno="",` + of + "2",
		`tcp_open_connections{direction="inbound",` + of + "1",
		`tcp_open_total{direction="inbound",` + of + "2",
		`tcp_read_bytes_total{direction="inbound",` + of + "10",
		`tcp_write_bytes_total{direction="inbound",` + of + "20",
	}, lines(t, m, "tcp_"))
	require.Equal(t, meters.Labels{"tls": "disabled"}, meters.NoTLS("disabled"))
	require.Equal(t, meters.Labels{"tls": "true", "client_id": "me"}, meters.ClientTLS("me"))
	require.Empty(t, meters.Target(netip.AddrPort{}))
}

type labelledError struct{ error }

func (labelledError) ErrorKind() string { return "gateway domain invalid" }

func TestErrorKind(t *testing.T) {
	for want, errs := range map[string][]error{
		"failfast":               {&layer.Error{Layer: "queue", Kind: layer.ErrFailFast, Err: syscall.ECONNREFUSED}},
		"loadshed":               {&layer.Error{Layer: "limit", Kind: layer.ErrNotReady}},
		"i/o":                    {syscall.ECONNRESET, fmt.Errorf("x: %w", io.ErrUnexpectedEOF), &net.OpError{Op: "dial", Err: errOther}},
		"identity required":      {&httplayer.IdentityError{Required: "a"}},
		"gateway loop":           {&httplayer.StatusError{Code: 508}},
		"gateway domain invalid": {fmt.Errorf("x: %w", labelledError{errOther})},
		"tls detection timeout":  {&layer.Error{Layer: "tls", Kind: layer.ErrTimeout}},
		"response timeout":       {&layer.Error{Layer: "timeout", Kind: layer.ErrResponseHeaderTimeout}, context.DeadlineExceeded},
		"unexpected":             {errOther, &httplayer.StatusError{Code: 500}},
	} {
		for _, err := range errs {
			require.Equal(t, want, meters.ErrorKind(err), "%v", err)
		}
	}
}

// A rejection by a queue is shed load, whatever the state of the endpoint below. A rejection by the
// endpoint is not.
func TestErrorKindOfRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		_, err := httplayer.NewEndpoint(t.Context(), "10.0.0.1:80", httplayer.WithDialContext(refused)).
			Call(t.Context(), httptest.NewRequest(http.MethodGet, "http://10.0.0.1/", http.NoBody))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.Equal(t, "i/o", meters.ErrorKind(err))
		require.Equal(t, "loadshed", meters.ErrorKind(&layer.Error{Layer: "queue", Kind: layer.ErrNotReady, Err: err}))
	})
}

func TestErrors(t *testing.T) {
	m := meters.New(meters.Config{})
	refused := &layer.Error{Layer: "limit", Kind: layer.ErrNotReady}
	for _, failure := range []error{
		nil,
		&httplayer.StatusError{Code: http.StatusForbidden},
		layer.ErrFailFast, layer.ErrFailFast, refused, errOther,
		fmt.Errorf("x: %w", context.Canceled), // the client canceled it
	} {
		svc := m.HTTPErrors(meters.Inbound, nil)(answering{call: func(*http.Request) (*http.Response, error) { return nil, failure }})
		_, err := svc.Call(t.Context(), nil)
		require.Equal(t, failure, err)
	}
	require.Equal(t, []string{
		`inbound_http_errors_total{error="failfast"} 2`, `inbound_http_errors_total{error="loadshed"} 1`,
		`inbound_http_errors_total{error="unexpected"} 1`,
	}, lines(t, m, "inbound_http_errors_total"))

	placed := meters.New(meters.Config{})
	svc := placed.HTTPErrors(meters.Inbound, func(context.Context) (netip.AddrPort, meters.Resource) {
		return netip.MustParseAddrPort("10.0.0.1:80"), meters.DefaultResource("all-unauthenticated")
	})(answering{call: func(*http.Request) (*http.Response, error) { return nil, layer.ErrFailFast }})
	_, _ = svc.Call(t.Context(), nil)
	require.Equal(t, []string{
		`inbound_http_errors_total{error="failfast",srv_group="",srv_kind="default",srv_name="all-unauthenticated",srv_port="80",` +
			`target_addr="10.0.0.1:80"} 1`,
	}, lines(t, placed, "inbound_http_errors_total"))

	tcp := m.TCPErrors(meters.Outbound)
	for i := range 3000 {
		tcp(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1)), syscall.ECONNREFUSED)
	}
	tcp(netip.MustParseAddrPort("10.0.0.1:1"), syscall.ECONNREFUSED)
	found := lines(t, m, "outbound_tcp_errors_total")
	require.Len(t, found, 1001)
	require.Contains(t, found, `outbound_tcp_errors_total{error="i/o",target_addr="10.0.0.1:1"} 2`)
	require.Contains(t, found, `outbound_tcp_errors_total{error="i/o"} 2000`)
	loop := m.TCPErrors(meters.Inbound)
	loop(netip.AddrPort{}, &layer.Error{Layer: "dial", Err: &net.OpError{Op: "dial", Err: tcplayer.ErrLoop}})
	require.Equal(t, []string{`inbound_tcp_errors_total{error="unexpected"} 1`}, lines(t, m, "inbound_tcp_errors_total"))
}

func TestIdentity(t *testing.T) {
	m := meters.New(meters.Config{})
	require.Empty(t, lines(t, m, "control_identity"))
	instruments := m.Identity()
	instruments.Expiration.Set(1.7e9)
	instruments.Refreshed.Set(1.6e9)
	instruments.Refreshes.Add(1)
	require.Equal(t, []string{`control_identity_cert_expiration_timestamp_seconds 1.7e+09`}, lines(t, m, "control_identity_cert_exp"))
	require.Equal(t, []string{
		`control_identity_cert_refresh_timestamp_seconds 1.6e+09`,
		`control_identity_cert_refreshes_total{result="error"} 0`, `control_identity_cert_refreshes_total{result="ok"} 1`,
	}, lines(t, m, "control_identity_cert_refresh"))
}

func TestTransportHeaders(t *testing.T) {
	m := meters.New(meters.Config{})
	count := m.TransportHeaders()
	web := tcplayer.TransportHeader{Port: 80, Protocol: tcplayer.HTTP2}
	count(web, "client")
	count(web, "client")
	count(tcplayer.TransportHeader{Port: 25, Name: "mail"}, "client")
	require.ElementsMatch(t, []string{
		`inbound_tcp_transport_header_connections_total{client_id="client",session_protocol="http/2",target_name="",target_port="80"} 2`,
		`inbound_tcp_transport_header_connections_total{client_id="client",session_protocol="",target_name="mail",target_port="25"} 1`,
	}, lines(t, m, "inbound_tcp_transport_header_connections_total"))
}

func TestProcessThreads(t *testing.T) {
	found := lines(t, meters.New(meters.Config{}), "process_threads ")
	require.Len(t, found, 1)
	require.NotEqual(t, "process_threads 0", found[0])
}

// healthServer fails calls for the service "bad", and streams one status.
type healthServer struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (healthServer) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if r.GetService() == "bad" {
		return nil, status.Error(codes.Internal, "bad")
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (healthServer) Watch(_ *grpc_health_v1.HealthCheckRequest, s grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	return s.Send(&grpc_health_v1.HealthCheckResponse{})
}

// serveHealth serves a healthServer until the test ends.
func serveHealth(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, healthServer{})
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	return l.Addr().String()
}

func TestControlCountsCalls(t *testing.T) {
	addr := serveHealth(t)

	m := meters.New(meters.Config{})
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(m.Control("dst.linkerd:8086", meters.NoTLS("loopback"))))
	require.NoError(t, err)
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "bad"})
	require.Error(t, err)
	stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)

	const at, tls = `addr="dst.linkerd:8086"`, `no_tls_reason="loopback"`
	require.Equal(t, []string{`control_request_total{` + at + `,` + tls + `,tls="no_identity"} 3`}, lines(t, m, "control_request_total"))
	require.ElementsMatch(t, []string{
		`control_response_total{` + at + `,classification="success",grpc_status="0",` + tls + `,status_code="200",tls="no_identity"} 2`,
		`control_response_total{` + at + `,classification="failure",grpc_status="13",` + tls + `,status_code="200",tls="no_identity"} 1`,
	}, lines(t, m, "control_response_total"))
	require.Len(t, lines(t, m, "control_response_latency_ms_count"), 1)
	require.Equal(t, []string{`control_requests_in_flight{` + at + `,` + tls + `,tls="no_identity"} 0`}, lines(t, m, "control_requests_in_flight"))
}
