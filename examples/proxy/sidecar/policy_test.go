package sidecar_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/linkerd/linkerd2-proxy-api/go/tls_route"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// policyScript is a policy controller. Each stream receives the current policy and all later ones,
// unless serve replaces this.
type policyScript struct {
	outbound.UnimplementedOutboundPoliciesServer
	addr  string
	serve func(out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error

	mu      sync.Mutex
	current *outbound.OutboundPolicy
	changed chan struct{}
	specs   []*outbound.TrafficSpec
}

func newPolicyScript(t testing.TB) *policyScript {
	t.Helper()
	s := &policyScript{changed: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = listener.Addr().String()
	srv := grpc.NewServer()
	outbound.RegisterOutboundPoliciesServer(srv, s)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.Stop()
		require.NoError(t, <-done)
	})
	return s
}

func (s *policyScript) Watch(in *outbound.TrafficSpec, out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
	s.mu.Lock()
	s.specs = append(s.specs, in)
	s.mu.Unlock()
	if s.serve != nil {
		return s.serve(out)
	}
	var last *outbound.OutboundPolicy
	for {
		s.mu.Lock()
		p, changed := s.current, s.changed
		s.mu.Unlock()
		if p != last {
			if err := out.Send(p); err != nil {
				return err
			}
			last = p
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

func (s *policyScript) set(p *outbound.OutboundPolicy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = p
	close(s.changed)
	s.changed = make(chan struct{})
}

// withPolicies configures a proxy to use the policy controller at addr.
func withPolicies(addr string) func(*sidecar.Config) {
	return func(c *sidecar.Config) {
		c.Policy.Controller.Addr, c.Policy.Workload = addr, `{"ns":"shop","pod":"web-1"}`
	}
}

// policyProxy is a proxy with both controllers, whose application connects to service.
type policyProxy struct {
	*testProxy
	*policyScript
	ctl *script
}

// newPolicyProxy starts a proxy that knows the endpoints of all names in ends.
func newPolicyProxy(t *testing.T, ends map[string][]string, change ...func(*sidecar.Config)) *policyProxy {
	t.Helper()
	p := &policyProxy{policyScript: newPolicyScript(t), ctl: newScript(t)}
	p.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.shop.svc.cluster.local"})
	p.testProxy = newTestProxy(t, p.ctl.addr, append([]func(*sidecar.Config){toService, withPolicies(p.policyScript.addr)}, change...)...)
	answerQueries(t, p.ctl, ends)
	return p
}

// answerQueries sends the endpoints of each name.
func answerQueries(t *testing.T, ctl *script, ends map[string][]string) {
	t.Helper()
	done, answering := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(answering)
		for {
			select {
			case q := <-ctl.asked:
				var all []*destination.WeightedAddr
				for _, addr := range ends[q.target] {
					all = append(all, endpointAt(addr))
				}
				q.add(t, all...) //nolint:testifylint // it only fails where the test is broken
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-answering
	})
}

func shopResource(kind, name string, port uint32) *meta.Metadata {
	group := "gateway.networking.k8s.io"
	if kind == "Service" {
		group = "core"
	}
	return &meta.Metadata{Kind: &meta.Metadata_Resource{Resource: &meta.Resource{Group: group, Kind: kind, Namespace: "shop", Name: name, Port: port}}}
}

// shopService returns the Service name as a backend.
func shopService(name string) *outbound.Backend {
	return &outbound.Backend{
		Metadata: shopResource("Service", name, 80),
		Queue:    &outbound.Queue{Capacity: 100, FailfastTimeout: durationpb.New(soon)},
		Kind: &outbound.Backend_Balancer{Balancer: &outbound.Backend_BalanceP2C{
			Discovery: &outbound.Backend_EndpointDiscovery{Kind: &outbound.Backend_EndpointDiscovery_Dst{
				Dst: &outbound.Backend_EndpointDiscovery_DestinationGet{Path: serviceName(name)},
			}},
			Load: &outbound.Backend_BalanceP2C_PeakEwma_{PeakEwma: &outbound.Backend_BalanceP2C_PeakEwma{
				DefaultRtt: durationpb.New(30 * time.Millisecond), Decay: durationpb.New(10 * time.Second),
			}},
		}},
	}
}

func serviceName(name string) string { return name + ".shop.svc.cluster.local:80" }

// shared returns a distribution by weight.
func shared(weights map[string]uint32) *outbound.HttpRoute_Distribution {
	random := &outbound.HttpRoute_Distribution_RandomAvailable{}
	for name, weight := range weights {
		random.Backends = append(random.Backends, &outbound.HttpRoute_WeightedRouteBackend{
			Weight: weight, Backend: &outbound.HttpRoute_RouteBackend{Backend: shopService(name)},
		})
	}
	return &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// ruleTo returns a rule with one backend.
func ruleTo(name string, change ...func(*outbound.HttpRoute_Rule)) *outbound.HttpRoute_Rule {
	r := &outbound.HttpRoute_Rule{Backends: shared(map[string]uint32{name: 1})}
	for _, f := range change {
		f(r)
	}
	return r
}

func onMatch(m *http_route.HttpRouteMatch) func(*outbound.HttpRoute_Rule) {
	return func(r *outbound.HttpRoute_Rule) { r.Matches = append(r.Matches, m) }
}

func onPrefix(prefix string) func(*outbound.HttpRoute_Rule) {
	return onMatch(&http_route.HttpRouteMatch{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: prefix}}})
}

// withQuery matches requests for /slow with a query parameter.
func withQuery(name string) func(*outbound.HttpRoute_Rule) {
	return onMatch(&http_route.HttpRouteMatch{
		Path:        &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/slow"}},
		QueryParams: []*http_route.QueryParamMatch{{Name: name, Value: &http_route.QueryParamMatch_Regex{Regex: ".*"}}},
	})
}

// shopPolicy returns a Service's policy as linkerd's controller sends it: the same routes for both
// versions of HTTP, and the Service for other connections.
func shopPolicy(accrual *outbound.FailureAccrual, rules ...*outbound.HttpRoute_Rule) *outbound.OutboundPolicy {
	routes := []*outbound.HttpRoute{{Metadata: shopResource("HTTPRoute", "web-route", 0), Rules: rules}}
	return &outbound.OutboundPolicy{
		Metadata: shopResource("Service", "web", 80),
		Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Detect_{Detect: &outbound.ProxyProtocol_Detect{
			Timeout: durationpb.New(10 * time.Second),
			Http1:   &outbound.ProxyProtocol_Http1{Routes: routes, FailureAccrual: accrual},
			Http2:   &outbound.ProxyProtocol_Http2{Routes: routes, FailureAccrual: accrual},
			Opaque:  opaqueTo("web"),
		}}},
	}
}

func opaqueTo(name string, filters ...*outbound.OpaqueRoute_Filter) *outbound.ProxyProtocol_Opaque {
	return &outbound.ProxyProtocol_Opaque{Routes: []*outbound.OpaqueRoute{{
		Metadata: shopResource("TCPRoute", "web-route", 0),
		Rules: []*outbound.OpaqueRoute_Rule{{Filters: filters, Backends: &outbound.OpaqueRoute_Distribution{
			Kind: &outbound.OpaqueRoute_Distribution_FirstAvailable_{FirstAvailable: &outbound.OpaqueRoute_Distribution_FirstAvailable{
				Backends: []*outbound.OpaqueRoute_RouteBackend{{Backend: shopService(name)}},
			}},
		}}},
	}}}
}

// servedBy returns the name of the backend that served a request.
func servedBy(t asking, c *http.Client, url string, header ...string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rsp, err := c.Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	if rsp.StatusCode != http.StatusOK {
		return rsp.Status
	}
	name, _, _ := strings.Cut(string(body), " ")
	return name
}

// Requests are routed by header, path, query parameter, method and host, or match no route.
func TestI2PolicyRoutes(t *testing.T) {
	ends := map[string][]string{}
	for _, name := range []string{"header", "path", "exact", "query", "method", "host", "rest"} {
		ends[serviceName(name)] = []string{backend(t, name)}
	}
	tn := newPolicyProxy(t, ends)
	p := shopPolicy(nil,
		ruleTo("rest", onPrefix("/rest"), onPrefix("/v1")),
		ruleTo("path", onPrefix("/v1/books")),
		ruleTo("exact", onMatch(&http_route.HttpRouteMatch{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Exact{Exact: "/v1/books/1"}}})),
		ruleTo("header", onMatch(&http_route.HttpRouteMatch{Headers: []*http_route.HeaderMatch{
			{Name: "x-canary", Value: &http_route.HeaderMatch_Regex{Regex: "t.*"}},
		}})),
		ruleTo("query", onMatch(&http_route.HttpRouteMatch{
			Path:        &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/v1"}},
			QueryParams: []*http_route.QueryParamMatch{{Name: "page", Value: &http_route.QueryParamMatch_Exact{Exact: "2"}}},
		})),
		ruleTo("method", onMatch(&http_route.HttpRouteMatch{
			Path:   &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/v1"}},
			Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_POST}},
		})),
	)
	detect := p.GetProtocol().GetDetect()
	atHost := &outbound.HttpRoute{
		Hosts: []*http_route.HostMatch{{Match: &http_route.HostMatch_Suffix_{Suffix: &http_route.HostMatch_Suffix{ReverseLabels: []string{"example", "img"}}}}},
		Rules: []*outbound.HttpRoute_Rule{ruleTo("host")},
	}
	detect.Http1.Routes, detect.Http2.Routes = append(detect.Http1.Routes, atHost), append(detect.Http2.Routes, atHost)
	tn.set(p)
	c := tn.client(t)
	for _, tt := range []struct {
		url    string
		header []string
		want   string
	}{
		{"http://web.example/rest", nil, "rest"},
		{"http://web.example/v1/booksx", nil, "rest"},
		{"http://web.example/v1/books/2", nil, "path"},
		{"http://web.example/v1/books/1", nil, "exact"},
		{"http://web.example/v1?page=2", nil, "query"},
		{"http://web.example/elsewhere", []string{"x-canary", "true"}, "header"},
		{"http://web.example/v1", []string{"x-canary", "true"}, "rest"}, // the path decides before the header
		{"http://a.img.example/rest", nil, "host"},
		{"http://web.example/elsewhere", nil, "404 Not Found"},
	} {
		assert.Equal(t, tt.want, servedBy(t, c, tt.url, tt.header...), "%v %v", tt.url, tt.header)
	}
	rsp, err := c.Post("http://web.example/v1", "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	assert.True(t, strings.HasPrefix(string(body), "method "), "%s", body)

	spec := tn.specs[0]
	assert.JSONEq(t, `{"ns":"shop","pod":"web-1"}`, spec.GetSourceWorkload())
	assert.EqualValues(t, 10<<24+9<<16+8<<8+7, spec.GetAddr().GetIp().GetIpv4())
	assert.EqualValues(t, 80, spec.GetAddr().GetPort())
}

