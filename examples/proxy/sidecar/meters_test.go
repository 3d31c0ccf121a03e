package sidecar_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// asking is a test, or a CollectT while a condition may not hold yet: a goroutine that outlives the
// test must not make it fail.
type asking interface {
	require.TestingT
	Helper()
}

// scraped returns the metrics that Prometheus scrapes from a proxy.
func (tn *testProxy) scraped(t asking) string {
	t.Helper()
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	rsp, err := direct.Get("http://" + tn.Admin + "/metrics")
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return string(text)
}

// metrics calls test with the metrics until it succeeds. A request counts when its response has
// ended, which its client may see earlier.
func (tn *testProxy) metrics(t testing.TB, test func(t require.TestingT, metrics string)) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { test(c, tn.scraped(c)) }, soon, 10*tick) // a scrape costs some milliseconds
}

// shows waits until all lines are there, and none of those after a "!".
func (tn *testProxy) shows(t testing.TB, lines ...string) {
	t.Helper()
	tn.metrics(t, func(t require.TestingT, text string) {
		for _, line := range lines {
			part, gone := strings.CutPrefix(line, "!")
			if !gone {
				part += "\n"
			}
			if strings.Contains(text, part) == gone {
				require.Fail(t, "not there: "+line, linesLike(text, part))
			}
		}
	})
}

// linesLike returns the lines in text with the same name as line.
func linesLike(text, line string) string {
	name, _, _ := strings.Cut(line, "{")
	var like strings.Builder
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, name) {
			like.WriteString(l)
		}
	}
	return like.String()
}

const (
	shopName = "web.shop.svc.cluster.local"
	ofShop   = `parent_group="core",parent_kind="Service",parent_name="web",parent_namespace="shop",parent_port="80",parent_section_name=""`
	toShop   = `backend_group="core",backend_kind="Service",backend_name="web",backend_namespace="shop",backend_port="80",backend_section_name=""`
)

func byRoute(kind, name string) string {
	return fmt.Sprintf(`route_group="",route_kind=%q,route_name=%q,route_namespace=""`, kind, name)
}

// shopRoute returns a route for the path that equals its name.
func shopRoute(name string, retryable bool) *destination.Route {
	return &destination.Route{
		Condition:   &destination.RequestMatch{Match: &destination.RequestMatch_Path{Path: &destination.PathMatch{Regex: "/" + name}}},
		IsRetryable: retryable, MetricsLabels: map[string]string{"route": name},
	}
}

// shop returns a Service's profile with these routes.
func shop(routes ...*destination.Route) *destination.DestinationProfile {
	return &destination.DestinationProfile{
		FullyQualifiedName: shopName, Routes: routes,
		RetryBudget: &destination.RetryBudget{MinRetriesPerSecond: 100, Ttl: durationpb.New(10 * time.Second)},
	}
}

// waitForProfile waits for the profile as long as necessary.
func waitForProfile(c *sidecar.Config) { c.Control.ProfileInitial = soon }

// routedProxy is a proxy with a service that has three routes and one endpoint.
type routedProxy struct {
	*testProxy
	ctl  *script
	app  string
	q    *query                   // for the endpoints
	send func(path string, n int) // on one connection
}

func newRoutedProxy(t *testing.T, change ...func(*sidecar.Config)) *routedProxy {
	t.Helper()
	var came atomic.Int64
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/flaky" && came.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(app.Close)
	ctl := newScript(t)
	ctl.profile(service, shop(shopRoute("plain", false), shopRoute("flaky", true), shopRoute("never", true)))
	r := &routedProxy{testProxy: newTestProxy(t, ctl.addr, append(change, toService, waitForProfile)...), ctl: ctl, app: app.Listener.Addr().String()}
	w := dialWire(t, r.Addr)
	r.send = func(path string, n int) {
		for range n {
			first, _, _ := w.ask(t, "GET "+path+" HTTP/1.1\nHost: web\n\n")
			require.Equal(t, "HTTP/1.1 200 OK", first)
		}
	}
	known := make(chan *query)
	go func() {
		q := <-ctl.asked
		q.updates <- &destination.Update{Update: &destination.Update_Add{
			Add: &destination.WeightedAddrSet{Addrs: []*destination.WeightedAddr{endpointAt(r.app)}},
		}}
		known <- q
	}()
	r.send("/plain", 3)
	r.q = <-known
	require.Equal(t, shopName+":80", r.q.target)
	r.send("/flaky", 2)
	r.send("/other", 1)
	return r
}

const routeMetric, backendMetric, retryMetric = "outbound_http_route_", "outbound_http_route_backend_", "outbound_http_route_retry_"

