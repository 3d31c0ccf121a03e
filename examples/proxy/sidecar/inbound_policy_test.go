package sidecar_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	inboundpb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer/tcplayer"
)

// inboundProxy is a proxy in front of an application, with a policy controller.
type inboundProxy struct {
	*testProxy
	*authority
	app  string
	ctl  *controller.Controller
	logs *safeBuffer
}

// safeBuffer is a log that may be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newInboundProxy serves app, whose port replaces PORT in file. The proxy has an identity.
func newInboundProxy(t testing.TB, app, file string, change ...func(*sidecar.Config)) *inboundProxy {
	t.Helper()
	p := &inboundProxy{authority: newAuthority(t, anyClient), app: app, ctl: controller.New(nil), logs: new(safeBuffer)}
	p.load(t, file)
	ctlAddr := serveGRPC(t, func(s *grpc.Server) { p.ctl.Register(s) }, p.ctl.Stop)
	c := sidecar.Config{Settings: settingsFor(t, ctlAddr)}
	c.Settings.Inbound.Origin = fixed(app)
	c.Settings.Policy.Controller.Addr, c.Settings.Policy.Workload = ctlAddr, "w"
	port := netip.MustParseAddrPort(app).Port()
	c.Settings.Inbound.Ports = settings.Ports{{First: port, Last: port}} // watched from the start
	for _, f := range append(change, p.identified(t, serverName)) {
		f(&c)
	}
	p.testProxy = runLogged(t, c, p.logs)
	return p
}

func (p *inboundProxy) load(t testing.TB, file string) {
	t.Helper()
	_, port, err := net.SplitHostPort(p.app)
	require.NoError(t, err)
	cfg, err := controller.Parse("f.yaml", []byte("destinations: {}\n"+strings.ReplaceAll(file, "PORT", port)))
	require.NoError(t, err)
	require.NoError(t, p.ctl.Set(cfg))
}

// loadAndWait replaces the policies and waits for the port's server name.
func (p *inboundProxy) loadAndWait(t testing.TB, file, name string) {
	t.Helper()
	p.load(t, file)
	require.Eventually(t, func() bool {
		_, stack := get(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+p.Admin+"/stack")
		return strings.Contains(stack, "/"+name)
	}, soon, 5*time.Millisecond)
}

// serveGRPC serves until the test ends, and calls stop before that.
func serveGRPC(t testing.TB, register func(*grpc.Server), stop func()) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		stop()
		s.Stop()
		require.NoError(t, <-done)
	})
	return l.Addr().String()
}

func runLogged(t testing.TB, c sidecar.Config, logs io.Writer) *testProxy {
	t.Helper()
	return runWithLog(t, c, slog.NewTextHandler(logs, nil))
}

// runWithLog runs a proxy with this log.
func runWithLog(t testing.TB, c sidecar.Config, log slog.Handler) *testProxy {
	t.Helper()
	p, err := sidecar.New(c, slog.New(log))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &testProxy{Proxy: p}
}

// dialFrom connects from one of this machine's addresses. Only 127.0.0.1 is always permitted.
func dialFrom(t testing.TB, local, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(local), 0))}
	conn, err := d.Dial("tcp", addr)
	require.NoError(t, err)
	return conn
}

const elsewhere = "127.0.0.2"

// meshed connects with an identity, or with TLS but without one if it is "".
func (p *inboundProxy) meshed(t testing.TB, local, id string) net.Conn {
	t.Helper()
	cfg := p.of(t, clientName).Client(serverName, serverName)
	if id != "" {
		cfg = p.of(t, id).Client(serverName, serverName)
	} else {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
	}
	conn := tls.Client(dialFrom(t, local, p.Inbound), cfg)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.Handshake())
	return conn
}

// echoing is an HTTP application that reports the path and a header.
func echoing(t testing.TB) string {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("X-Tier")+r.Header.Get("X-Debug"))
	}))
	t.Cleanup(app.Close)
	return app.Listener.Addr().String()
}