// A 90/10 split takes effect after an update. It appears in the tree of layers and in the metrics,
// with the resources' labels.
func TestI2PolicySplit(t *testing.T) {
	t.Parallel()
	tn := newPolicyProxy(t, map[string][]string{serviceName("v1"): {backend(t, "v1")}, serviceName("v2"): {backend(t, "v2")}})
	split := func(v1, v2 uint32) *outbound.OutboundPolicy {
		return shopPolicy(nil, &outbound.HttpRoute_Rule{Backends: shared(map[string]uint32{"v1": v1, "v2": v2})})
	}
	tn.set(split(100, 0))
	c := tn.client(t)
	for range 50 {
		require.Equal(t, "v1", servedBy(t, c, "http://web.example/"))
	}
	tn.set(split(90, 10))
	start := time.Now()
	for servedBy(t, c, "http://web.example/") != "v2" {
		require.Less(t, time.Since(start), soon, "the split has no effect")
	}
	n := map[string]int{}
	const all = 1000
	for range all {
		n[servedBy(t, c, "http://web.example/")]++
	}
	assert.InDelta(t, all/10, n["v2"], all/20)
	assert.Equal(t, all, n["v1"]+n["v2"])

	const parent = `parent_group="core",parent_kind="Service",parent_name="web",parent_namespace="shop",parent_port="80"`
	const route = `route_group="gateway.networking.k8s.io",route_kind="HTTPRoute",route_name="web-route",route_namespace="shop"`
	tn.metrics(t, func(t require.TestingT, metrics string) {
		for _, family := range []string{"outbound_http_route_request_statuses_total", "outbound_http_route_backend_requests_total"} {
			line := lineOf(metrics, family+"{", parent, route)
			assert.NotEmpty(t, line, family)
		}
		assert.NotEmpty(t, lineOf(metrics, "outbound_http_route_backend_requests_total{", parent, route,
			`backend_group="core",backend_kind="Service",backend_name="v2",backend_namespace="shop",backend_port="80"`))
		for _, backend := range []string{"v1", "v2"} {
			assert.NotEmpty(t, lineOf(metrics, "outbound_http_balancer_endpoints{", parent,
				`backend_group="core",backend_kind="Service",backend_name="`+backend+`",backend_namespace="shop",backend_port="80"`))
		}
		assert.Empty(t, lineOf(metrics, "route_request_total{"), "those are the metrics of service profiles")
	})
	_, tree := get(t, h1Client(t, tn.Admin), "http://"+tn.Admin+"/stack")
	assert.Contains(t, tree, "Service.shop.web:80")
	assert.Contains(t, tree, serviceName("v1")+" 90")
}