var plainRoute, flakyRoute, otherRoute = byRoute("profile", "plain"), byRoute("profile", "flaky"), byRoute("default", "default")

func answered(code string) string { return `error="",hostname="",http_status="` + code + `",` }

func TestRouteMetrics(t *testing.T) {
	t.Parallel()
	tn := newRoutedProxy(t)
	tn.shows(t,
		routeMetric+"request_statuses_total{"+answered("200")+ofShop+","+plainRoute+"} 3",
		routeMetric+"request_statuses_total{"+answered("200")+ofShop+","+flakyRoute+"} 2",
		routeMetric+"request_statuses_total{"+answered("200")+ofShop+","+otherRoute+"} 1",
		routeMetric+`request_duration_seconds_count{hostname="",`+ofShop+","+plainRoute+"} 3",
		routeMetric+`request_duration_seconds_bucket{hostname="",`+ofShop+","+flakyRoute+`,le="+Inf"} 2`,
		backendMetric+"requests_total{"+toShop+","+ofShop+","+plainRoute+"} 3",
		backendMetric+"requests_total{"+toShop+","+ofShop+","+flakyRoute+"} 4",
		backendMetric+"requests_total{"+toShop+","+ofShop+","+otherRoute+"} 1",
		backendMetric+`response_statuses_total{`+toShop+`,error="",http_status="200",`+ofShop+","+flakyRoute+"} 2",
		backendMetric+`response_statuses_total{`+toShop+`,error="",http_status="503",`+ofShop+","+flakyRoute+"} 2",
		backendMetric+"response_duration_seconds_count{"+toShop+","+ofShop+","+flakyRoute+"} 4",
		retryMetric+`requests_total{hostname="",`+ofShop+","+flakyRoute+"} 2",
		retryMetric+`successes_total{hostname="",`+ofShop+","+flakyRoute+"} 2",
		retryMetric+`overflow_total{hostname="",`+ofShop+","+flakyRoute+"} 0",
		retryMetric+`limit_exceeded_total{hostname="",`+ofShop+","+flakyRoute+"} 0",
		`route_request_total{direction="outbound",dst="`+shopName+`:80",rt_route="flaky"} 2`,
		`route_actual_request_total{direction="outbound",dst="`+shopName+`:80",rt_route="flaky"} 4`,
		`outbound_tcp_detect_http_results_total{`+ofShop+`,result="http/1"} 1`,
		`outbound_tcp_protocol_connections_total{`+ofShop+`,protocol="detect"} 1`,
		`stack_create_total{direction="outbound",name="balance",protocol="http"} 1`,
		`stack_create_total{direction="outbound",name="endpoint",protocol="http"} 1`,
		`stack_drop_total{direction="outbound",name="endpoint",protocol="http"} 0`,
	)
	for line := range strings.Lines(tn.scraped(t)) {
		if !strings.Contains(line, `peer="src"`) { // connections of the application have only an address
			require.NotContains(t, line, "10.9.8.7", "it has a name")
		}
	}
	require.NotContains(t, tn.scraped(t), routeMetric+"request_statuses_total{error=\"\",hostname=\"\",http_status=\"200\","+ofShop+","+byRoute("profile", "never"))
}

// Series for removed routes and endpoints expire.
func TestRouteMetricsExpire(t *testing.T) {
	t.Parallel()
	var tn *routedProxy
	var addr string
	kept := func(retain time.Duration) bool {
		tn = newRoutedProxy(t, func(c *sidecar.Config) { c.Metrics.RetainIdle = retain })
		addr = `target_addr="` + tn.app + `"`
		tn.ctl.profile(service, shop(shopRoute("plain", false)))
		tn.shows(t, `!route_name="flaky"`, `!route_name="never"`, `!rt_route="flaky"`)
		for end := time.Now().Add(5 * retain); time.Now().Before(end); time.Sleep(10 * tick) { // idle series expire, so the requests repeat
			tn.send("/plain", 1)
			tn.send("/never", 1) // has no route any more
			text := tn.scraped(t)
			used := func(route string) bool {
				return strings.Contains(text, routeMetric+"request_statuses_total{"+answered("200")+ofShop+","+route+"} ")
			}
			if used(plainRoute) && used(otherRoute) && strings.Contains(text, addr) && !strings.Contains(text, `route_name="never"`) {
				return true
			}
		}
		return false
	}
	// On a busy machine, two requests and a scrape may take seconds.
	for retain := time.Second / 2; !kept(retain); retain *= 2 {
		require.Less(t, retain, 30*time.Second)
	}
	tn.q.say(t, &destination.Update{Update: &destination.Update_Remove{
		Remove: &destination.AddrSet{Addrs: []*apinet.TcpAddress{wireAddr(tn.app)}},
	}})
	tn.shows(t, `stack_drop_total{direction="outbound",name="endpoint",protocol="http"} 1`, "!"+addr,
		`stack_drop_total{direction="outbound",name="balance",protocol="http"} 0`)
}