const ask = "GET /api HTTP/1.1\nHost: web\nX-Debug: 1\n\n"

// Each kind of authorization permits its clients, and no others.
func TestInboundPolicyAuthorizations(t *testing.T) {
	t.Parallel()
	const allowed, denied = "HTTP/1.1 200 OK", "HTTP/1.1 403 Forbidden"
	p := newInboundProxy(t, echoing(t), "servers: [{name: start, port: PORT}]")
	clients := []struct {
		name string
		dial func() net.Conn
	}{
		{"this machine", func() net.Conn { return dialFrom(t, "127.0.0.1", p.Inbound) }},
		{"unmeshed", func() net.Conn { return dialFrom(t, elsewhere, p.Inbound) }},
		{"TLS only", func() net.Conn { return p.meshed(t, elsewhere, "") }},
		{"meshed", func() net.Conn { return p.meshed(t, elsewhere, clientName) }},
		{"other", func() net.Conn { return p.meshed(t, elsewhere, "other.test") }},
	}
	for i, c := range []struct {
		name, policy string
		want         [5]string
	}{
		{"deny", "accessPolicy: deny", [5]string{allowed, denied, denied, denied, denied}},
		{"identity", "authorizationPolicies: [{name: a, identities: [client.cluster.local]}]", [5]string{allowed, denied, denied, allowed, denied}},
		{"suffix", "authorizationPolicies: [{name: a, identities: ['*.cluster.local']}]", [5]string{allowed, denied, denied, allowed, denied}},
		{"all identities", "authorizationPolicies: [{name: a, identities: ['*']}]", [5]string{allowed, denied, denied, allowed, allowed}},
		{"TLS", "authorizationPolicies: [{name: a, unauthenticatedTLS: true}]", [5]string{allowed, denied, allowed, allowed, allowed}},
		{"network", "authorizationPolicies: [{name: a, networks: [{cidr: 127.0.0.0/8}]}]", [5]string{allowed, allowed, allowed, allowed, allowed}},
		{"except", "authorizationPolicies: [{name: a, networks: [{cidr: 127.0.0.0/8, except: [127.0.0.2]}]}]", [5]string{allowed, denied, denied, denied, denied}},
		{"two", "authorizationPolicies: [{name: a, identities: [other.test]}, {name: b, networks: [{cidr: 10.0.0.0/8}]}]", [5]string{allowed, denied, denied, denied, allowed}},
		{"all-unauthenticated", "accessPolicy: all-unauthenticated", [5]string{allowed, allowed, allowed, allowed, allowed}},
		{"all-authenticated", "accessPolicy: all-authenticated", [5]string{allowed, denied, denied, allowed, allowed}},
		{"cluster-unauthenticated", "accessPolicy: cluster-unauthenticated", [5]string{allowed, denied, denied, denied, denied}},
	} {
		for _, protocol := range []string{"unknown", "HTTP/1"} {
			name := "n" + string(rune('a'+i)) + strings.ToLower(protocol[:1])
			p.loadAndWait(t, "servers: [{name: "+name+", port: PORT, proxyProtocol: "+protocol+", "+c.policy+"}]", name)
			for j, client := range clients {
				first, _, _ := newWire(t, client.dial()).ask(t, ask)
				require.Equal(t, c.want[j], first, c.name+", "+client.name+", "+protocol)
			}
		}
	}
}