// lineOf returns the first line in metrics with this prefix that contains all parts.
func lineOf(metrics, prefix string, parts ...string) string {
	for line := range strings.Lines(metrics) {
		ok := strings.HasPrefix(line, prefix)
		for _, p := range parts {
			ok = ok && strings.Contains(line, p)
		}
		if ok {
			return line
		}
	}
	return ""
}

// An endpoint is ejected after the policy's number of failures, and gets requests again when it has
// recovered.
func TestPolicyFailureAccrual(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	var came atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		came.Add(1)
		if failing.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "bad ")
	}))
	t.Cleanup(srv.Close)
	tn := newPolicyProxy(t, map[string][]string{serviceName("web"): {backend(t, "good"), srv.Listener.Addr().String()}})
	accrual := &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_ConsecutiveFailures_{ConsecutiveFailures: &outbound.FailureAccrual_ConsecutiveFailures{
		MaxFailures: 2, Backoff: &outbound.ExponentialBackoff{
			MinBackoff: durationpb.New(time.Second), MaxBackoff: durationpb.New(2 * time.Second), JitterRatio: 0,
		},
	}}}
	failing.Store(true)
	soonForgotten := func(r *outbound.HttpRoute_Rule) { // the balancer avoids an endpoint that failed until the decay has passed
		r.GetBackends().GetRandomAvailable().GetBackends()[0].GetBackend().GetBackend().GetBalancer().GetPeakEwma().Decay = durationpb.New(20 * time.Millisecond)
	}
	tn.set(shopPolicy(accrual, ruleTo("web", soonForgotten)))
	c := tn.client(t)
	failures, began := 0, time.Now()
	for came.Load() < 2 {
		if servedBy(t, c, "http://web.example/") != "good" {
			failures++
		}
	}
	require.Equal(t, 2, failures)
	for range 100 {
		from, requests := servedBy(t, c, "http://web.example/"), came.Load()
		if time.Since(began) > time.Second {
			break // the backoff may have ended
		}
		require.Equal(t, "good", from)
		require.EqualValues(t, 2, requests)
	}
	failing.Store(false)
	require.Eventually(t, func() bool { return servedBy(t, c, "http://web.example/") == "bad" }, soon, time.Millisecond)
}