// Requests that the proxy could not send count with the status that the client receives.
func TestRouteRejectionMetrics(t *testing.T) {
	t.Parallel()
	cfg := at("web.shop.svc:80")
	cfg.Destinations["dead.shop.svc:80"] = at("x", freeAddr(t)).Destinations["x"]
	ctl, _ := serveController(t, "127.0.0.1:0", cfg)
	tn := newTestProxy(t, ctl, func(c *sidecar.Config) { c.Outbound.HTTPQueue.FailFast = 100 * time.Millisecond })
	c := tn.client(t)
	for _, host := range []string{"web.shop.svc", "dead.shop.svc"} {
		status, _ := get(t, c, "http://"+host+"/")
		require.Equal(t, http.StatusGatewayTimeout, status)
	}
	status, _ := get(t, c, "http://"+freeAddr(t)+"/")
	require.Equal(t, http.StatusBadGateway, status)
	const statuses = "outbound_http_route_request_statuses_total{"
	series := func(name string) string {
		return strings.Replace(ofShop, `parent_name="web"`, `parent_name="`+name+`"`, 1) + "," + byRoute("default", "default") + "} 1"
	}
	tn.shows(t,
		statuses+`error="FAIL_FAST",hostname="",http_status="",`+series("web"),
		statuses+`error="FAIL_FAST",hostname="",http_status="",`+series("dead"))
	tn.metrics(t, func(t require.TestingT, text string) {
		require.Contains(t, text, statuses+`error="",hostname="",http_status="502",parent_group="",parent_kind="default",parent_name="127.0.0.91"`)
	})
}

// lookedIn returns the metrics about protocol detection for inbound connections.
func lookedIn(results map[string]int) (lines []string) {
	const srv = `srv_group="",srv_kind="default",srv_name="all-unauthenticated"`
	n := 0
	for _, result := range []string{"http/1", "http/2", "not_http", "read_timeout", "error"} {
		lines = append(lines, fmt.Sprintf("inbound_tcp_detect_http_results_total{result=%q,%s} %d", result, srv, results[result]))
		n += results[result]
	}
	return append(lines, fmt.Sprintf("inbound_tcp_detect_http_duration_seconds_count{%s} %d", srv, n))
}

// lookedOut returns the metrics about protocol detection for connections to addr.
func lookedOut(t testing.TB, addr string, results map[string]int) (lines []string) {
	t.Helper()
	ip, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	parent := fmt.Sprintf("parent_group=\"\",parent_kind=\"default\",parent_name=%q,parent_namespace=\"\",parent_port=%q,parent_section_name=\"\"",
		ip, port)
	n := 0
	for result, times := range results {
		lines = append(lines, fmt.Sprintf("outbound_tcp_detect_http_results_total{%s,result=%q} %d", parent, result, times))
		n += times
	}
	return append(lines, fmt.Sprintf("outbound_tcp_detect_http_duration_seconds_count{%s} %d", parent, n))
}

func TestDetectMetrics(t *testing.T) {
	app := shouting(t, "")
	ctl := newScript(t)
	toApp := func(c *sidecar.Config) {
		c.Settings.Inbound.Origin, c.Outbound.Origin = fixed(app), fixed(app)
	}
	tn := newTestProxy(t, ctl.addr, toApp)
	for _, addr := range []string{tn.Inbound, tn.Addr} {
		for _, sent := range []string{
			"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00 no HTTP, and more than 14 bytes", "short", "",
		} {
			w := dialWire(t, addr)
			say(w, sent)
			w.closeWrite(t)
			_, _ = io.Copy(io.Discard, w)
		}
	}
	results := map[string]int{"http/1": 2, "http/2": 1, "not_http": 2, "error": 1}
	tn.shows(t, lookedIn(results)...)
	tn.shows(t, lookedOut(t, app, results)...)
	for _, le := range []string{"0.001", "0.1"} {
		require.Regexp(t, `inbound_tcp_detect_http_duration_seconds_bucket{srv_[^}]*,le="`+le+`"} `, tn.scraped(t))
		require.Regexp(t, `outbound_tcp_detect_http_duration_seconds_bucket{parent_[^}]*,le="`+le+`"} `, tn.scraped(t))
	}

	quick := newTestProxy(t, ctl.addr, toApp, func(c *sidecar.Config) {
		c.Settings.Inbound.DetectTimeout = time.Millisecond
		c.Settings.Inbound.OpaquePorts = nil
	})
	w := dialWire(t, quick.Inbound)
	quick.shows(t, lookedIn(map[string]int{"read_timeout": 1})...)
	converse(t, w)
}