// A policy applies to an open connection's next request. Clients with a proxy get the reason.
func TestInboundPolicyChange(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, echoing(t), "servers: [{name: first, port: PORT, accessPolicy: all-unauthenticated}]")
	plain, meshed := newWire(t, dialFrom(t, elsewhere, p.Inbound)), newWire(t, p.meshed(t, elsewhere, clientName))
	for _, w := range []*wire{plain, meshed} {
		first, _, _ := w.ask(t, ask)
		require.Equal(t, "HTTP/1.1 200 OK", first)
	}
	p.loadAndWait(t, "servers: [{name: second, port: PORT}]", "second")
	for _, w := range []*wire{plain, meshed} {
		first, fields, _ := w.ask(t, ask)
		require.Equal(t, "HTTP/1.1 403 Forbidden", first)
		text := strings.Join(fields, "\n")
		require.NotContains(t, text, "Connection: close")
		require.Equal(t, w == meshed, strings.Contains(strings.ToLower(text), "l5d-proxy-error: unauthorized request on route"), text)
	}
	p.loadAndWait(t, "servers: [{name: third, port: PORT, accessPolicy: audit}]", "third")
	for _, w := range []*wire{plain, meshed} {
		first, _, _ := w.ask(t, ask)
		require.Equal(t, "HTTP/1.1 200 OK", first)
	}
	logs := p.logs.String()
	require.Contains(t, logs, `msg="request denied" server=policy.linkerd.io/server/second route=/default/default`)
	require.Contains(t, logs, `msg="request allowed" server=policy.linkerd.io/server/third route=/default/default authz=/default/audit client_ip=127.0.0.2`)
	hasSeries(t, p.testProxy, 1, `inbound_http_authz_deny_total{client_id="client.cluster.local",route_group="",route_kind="default",route_name="default",srv_group="policy.linkerd.io",srv_kind="server",srv_name="second"`)
	hasSeries(t, p.testProxy, 1, `inbound_http_authz_allow_total{authz_group="",authz_kind="default",authz_name="audit",client_id="client.cluster.local"`)
}

// A connection that is not HTTP is closed, even if its policy changes later.
func TestInboundPolicyConnections(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"opaque", "unknown", "TLS"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			p := newInboundProxy(t, shouting(t, ""), "servers: [{name: db, port: PORT, proxyProtocol: "+protocol+", authorizationPolicies: [{name: a, networks: [{cidr: 127.0.0.2/32}]}]}]")
			stranger := newWire(t, dialFrom(t, "127.0.0.3", p.Inbound))
			say(stranger, "hello\x00\n")
			_, err := io.ReadAll(stranger.in)
			require.True(t, err != nil || stranger.raw.Len() == 0, "nothing is forwarded")
			require.Empty(t, stranger.raw.String())

			friend, local := newWire(t, dialFrom(t, elsewhere, p.Inbound)), newWire(t, dialFrom(t, "127.0.0.1", p.Inbound))
			for _, w := range []*wire{friend, local} {
				say(w, "hello\x00\n")
				w.hear(t, "HELLO\x00\n")
			}
			p.load(t, "servers: [{name: db, port: PORT, proxyProtocol: "+protocol+"}]")
			_, err = io.ReadAll(friend.in)
			require.Error(t, err, "a reset")
			say(local, "again\n")
			local.hear(t, "AGAIN\n")
			hasSeries(t, p.testProxy, 1, `inbound_tcp_authz_terminate_total{`)
			hasSeries(t, p.testProxy, 1, `inbound_tcp_authz_deny_total{`)
			require.Equal(t, 1, series(t, p.testProxy, `authz_name="a"`)-series(t, p.testProxy, `tcp_open_total{authz_name="a"`))
		})
	}
}

// TLS is terminated for the policy TLS, but not for opaque.
func TestInboundPolicyTLS(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, shouting(t, ""), "servers: [{name: db, port: PORT, proxyProtocol: TLS, authorizationPolicies: [{name: a, identities: ['*']}]}]")
	w := newWire(t, p.meshed(t, elsewhere, clientName))
	say(w, "GET / HTTP/1.1\r\n")
	w.hear(t, "GET / HTTP/1.1\r\n")
	p.loadAndWait(t, "servers: [{name: bytes, port: PORT, proxyProtocol: opaque, accessPolicy: all-unauthenticated}]", "bytes")
	w = newWire(t, dialFrom(t, elsewhere, p.Inbound))
	say(w, "\x16\x03\x01get\n")
	w.hear(t, "\x16\x03\x01GET\n")
}