// Retries and timeouts come from the route, or from the request itself.
func TestPolicyRetriesAndTimeouts(t *testing.T) {
	addr, came := flaky(t)
	tn := newPolicyProxy(t, map[string][]string{serviceName("web"): {addr}})
	limits := func(set func(*http_route.Timeouts)) func(*outbound.HttpRoute_Rule) {
		return func(r *outbound.HttpRoute_Rule) {
			r.Timeouts = &http_route.Timeouts{}
			set(r.GetTimeouts())
		}
	}
	retry := func(r *outbound.HttpRoute_Rule) {
		r.Retry = &outbound.HttpRoute_Retry{MaxRetries: 3, MaxRequestBytes: 1000, Conditions: &outbound.HttpRoute_Retry_Conditions{
			StatusRanges: []*outbound.HttpRoute_Retry_Conditions_StatusRange{{Start: 500, End: 599}},
		}}
	}
	short := durationpb.New(50 * time.Millisecond)
	tn.set(shopPolicy(nil,
		ruleTo("web", onPrefix("/again"), retry),
		ruleTo("web", onPrefix("/never"), retry),
		ruleTo("web", onPrefix("/slow"), limits(func(l *http_route.Timeouts) { l.Request = short })),
		ruleTo("web", withQuery("response"), limits(func(l *http_route.Timeouts) { l.Response = short })),
		ruleTo("web", withQuery("retry"), func(r *outbound.HttpRoute_Rule) {
			retry(r)
			r.Retry.MaxRetries, r.Retry.Timeout = 1, short
		}),
		ruleTo("web", onPrefix("/"), withQuery("any"), func(r *outbound.HttpRoute_Rule) { r.AllowL5DRequestHeaders = true }),
		ruleTo("web", onPrefix("/closed")),
	))
	c := tn.client(t)
	call := func(path string, header ...string) (int, int64) {
		t.Helper()
		before := came.Load()
		req, err := http.NewRequest(http.MethodPost, "http://web.example"+path, strings.NewReader("hello"))
		require.NoError(t, err)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		rsp, err := c.Do(req)
		require.NoError(t, err)
		defer rsp.Body.Close()
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		if rsp.StatusCode == http.StatusOK {
			require.Equal(t, "hello", string(body))
		}
		return rsp.StatusCode, came.Load() - before
	}
	for _, tt := range []struct {
		path    string
		header  []string
		status  int
		arrived int64
	}{
		{"/again", nil, 200, 2},
		{"/never", nil, 503, 4},
		{"/slow", nil, 504, 0},
		{"/slow?response", nil, 504, 0},
		{"/late?retry", nil, 200, 0}, // the last attempt has no limit
		{"/slow?any", []string{"l5d-timeout", "50ms"}, 504, 0},
		{"/slow?any", []string{"l5d-response-timeout", "50ms"}, 504, 0},
		{"/late?any", []string{"l5d-retry-timeout", "50ms"}, 200, 0},
		{"/other", nil, 503, 1},
		{"/other", nil, 200, 1},
		{"/other", []string{"l5d-retry-http", "503"}, 200, 2},
		{"/other", []string{"l5d-retry-http", "5xx", "l5d-retry-limit", "5"}, 200, 2},
		{"/other", []string{"l5d-retry-http", "500-502"}, 503, 1},
		{"/other", nil, 200, 1},
		{"/closed", []string{"l5d-retry-http", "5xx"}, 503, 1}, // the route does not allow it
	} {
		status, arrived := call(tt.path, tt.header...)
		assert.Equal(t, tt.status, status, "%v", tt)
		assert.Equal(t, tt.arrived, arrived, "%v", tt)
	}
	tn.metrics(t, func(t require.TestingT, metrics string) {
		for _, family := range []string{"requests", "successes", "limit_exceeded"} {
			line := lineOf(metrics, "outbound_http_route_retry_"+family+"_total{", `route_name="web-route"`)
			assert.NotEmpty(t, line, family)
			assert.False(t, strings.HasSuffix(line, " 0\n"), line)
		}
	})
}