func TestOpaqueConnectionMetrics(t *testing.T) {
	ctl := newScript(t)
	opaque := shop()
	opaque.OpaqueProtocol = true
	ctl.profile(service, opaque)
	tn := newTestProxy(t, ctl.addr, toService, waitForProfile)
	app := shouting(t, "220 hello")
	go func() {
		q := <-ctl.asked
		q.updates <- &destination.Update{Update: &destination.Update_Add{
			Add: &destination.WeightedAddrSet{Addrs: []*destination.WeightedAddr{endpointAt(app)}},
		}}
	}()
	open := dialWire(t, tn.Addr)
	open.hear(t, "220 hello")
	w := dialWire(t, tn.Addr)
	w.hear(t, "220 hello")
	converse(t, w)
	labels := ofShop + "," + byRoute("default", "default") + `,target_ip="",target_port="80"} `
	tn.shows(t,
		"outbound_tcp_route_open_total{"+labels+"2",
		`outbound_tcp_route_close_total{error="",`+labels+"1",
		`outbound_tcp_protocol_connections_total{`+ofShop+`,protocol="opaq"} 2`,
		`stack_create_total{direction="outbound",name="balance",protocol="tcp"} 1`)
	tn.shows(t, "!outbound_tcp_detect_http_results_total{parent_", "!outbound_tcp_detect_http_duration_seconds_count{parent_")
	converse(t, open)
	tn.shows(t, `outbound_tcp_route_close_total{error="",`+labels+"2")
}

// Names that are addresses are not looked up.
func TestAddressWithoutLookup(t *testing.T) {
	tn := newTestProxy(t, newScript(t).addr)
	for _, kind := range []string{"SRV", "A/AAAA"} {
		for _, result := range []string{"ok", "not_found"} {
			tn.shows(t, fmt.Sprintf(`control_dns_resolutions_total{client="destination",record_type=%q,result=%q} 0`, kind, result))
		}
	}
}