// Bytes that are not HTTP are not forwarded to a port with HTTP.
func TestInboundPolicyHTTPOnly(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, shouting(t, ""), "servers: [{name: web, port: PORT, proxyProtocol: HTTP/1, accessPolicy: all-unauthenticated}]")
	w := newWire(t, dialFrom(t, elsewhere, p.Inbound))
	say(w, "hello\r\n\r\n")
	_, _ = io.ReadAll(w.in)
	require.NotContains(t, w.raw.String(), "HELLO")
}

// A request uses the most specific route, with its own authorizations and filters.
func TestInboundPolicyRoutes(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, echoing(t), `
servers:
  - name: web
    port: PORT
    authorizationPolicies: [{name: mesh, identities: ['*']}]
    httpRoutes:
      - name: api
        rules:
          - matches: [{path: {value: /api}}]
            filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-tier, value: gold}], remove: [x-debug]}}]
          - matches: [{path: {value: /api/old}}, {path: {value: /api/older}}]
            filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301, path: {type: ReplacePrefixMatch, replacePrefixMatch: /api/new}}}]
      - name: health
        rules: [{matches: [{path: {type: Exact, value: /health}, method: GET}, {path: {type: Exact, value: /$}}]}]
        authorizationPolicies: [{name: anyone, unauthenticated: true}]
      - name: admin
        hostnames: ["*.admin.test"]
        rules: [{matches: [{path: {type: RegularExpression, value: "/a.*"}, headers: [{name: x-debug, value: "1"}], queryParams: [{name: q, value: "1"}]}]}]
`)
	plain := func() net.Conn { return dialFrom(t, elsewhere, p.Inbound) }
	meshed := func() net.Conn { return p.meshed(t, elsewhere, clientName) }
	for _, c := range []struct {
		name           string
		dial           func() net.Conn
		request, first string
		rest           string
	}{
		{"filter", meshed, ask, "HTTP/1.1 200 OK", "/api gold"},
		{"prefix of a route", meshed, "GET /apis HTTP/1.1\nHost: web\n\n", "HTTP/1.1 404 Not Found", ""},
		{"denied", plain, ask, "HTTP/1.1 403 Forbidden", ""},
		{"redirect", meshed, "GET /api/old/x?y HTTP/1.1\nHost: web\n\n", "HTTP/1.1 301 Moved Permanently", "Location: http://web/api/new/x?y"},
		{"redirect of the second match", meshed, "GET /api/older HTTP/1.1\nHost: web\n\n", "HTTP/1.1 301 Moved Permanently", "Location: http://web/api/new"},
		{"redirect of a client that is denied", plain, "GET /api/old/x HTTP/1.1\nHost: web\n\n", "HTTP/1.1 403 Forbidden", ""},
		{"own authorization", plain, "GET /health HTTP/1.1\nHost: web\n\n", "HTTP/1.1 200 OK", "/health "},
		{"authorization of the server", meshed, "GET /health HTTP/1.1\nHost: web\n\n", "HTTP/1.1 200 OK", "/health "},
		{"exact path", plain, "GET /$ HTTP/1.1\nHost: web\n\n", "HTTP/1.1 200 OK", "/$ "},
		{"more than the exact path", plain, "GET /$/keys HTTP/1.1\nHost: web\n\n", "HTTP/1.1 404 Not Found", ""},
		{"other method", plain, "POST /health HTTP/1.1\nHost: web\nContent-Length: 0\n\n", "HTTP/1.1 404 Not Found", ""},
		{"host", meshed, "GET /abc?q=1 HTTP/1.1\nHost: x.admin.test:80\nX-Debug: 1\n\n", "HTTP/1.1 200 OK", "/abc 1"},
		{"other host", meshed, "GET /abc?q=1 HTTP/1.1\nHost: admin.test\nX-Debug: 1\n\n", "HTTP/1.1 404 Not Found", ""},
		{"other query", meshed, "GET /abc?q=2 HTTP/1.1\nHost: x.admin.test\nX-Debug: 1\n\n", "HTTP/1.1 404 Not Found", ""},
	} {
		first, fields, body := newWire(t, c.dial()).ask(t, c.request)
		require.Equal(t, c.first, first, c.name)
		require.Contains(t, strings.Join(fields, "\n")+"\n"+body, c.rest, c.name)
	}
	hasSeries(t, p.testProxy, 1, `inbound_http_route_not_found_total{no_tls_reason="no_tls_from_remote",srv_group="policy.linkerd.io",srv_kind="server",srv_name="web"`)
	hasSeries(t, p.testProxy, 1, `inbound_http_authz_allow_total{authz_group="policy.linkerd.io",authz_kind="authorizationpolicy",authz_name="anyone",no_tls_reason="no_tls_from_remote",route_group="gateway.networking.k8s.io",route_kind="HTTPRoute",route_name="health"`)
	hasSeries(t, p.testProxy, 1, `inbound_http_requests_total{parent_group="policy.linkerd.io",parent_kind="server",parent_name="web",parent_port="`+p.app[strings.LastIndex(p.app, ":")+1:]+`",route_group="gateway.networking.k8s.io",route_kind="HTTPRoute",route_name="admin"`)
	require.Zero(t, series(t, p.testProxy, `inbound_http_errors_total{error=`), "policy does not count as an error of the proxy")
}