// A gRPC policy routes by service and method, retries by the status in trailers, and injects
// failures.
func TestPolicyGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	e := &echo{left: make(chan struct{}, 20)}
	srv.RegisterService(e.desc(), e)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	tn := newPolicyProxy(t, map[string][]string{serviceName("echo"): {l.Addr().String()}})
	distribution := &outbound.GrpcRoute_Distribution{Kind: &outbound.GrpcRoute_Distribution_FirstAvailable_{
		FirstAvailable: &outbound.GrpcRoute_Distribution_FirstAvailable{Backends: []*outbound.GrpcRoute_RouteBackend{{Backend: shopService("echo")}}},
	}}
	matches := func(service, method string) []*grpc_route.GrpcRouteMatch {
		return []*grpc_route.GrpcRouteMatch{{Rpc: &grpc_route.GrpcRpcMatch{Service: service, Method: method}}}
	}
	tn.set(&outbound.OutboundPolicy{
		Metadata: shopResource("Service", "echo", 80),
		Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Grpc_{Grpc: &outbound.ProxyProtocol_Grpc{
			Routes: []*outbound.GrpcRoute{{Metadata: shopResource("GRPCRoute", "echo", 0), Rules: []*outbound.GrpcRoute_Rule{
				{Matches: matches("test.Echo", "Flaky"), Backends: distribution, Retry: &outbound.GrpcRoute_Retry{
					MaxRetries: 2, MaxRequestBytes: 1000, Conditions: &outbound.GrpcRoute_Retry_Conditions{Unavailable: true},
				}},
				{Matches: matches("test.Echo", "Unary"), Backends: distribution, Filters: []*outbound.GrpcRoute_Filter{
					{Kind: &outbound.GrpcRoute_Filter_FailureInjector{FailureInjector: &grpc_route.GrpcFailureInjector{Code: 7, Message: "not today"}}},
				}},
			}}},
		}}},
	})
	conn, err := grpc.NewClient("passthrough:///"+tn.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-say", "hi")
	out := new(wrapperspb.StringValue)
	e.fails.Store(2)
	require.NoError(t, conn.Invoke(ctx, "/test.Echo/Flaky", wrapperspb.String("flaky"), out))
	assert.True(t, strings.HasPrefix(out.GetValue(), "flaky hi"), out.GetValue())
	e.fails.Store(3)
	assert.Equal(t, codes.Unavailable, status.Code(conn.Invoke(ctx, "/test.Echo/Flaky", wrapperspb.String("flaky"), out)))
	err = conn.Invoke(ctx, "/test.Echo/Unary", wrapperspb.String("x"), out)
	assert.Equal(t, codes.PermissionDenied, status.Code(err))
	assert.Contains(t, status.Convert(err).Message(), "not today")
	assert.Equal(t, codes.NotFound, status.Code(conn.Invoke(ctx, "/test.Other/Unary", wrapperspb.String("x"), out)), "no route")

	tn.metrics(t, func(t require.TestingT, metrics string) {
		for _, status := range []string{"OK", "UNAVAILABLE", "PERMISSION_DENIED"} {
			assert.NotEmpty(t, lineOf(metrics, "outbound_grpc_route_request_statuses_total{", `grpc_status="`+status+`"`,
				`parent_name="echo"`, `route_kind="GRPCRoute",route_name="echo"`), status)
		}
		assert.NotEmpty(t, lineOf(metrics, "outbound_grpc_route_backend_requests_total{", `backend_name="echo"`, `route_kind="GRPCRoute"`))
		assert.NotEmpty(t, lineOf(metrics, "outbound_grpc_route_retry_requests_total{", `route_kind="GRPCRoute"`))
	})
}