// grpcAndMore serves gRPC, and requests over HTTP/1 and HTTP/2.
func grpcAndMore(t *testing.T) (addr string) {
	t.Helper()
	var came atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/flaky" && came.Add(1)%2 == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Header.Get("Content-Type") == "application/grpc":
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write(make([]byte, 5))
			w.Header().Set("Grpc-Status", "14")
		}
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// After traffic of all kinds (HTTP/1, HTTP/2, gRPC, bytes, TLS and rejected requests), the proxy
// exports every metric of linkerd's proxy that applies to it.
func TestEveryMetric(t *testing.T) {
	t.Parallel()
	m := &mesh{authority: newAuthority(t, anyClient), ctl: newScript(t)}
	m.a = newTestProxy(t, m.ctl.addr, m.identified(t, clientName), toService, waitForProfile)
	app := grpcAndMore(t)
	m.b = newTestProxy(t, m.ctl.addr, m.identified(t, serverName), func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(app) })
	m.ctl.profile(service, &destination.DestinationProfile{
		FullyQualifiedName: "web.example", Routes: []*destination.Route{shopRoute("flaky", true)}, RetryBudget: shop().GetRetryBudget(),
	})
	m.answer(t, endpointAt(m.b.Inbound, proves(serverName), speaksH2))
	certified(t, m.a)
	certified(t, m.b)
	for _, c := range []*http.Client{h1Client(t, m.a.Addr), h2Client(t, m.a.Addr)} {
		for _, path := range []string{"/", "/flaky"} {
			status, _ := get(t, c, "http://web.example"+path)
			require.Equal(t, http.StatusOK, status)
		}
		rsp, err := c.Post("http://web.example/a.B/C", "application/grpc", strings.NewReader("\x00\x00\x00\x00\x00"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, rsp.Body.Close())
		require.Equal(t, "14", rsp.Trailer.Get("Grpc-Status"))
	}
	for _, sent := range []string{"\x00 no HTTP, and more than 14 bytes", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"} {
		w := dialWire(t, m.a.Addr)
		say(w, sent)
		w.closeWrite(t)
		_, _ = io.Copy(io.Discard, w)
	}

	away := freeAddr(t)
	lost := newTestProxy(t, m.ctl.addr, impatient, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin, c.Outbound.Origin = fixed(away), fixed(away)
	})
	closed := newTestProxy(t, m.ctl.addr, func(c *sidecar.Config) {
		c.Settings.Inbound.Origin, c.Settings.Inbound.DefaultPolicy = fixed(away), settings.Deny
	})
	for _, addr := range []string{lost.Addr, lost.Inbound, closed.Inbound} {
		for _, sent := range []string{"GET / HTTP/1.0\r\n\r\n", "\x00 no HTTP, and more than 14 bytes"} {
			w := dialWire(t, addr)
			say(w, sent)
			_, _ = io.Copy(io.Discard, w)
		}
	}

	want := []string{
		"request_total", "response_total", "response_latency_ms_bucket", "response_latency_ms_sum", "response_latency_ms_count",
		"route_request_total", "route_response_total", "route_response_latency_ms_bucket",
		"route_actual_request_total", "route_actual_response_total", "route_retryable_total",
		"control_request_total", "control_response_total", "control_response_latency_ms_bucket",
		"inbound_http_requests_total", "inbound_http_statuses_total", "inbound_http_request_duration_seconds_bucket",
		"inbound_http_response_duration_seconds_bucket", "outbound_tcp_transfer_cost_bytes_total",
		"inbound_http_errors_total", "outbound_http_errors_total", "inbound_http_authz_allow_total", "inbound_http_authz_deny_total",
		"outbound_http_route_request_statuses_total", "outbound_http_route_request_duration_seconds_bucket",
		"outbound_http_route_backend_requests_total", "outbound_http_route_backend_response_statuses_total",
		"outbound_http_route_backend_response_duration_seconds_bucket",
		"outbound_http_route_retry_requests_total", "outbound_http_route_retry_successes_total",
		"outbound_http_route_retry_limit_exceeded_total", "outbound_http_route_retry_overflow_total",
		"outbound_http_balancer_endpoints", "outbound_http_balancer_p2c_updates_total", "outbound_http_balancer_queue_length",
		"outbound_http_balancer_queue_requests_total", "outbound_http_balancer_queue_latency_seconds_bucket",
		"outbound_http_balancer_p2c_endpoints", "outbound_tcp_balancer_endpoints", "outbound_tcp_balancer_p2c_endpoints",
		"tcp_open_total", "tcp_open_connections", "tcp_read_bytes_total", "tcp_write_bytes_total", "tcp_close_total",
		"inbound_tcp_errors_total", "outbound_tcp_errors_total", "inbound_tcp_authz_allow_total", "inbound_tcp_authz_deny_total",
		"inbound_tcp_detect_http_duration_seconds_bucket", "inbound_tcp_detect_http_results_total",
		"outbound_tcp_detect_http_duration_seconds_bucket", "outbound_tcp_detect_http_results_total",
		"outbound_tcp_route_open_total", "outbound_tcp_route_close_total", "outbound_tcp_protocol_connections_total",
		"process_start_time_seconds", "process_cpu_seconds_total", "process_uptime_seconds_total", "process_threads", "proxy_build_info",
		"control_identity_cert_expiration_timestamp_seconds", "control_identity_cert_refreshes_total",
		"control_identity_cert_refresh_timestamp_seconds", "control_dns_resolutions_total",
		"stack_create_total", "stack_drop_total",
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		missing := slices.Clone(want)
		for _, tn := range []*testProxy{m.a, m.b, lost, closed} {
			for line := range strings.Lines(tn.scraped(c)) {
				name, _, _ := strings.Cut(line, " ")
				name, _, _ = strings.Cut(name, "{")
				missing = slices.DeleteFunc(missing, func(s string) bool { return s == name })
			}
		}
		require.Empty(c, missing)
	}, soon, tick)
	m.a.shows(t, `control_dns_resolutions_total{client="identity",record_type="SRV",result="ok"} 0`)
}

// Like the balancer for requests, the one for opaque connections has its Service's and parent's
// labels.
func TestOpaqueBalancerLabels(t *testing.T) {
	t.Parallel()
	m := meshOf(t, "")
	profile := shop()
	profile.OpaqueProtocol = true
	m.ctl.profile(service, profile)
	app := shouting(t, "220 hello")
	w := dialWire(t, m.a.Addr)
	q := <-m.ctl.asked
	q.updates <- &destination.Update{Update: &destination.Update_Add{
		Add: &destination.WeightedAddrSet{Addrs: []*destination.WeightedAddr{endpointAt(app)}},
	}}
	w.hear(t, "220 hello")
	m.a.shows(t, `outbound_tcp_balancer_p2c_endpoints{`+toShop+`,dst="`+shopName+`:80",`+ofShop+`} 1`)
}