// gRPC clients get a gRPC status.
func TestInboundPolicyGRPC(t *testing.T) {
	t.Parallel()
	app := serveGRPC(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health{}) }, func() {})
	p := newInboundProxy(t, app, `
servers:
  - name: grpc
    port: PORT
    proxyProtocol: gRPC
    grpcRoutes:
      - {name: check, rules: [{matches: [{method: {service: grpc.health.v1.Health, method: Check}}]}], authorizationPolicies: [{name: a, unauthenticated: true}]}
      - {name: watch, rules: [{matches: [{method: {method: Watch}}]}]}
`)
	conn, err := grpc.NewClient("passthrough:///proxy", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialFrom(t, elsewhere, p.Inbound), nil }))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	client := healthpb.NewHealthClient(conn)
	rsp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, rsp.GetStatus())
	stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.Equal(t, codes.PermissionDenied, status.Code(err), err)
	_, err = client.List(t.Context(), &healthpb.HealthListRequest{})
	require.Equal(t, codes.NotFound, status.Code(err), err)
}

// A gRPC request over the local rate limit gets the status RESOURCE_EXHAUSTED.
func TestInboundPolicyRateLimitGRPC(t *testing.T) {
	t.Parallel()
	app := serveGRPC(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health{}) }, func() {})
	p := newInboundProxy(t, app, `
servers:
  - name: grpc
    port: PORT
    proxyProtocol: HTTP/2
    accessPolicy: all-unauthenticated
    httpLocalRateLimit: {name: limit, total: {requestsPerSecond: 1}}
`)
	conn, err := grpc.NewClient("passthrough:///proxy", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialFrom(t, elsewhere, p.Inbound), nil }))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	client := healthpb.NewHealthClient(conn)
	served := 0
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); served++ { // a second may pass between two requests
		if _, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			break
		}
	}
	require.Positive(t, served)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), err)
}

type health struct {
	healthpb.UnimplementedHealthServer
}