func TestPolicyFilters(t *testing.T) {
	received := make(chan http.Header, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received <- r.Header
		w.Header().Set("X-Origin", "web")
	}))
	t.Cleanup(srv.Close)
	tn := newPolicyProxy(t, map[string][]string{serviceName("web"): {srv.Listener.Addr().String()}})
	headers := func(name, value string) *http_types.Headers {
		return &http_types.Headers{Headers: []*http_types.Headers_Header{{Name: name, Value: []byte(value)}}}
	}
	filter := func(kind *outbound.HttpRoute_Filter) func(*outbound.HttpRoute_Rule) {
		return func(r *outbound.HttpRoute_Rule) { r.Filters = append(r.Filters, kind) }
	}
	tn.set(shopPolicy(nil,
		ruleTo("web", onPrefix("/headers"),
			filter(&outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: &http_route.RequestHeaderModifier{
				Add: headers("x-add", "1"), Set: headers("x-set", "2"), Remove: []string{"x-remove"},
			}}}),
			filter(&outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_ResponseHeaderModifier{ResponseHeaderModifier: &http_route.ResponseHeaderModifier{
				Set: headers("x-answer", "3"), Remove: []string{"x-origin"},
			}}})),
		ruleTo("web", onPrefix("/fail"), filter(&outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_FailureInjector{
			FailureInjector: &http_route.HttpFailureInjector{Status: 418, Message: "teapot"},
		}})),
		ruleTo("web", onPrefix("/old"), filter(&outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_Redirect{Redirect: &http_route.RequestRedirect{
			Host: "new.example", Status: 308, Path: &http_route.PathModifier{Replace: &http_route.PathModifier_Prefix{Prefix: "/new"}},
		}}})),
		&outbound.HttpRoute_Rule{
			Matches:  []*http_route.HttpRouteMatch{{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/missing"}}}},
			Backends: &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_Empty_{Empty: &outbound.HttpRoute_Distribution_Empty{}}},
		},
		&outbound.HttpRoute_Rule{
			Matches: []*http_route.HttpRouteMatch{{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/forward"}}}},
			Backends: &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_FirstAvailable_{FirstAvailable: &outbound.HttpRoute_Distribution_FirstAvailable{
				Backends: []*outbound.HttpRoute_RouteBackend{{
					Backend: &outbound.Backend{Kind: &outbound.Backend_Forward{Forward: endpointAt(srv.Listener.Addr().String())}},
					Filters: []*outbound.HttpRoute_Filter{{Kind: &outbound.HttpRoute_Filter_RequestHeaderModifier{
						RequestHeaderModifier: &http_route.RequestHeaderModifier{Set: headers("x-backend", "4")},
					}}},
				}},
			}}},
		},
	))
	c := tn.client(t)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	call := func(path string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://web.example"+path, nil)
		require.NoError(t, err)
		req.Header = http.Header{"X-Remove": {"1"}, "X-Add": {"0"}, "X-Set": {"0"}}
		rsp, err := c.Do(req)
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		return rsp
	}
	rsp := call("/headers")
	assert.Equal(t, "3", rsp.Header.Get("X-Answer"))
	assert.NotContains(t, rsp.Header, "X-Origin")
	h := <-received
	assert.Equal(t, []string{"0", "1"}, h["X-Add"])
	assert.Equal(t, []string{"2"}, h["X-Set"])
	assert.NotContains(t, h, "X-Remove")

	assert.Equal(t, 418, call("/fail").StatusCode)
	rsp = call("/old/a?b=1")
	assert.Equal(t, 308, rsp.StatusCode)
	assert.Equal(t, "http://new.example/new/a?b=1", rsp.Header.Get("Location"))
	assert.Equal(t, 503, call("/missing").StatusCode)
	assert.Equal(t, 200, call("/forward").StatusCode)
	assert.Equal(t, []string{"4"}, (<-received)["X-Backend"])
	assert.Empty(t, received)
}

// greeter is a server that speaks first.
func greeter(t *testing.T, greeting string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, greeting)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		group.Wait()
	})
	return l.Addr().String()
}

// An opaque policy forwards connections immediately, and a filter closes them.
func TestPolicyOpaque(t *testing.T) {
	ends := map[string][]string{serviceName("v1"): {greeter(t, "one")}, serviceName("v2"): {greeter(t, "two")}}
	for situation, tt := range map[string]struct {
		opaque *outbound.ProxyProtocol_Opaque
		want   string
	}{
		"v1": {opaqueTo("v1"), "one"}, "v2": {opaqueTo("v2"), "two"},
		"forbidden": {opaqueTo("v1", &outbound.OpaqueRoute_Filter{Kind: &outbound.OpaqueRoute_Filter_Forbidden{Forbidden: &opaque_route.Forbidden{}}}), ""},
	} {
		t.Run(situation, func(t *testing.T) {
			tn := newPolicyProxy(t, ends)
			tn.set(&outbound.OutboundPolicy{
				Metadata: shopResource("Service", "web", 80),
				Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Opaque_{Opaque: tt.opaque}},
			})
			conn, err := net.Dial("tcp", tn.Addr)
			if tt.want == "" && err != nil {
				return // the reset may arrive before Dial returns
			}
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
			got, err := io.ReadAll(conn)
			if tt.want != "" {
				require.NoError(t, err)
			}
			assert.Equal(t, tt.want, string(got))
		})
	}
}

// A TLS policy selects the backend by the client's server name, which is passed on to the backend.
func TestPolicyTLSServerName(t *testing.T) {
	named := func(name string) string {
		srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, name+" "+r.TLS.ServerName)
		}))
		t.Cleanup(srv.Close)
		return srv.Listener.Addr().String()
	}
	tn := newPolicyProxy(t, map[string][]string{serviceName("v1"): {named("v1")}, serviceName("v2"): {named("v2")}})
	route := func(backend string, sni *tls_route.SniMatch) *outbound.TlsRoute {
		return &outbound.TlsRoute{Snis: []*tls_route.SniMatch{sni}, Rules: []*outbound.TlsRoute_Rule{{Backends: &outbound.TlsRoute_Distribution{
			Kind: &outbound.TlsRoute_Distribution_FirstAvailable_{FirstAvailable: &outbound.TlsRoute_Distribution_FirstAvailable{
				Backends: []*outbound.TlsRoute_RouteBackend{{Backend: shopService(backend)}},
			}},
		}}}}
	}
	tn.set(&outbound.OutboundPolicy{Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Tls_{Tls: &outbound.ProxyProtocol_Tls{
		Routes: []*outbound.TlsRoute{
			route("v1", &tls_route.SniMatch{Match: &tls_route.SniMatch_Exact{Exact: "one.example"}}),
			route("v2", &tls_route.SniMatch{Match: &tls_route.SniMatch_Suffix_{Suffix: &tls_route.SniMatch_Suffix{ReverseLabels: []string{"two"}}}}),
		},
	}}}})
	c := tn.client(t)
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	for host, want := range map[string]string{"one.example": "v1 one.example", "a.two": "v2 a.two"} {
		_, body := get(t, c, "https://"+host+"/")
		assert.Equal(t, want, body)
	}
	_, err := c.Get("https://three.example/")
	require.Error(t, err)
}

// A profile with routes or a split takes precedence.
func TestPolicyPrecedence(t *testing.T) {
	tn := newPolicyProxy(t, map[string][]string{serviceName("v1"): {backend(t, "profile")}, serviceName("v2"): {backend(t, "policy")}})
	tn.set(shopPolicy(nil, ruleTo("v2")))
	c := tn.client(t)
	require.Equal(t, "policy", servedBy(t, c, "http://web.example/"))
	p := &destination.DestinationProfile{
		FullyQualifiedName: "web.shop.svc.cluster.local", DstOverrides: []*destination.WeightedDst{{Authority: serviceName("v1"), Weight: 1}},
	}
	tn.ctl.profile(service, p)
	require.Eventually(t, func() bool { return servedBy(t, c, "http://web.example/") == "profile" }, soon, time.Millisecond)
	tn.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: p.GetFullyQualifiedName()})
	require.Eventually(t, func() bool { return servedBy(t, c, "http://web.example/") == "policy" }, soon, time.Millisecond)
}