func (health) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// The local rate limits per client and in total reject requests with 429.
func TestInboundPolicyRateLimit(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, echoing(t), `
servers:
  - name: web
    port: PORT
    accessPolicy: all-unauthenticated
    httpLocalRateLimit: {name: limit, total: {requestsPerSecond: 5}, identity: {requestsPerSecond: 1}, overrides: [{requestsPerSecond: 2, clientRefs: [{namespace: ns, name: vip}]}]}
`)
	ask := func(conn net.Conn, n int) (ok, limited int) {
		w := newWire(t, conn)
		for range n {
			first, _, _ := w.ask(t, ask)
			switch first {
			case "HTTP/1.1 200 OK":
				ok++
			case "HTTP/1.1 429 Too Many Requests":
				limited++
			default:
				t.Fatal(first)
			}
		}
		return ok, limited
	}
	rejected := func(scope string) int {
		return series(t, p.testProxy, `inbound_http_local_ratelimit_total{no_tls_reason="no_tls_from_remote",ratelimit_group="policy.linkerd.io",ratelimit_kind="HTTPLocalRateLimitPolicy",ratelimit_name="limit",ratelimit_scope="`+scope+`"`)
	}
	client := dialFrom(t, elsewhere, p.Inbound)
	require.Eventually(t, func() bool { // a loaded machine may be slower than the total limit
		ok, limited := ask(client, 20)
		return ok > 0 && limited > 0 && rejected("total") > 0
	}, soon, time.Millisecond, "the total")
	vip := p.meshed(t, elsewhere, "vip.ns.serviceaccount.identity.linkerd.cluster.local")
	require.Eventually(t, func() bool { // when the total limit permits two requests
		ok, _ := ask(vip, 2)
		return ok == 2
	}, soon, 700*time.Millisecond, "the override")
	require.Positive(t, rejected("identity"))
}

// A direct connection uses the policy of the port in its transport header.
func TestInboundPolicyDirect(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, echoing(t), "defaultInboundPolicy: all-unauthenticated\nservers: [{name: web, port: PORT, authorizationPolicies: [{name: a, identities: [other.test]}]}]",
		func(c *sidecar.Config) { c.Settings.Inbound.Origin = settings.Origin{} })
	port := netip.MustParseAddrPort(p.app).Port()
	for id, want := range map[string]string{"other.test": "HTTP/1.1 200 OK", clientName: "HTTP/1.1 403 Forbidden"} {
		cfg := p.of(t, id).Client(serverName, serverName, tcplayer.TransportProtocol)
		conn := tls.Client(dialFrom(t, "127.0.0.1", p.Inbound), cfg)
		t.Cleanup(func() { conn.Close() })
		if id == clientName { // a client on this machine is permitted
			want = "HTTP/1.1 200 OK"
		}
		_, err := conn.Write(tcplayer.TransportHeader{Port: port, Protocol: tcplayer.HTTP1}.AppendTo(nil))
		require.NoError(t, err)
		first, _, _ := newWire(t, conn).ask(t, ask)
		require.Equal(t, want, first, id)
	}
	hasSeries(t, p.testProxy, 1, `inbound_http_authz_allow_total{authz_group="policy.linkerd.io",authz_kind="authorizationpolicy",authz_name="a",client_id="other.test"`)
	hasSeries(t, p.testProxy, 1, `inbound_http_authz_allow_total{authz_group="",authz_kind="default",authz_name="localhost",client_id="client.cluster.local"`)
}

// policyFunc is a policy controller with one function.
type policyFunc struct {
	inboundpb.UnimplementedInboundServerPoliciesServer
	watch func(grpc.ServerStreamingServer[inboundpb.Server]) error
}

func (p policyFunc) WatchPort(_ *inboundpb.PortSpec, s grpc.ServerStreamingServer[inboundpb.Server]) error {
	return p.watch(s)
}