// Without a usable policy controller, requests follow profiles and discovery, with one warning.
func TestPolicyControllerFails(t *testing.T) {
	t.Parallel()
	silent := func(out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
		<-out.Context().Done()
		return out.Context().Err()
	}
	full := os.Getenv("GOTOWER_TESTS") == "full" // the first requests wait for a policy for 9.6 s
	for situation, tt := range map[string]struct {
		serve    func(out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error
		warnings int
	}{
		"unimplemented": {func(grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
			return status.Error(codes.Unimplemented, "old")
		}, 1},
		"not found": {func(grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
			return status.Error(codes.NotFound, "none")
		}, 0},
		"broken": {func(grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
			return status.Error(codes.Internal, "bug")
		}, 1},
		"silent": {silent, 1},
		"nonsense": {func(out grpc.ServerStreamingServer[outbound.OutboundPolicy]) error {
			if err := out.Send(&outbound.OutboundPolicy{}); err != nil {
				return err
			}
			return silent(out)
		}, 1},
		"frozen":     {nil, 1},
		"not served": {nil, 1},
	} {
		t.Run(situation, func(t *testing.T) {
			t.Parallel()
			var addr string
			switch situation {
			case "frozen": // accepts connections and reads nothing
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				t.Cleanup(func() { l.Close() })
				addr = l.Addr().String()
			case "not served":
				addr = "127.0.0.1:1"
			default:
				s := newPolicyScript(t)
				s.serve = tt.serve
				addr = s.addr
			}
			ctl := newScript(t)
			ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.shop.svc.cluster.local"})
			log := new(warnings)
			wait := soon
			if situation == "silent" || situation == "frozen" || situation == "not served" { // the time without a policy
				wait = time.Millisecond
				if full {
					wait = 12 * time.Second
				}
			}
			tn := newLoggedProxy(t, log, ctl.addr, toService, withPolicies(addr), func(c *sidecar.Config) { c.Control.ProfileInitial = wait })
			answerQueries(t, ctl, map[string][]string{serviceName("web"): {backend(t, "web")}})
			c := tn.client(t)
			if wait < soon && !full { // the profile arrives after ProfileInitial, and then takes effect
				for _, header := range [][]string{nil, {"l5d-dst-override", "other"}} {
					require.Eventually(t, func() bool {
						return servedBy(t, c, "http://web.example/", header...) == "web"
					}, soon, time.Millisecond)
				}
			}
			for range 3 {
				require.Equal(t, "web", servedBy(t, c, "http://web.example/"))
				require.Equal(t, "web", servedBy(t, c, "http://web.example/", "l5d-dst-override", "other"))
			}
			assert.Equal(t, tt.warnings, log.count("policy controller"), log.String())
		})
	}
}

type warnings struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// count returns how many warnings contain text.
func (w *warnings) count(text string) (n int) {
	for line := range strings.Lines(w.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// newLoggedProxy is newTestProxy with a log.
func newLoggedProxy(t *testing.T, log io.Writer, controllerAddr string, change ...func(*sidecar.Config)) *testProxy {
	t.Helper()
	c := sidecar.Config{Settings: settingsFor(t, controllerAddr)}
	for _, f := range change {
		f(&c)
	}
	p, err := sidecar.New(c, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &testProxy{Proxy: p, controllerAddr: controllerAddr}
}

// examples/destination can be the policy controller: its file contains a split, and an update
// changes it within a second.
func TestPolicyDestinationController(t *testing.T) {
	t.Parallel()
	v1, v2 := backend(t, "v1"), backend(t, "v2")
	config := func(weight1, weight2 int) controller.Config {
		cfg, err := controller.Parse("test.yaml", fmt.Appendf(nil, `
destinations:
  web.shop.svc.cluster.local:80:
    policy:
      httpRoutes:
        - name: split
          rules:
            - matches: [{path: {value: /split}}]
              backendRefs:
                - {name: v1.shop.svc.cluster.local, port: 80, weight: %d}
                - {name: v2.shop.svc.cluster.local, port: 80, weight: %d}
              retry: {conditions: [5xx], limit: 2}
              timeouts: {request: 10s}
            - matches: [{path: {value: /old}}]
              filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301, path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
      failureAccrual: {maxFailures: 7}
  v1.shop.svc.cluster.local:80: {endpoints: [{addr: "%s"}]}
  v2.shop.svc.cluster.local:80: {endpoints: [{addr: "%s"}]}
`, weight1, weight2, v1, v2))
		require.NoError(t, err)
		return cfg
	}
	ctl := controller.New(nil)
	require.NoError(t, ctl.Set(config(100, 0)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctl.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	log := new(warnings)
	tn := newLoggedProxy(t, log, l.Addr().String(), withPolicies(l.Addr().String()))
	c := tn.client(t)
	const url = "http://web.shop.svc.cluster.local"
	for range 20 {
		require.Equal(t, "v1", servedBy(t, c, url+"/split"))
	}
	require.NoError(t, ctl.Set(config(90, 10)))
	start := time.Now()
	n := map[string]int{}
	for n["v2"] == 0 {
		n[servedBy(t, c, url+"/split")]++
		require.Less(t, time.Since(start), soon, "the split has no effect")
	}
	for range 1000 {
		n[servedBy(t, c, url+"/split")]++
	}
	assert.Greater(t, n["v1"], 5*n["v2"])
	assert.Equal(t, "404 Not Found", servedBy(t, c, url+"/other"))
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	assert.Equal(t, "301 Moved Permanently", servedBy(t, c, url+"/old/x"))
	assert.Zero(t, log.count("polic"), log.String())
}