// If the policy controller does not answer, the default policy applies, with one warning.
func TestInboundPolicyOutage(t *testing.T) {
	t.Parallel()
	const pause = 200 * time.Millisecond
	controllers := map[string]func(t *testing.T) string{
		"none": freeAddrOf,
		"unimplemented": func(t *testing.T) string {
			return serveGRPC(t, func(*grpc.Server) {}, func() {})
		},
		"silent": func(t *testing.T) string {
			return serveGRPC(t, func(s *grpc.Server) {
				inboundpb.RegisterInboundServerPoliciesServer(s, policyFunc{watch: func(s grpc.ServerStreamingServer[inboundpb.Server]) error {
					<-s.Context().Done()
					return nil
				}})
			}, func() {})
		},
		"frozen": func(t *testing.T) string {
			l, err := net.Listen("tcp", "127.0.0.1:0") // accepts nothing
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
			return l.Addr().String()
		},
		"nonsense": func(t *testing.T) string {
			return serveGRPC(t, func(s *grpc.Server) {
				inboundpb.RegisterInboundServerPoliciesServer(s, policyFunc{watch: func(s grpc.ServerStreamingServer[inboundpb.Server]) error {
					for _, msg := range nonsense() {
						if err := s.Send(msg); err != nil {
							return err
						}
					}
					<-s.Context().Done()
					return nil
				}})
			}, func() {})
		},
	}
	for name, serve := range controllers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, logs := echoing(t), new(safeBuffer)
			c := sidecar.Config{Settings: settingsFor(t, newScript(t).addr)}
			c.Settings.Inbound.Origin, c.Settings.Inbound.DefaultPolicy = fixed(app), settings.AllUnauthenticated
			c.Settings.Control.ProfileInitial = pause
			c.Settings.Control.Streams.Initial = 2 * pause
			c.Settings.Policy.Controller.Addr, c.Settings.Policy.Workload = serve(t), "w"
			tn := runLogged(t, c, logs)
			for range 3 {
				first, _, _ := newWire(t, dialFrom(t, elsewhere, tn.Inbound)).ask(t, ask)
				require.Equal(t, "HTTP/1.1 200 OK", first)
			}
			hasSeries(t, tn, 1, `inbound_http_authz_allow_total{authz_group="",authz_kind="default",authz_name="all-unauthenticated"`)
			require.Eventually(t, func() bool { return strings.Contains(logs.String(), "no policy from the controller") }, soon, time.Millisecond)
			newWire(t, dialFrom(t, elsewhere, tn.Inbound)).ask(t, ask)
			require.Equal(t, 1, strings.Count(logs.String(), "no policy from the controller"), logs.String())
		})
	}
}

func freeAddrOf(t *testing.T) string { return freeAddr(t) }

// nonsense returns messages that are not policies.
func nonsense() []*inboundpb.Server {
	named := map[string]string{"name": "x"}
	detect := &inboundpb.ProxyProtocol{Kind: &inboundpb.ProxyProtocol_Detect_{Detect: &inboundpb.ProxyProtocol_Detect{}}}
	routes := func(r ...*inboundpb.HttpRoute) *inboundpb.ProxyProtocol {
		return &inboundpb.ProxyProtocol{Kind: &inboundpb.ProxyProtocol_Http1_{Http1: &inboundpb.ProxyProtocol_Http1{Routes: r}}}
	}
	return []*inboundpb.Server{
		{}, {Labels: named}, {Protocol: detect}, {Labels: named, Protocol: &inboundpb.ProxyProtocol{}},
		{Labels: named, Protocol: detect, Authorizations: []*inboundpb.Authz{nil}},
		{Labels: named, Protocol: detect, Authorizations: []*inboundpb.Authz{{Labels: named, Networks: []*inboundpb.Network{{}}}}},
		{Labels: named, Protocol: routes(nil)},
		{Labels: named, Protocol: routes(&inboundpb.HttpRoute{})},
	}
}

// A policy that arrives late replaces the default policy. The last policy is kept when the
// controller is lost.
func TestInboundPolicyRecovers(t *testing.T) {
	t.Parallel()
	app := echoing(t)
	addr := freeAddr(t)
	logs := new(safeBuffer)
	c := sidecar.Config{Settings: settingsFor(t, newScript(t).addr)}
	c.Settings.Inbound.Origin, c.Settings.Inbound.DefaultPolicy = fixed(app), settings.AllUnauthenticated
	c.Settings.Control.ProfileInitial = time.Millisecond
	c.Settings.Policy.Controller.Addr, c.Settings.Policy.Workload = addr, "w"
	tn := runLogged(t, c, logs)
	w := newWire(t, dialFrom(t, elsewhere, tn.Inbound))
	first, _, _ := w.ask(t, ask)
	require.Equal(t, "HTTP/1.1 200 OK", first)

	cfg := controller.Config{DefaultInboundPolicy: controller.Deny}
	_, stop := serveController(t, addr, cfg)
	require.Eventually(t, func() bool {
		first, _, _ := w.ask(t, ask)
		return first == "HTTP/1.1 403 Forbidden"
	}, soon, 10*time.Millisecond)
	stop()
	first, _, _ = w.ask(t, ask)
	require.Equal(t, "HTTP/1.1 403 Forbidden", first)
}

// The last policy's routes stay active after an error that ends the watch.
func TestInboundPolicyWatchEnds(t *testing.T) {
	t.Parallel()
	rule := &inboundpb.HttpRoute_Rule{Matches: []*http_route.HttpRouteMatch{
		{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/api"}}},
	}}
	controller := serveGRPC(t, func(s *grpc.Server) {
		inboundpb.RegisterInboundServerPoliciesServer(s, policyFunc{watch: func(s grpc.ServerStreamingServer[inboundpb.Server]) error {
			err := s.Send(&inboundpb.Server{
				Labels: map[string]string{"name": "web"}, Protocol: &inboundpb.ProxyProtocol{Kind: &inboundpb.ProxyProtocol_Detect_{
					Detect: &inboundpb.ProxyProtocol_Detect{HttpRoutes: []*inboundpb.HttpRoute{{
						Metadata: &meta.Metadata{Kind: &meta.Metadata_Default{Default: "api"}}, Rules: []*inboundpb.HttpRoute_Rule{rule},
					}}},
				}},
			})
			return errors.Join(err, status.Error(codes.InvalidArgument, "no further policies"))
		}})
	}, func() {})
	c := sidecar.Config{Settings: settingsFor(t, newScript(t).addr)}
	c.Settings.Inbound.Origin = fixed(echoing(t))
	c.Settings.Policy.Controller.Addr, c.Settings.Policy.Workload = controller, "w"
	tn := runLogged(t, c, io.Discard)
	first, _, _ := newWire(t, dialFrom(t, "127.0.0.1", tn.Inbound)).ask(t, ask)
	require.Equal(t, "HTTP/1.1 200 OK", first)
}

// The policy specifies the timeout for detecting HTTP.
func TestInboundPolicyDetectTimeout(t *testing.T) {
	t.Parallel()
	controller := serveGRPC(t, func(s *grpc.Server) {
		inboundpb.RegisterInboundServerPoliciesServer(s, policyFunc{watch: func(s grpc.ServerStreamingServer[inboundpb.Server]) error {
			defer func() { <-s.Context().Done() }()
			return s.Send(&inboundpb.Server{
				Labels: map[string]string{"name": "db"}, Protocol: &inboundpb.ProxyProtocol{Kind: &inboundpb.ProxyProtocol_Detect_{
					Detect: &inboundpb.ProxyProtocol_Detect{Timeout: durationpb.New(20 * time.Millisecond)},
				}},
			})
		}})
	}, func() {})
	c := sidecar.Config{Settings: settingsFor(t, newScript(t).addr)}
	c.Settings.Inbound.Origin, c.Settings.Inbound.DetectTimeout = fixed(greeter(t, "hello\n")), time.Hour
	c.Settings.Policy.Controller.Addr, c.Settings.Policy.Workload = controller, "w"
	tn := runLogged(t, c, io.Discard)
	newWire(t, dialFrom(t, "127.0.0.1", tn.Inbound)).hear(t, "hello\n")
}

// HTTP/2 needs no detection on a port with HTTP.
func TestInboundPolicyHTTP2(t *testing.T) {
	t.Parallel()
	p := newInboundProxy(t, backend(t, "a"), "servers: [{name: web, port: PORT, proxyProtocol: HTTP/2, accessPolicy: all-unauthenticated}]")
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) {
		return dialFrom(t, elsewhere, p.Inbound), nil
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	rsp, err := (&http.Client{Transport: tr}).Get("http://web/")
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	require.Equal(t, 200, rsp.StatusCode)
	require.Equal(t, 2, rsp.ProtoMajor)
}
