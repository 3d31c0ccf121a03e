package controller

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/wire"
)

// policyClients are clients of a controller with a configuration.
type policyClients struct {
	*Controller
	out outbound.OutboundPoliciesClient
	in  inbound.InboundServerPoliciesClient
}

// withPolicies serves a file.
func withPolicies(t *testing.T, file string) policyClients {
	t.Helper()
	c := New(nil)
	cfg, err := Parse("f.yaml", []byte(file))
	require.NoError(t, err)
	set(t, c, cfg)
	conn := connected(t, c)
	return policyClients{c, outbound.NewOutboundPoliciesClient(conn), inbound.NewInboundServerPoliciesClient(conn)}
}

func (c policyClients) load(t *testing.T, file string) {
	t.Helper()
	cfg, err := Parse("f.yaml", []byte(file))
	require.NoError(t, err)
	set(t, c.Controller, cfg)
}

func within20s(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func named(authority string) *outbound.TrafficSpec {
	return &outbound.TrafficSpec{SourceWorkload: "ns:pod", Target: &outbound.TrafficSpec_Authority{Authority: authority}}
}

func byAddr(s string) *outbound.TrafficSpec {
	a := wire.TCP(netip.MustParseAddrPort(s))
	return &outbound.TrafficSpec{Target: &outbound.TrafficSpec_Addr{Addr: a}}
}

// expected parses a message in the text format.
func expected[M any, P interface {
	*M
	proto.Message
}](t *testing.T, text string) P {
	t.Helper()
	msg := P(new(M))
	require.NoError(t, prototext.Unmarshal([]byte(text), msg), text)
	return msg
}

// balancer is the text of the backend of a Service.
func balancer(service, path string) string {
	return `metadata {resource {group: "core" kind: "Service" name: "` + service + `" namespace: "ns" port: 80}}
		queue {capacity: 100 failfast_timeout {seconds: 3}}
		balancer {discovery {dst {path: "` + path + `"}} peak_ewma {default_rtt {nanos: 30000000} decay {seconds: 10}}}`
}

const (
	service = "web.ns.svc.cluster.local"
	isWeb   = `metadata {resource {group: "core" kind: "Service" name: "web" namespace: "ns" port: 80}} `
)

// own is the text of the backend of the Service under test.
func own() string { return balancer("web", service+":80") }

// defaults are the texts of the default routes.
func defaultHTTP() string {
	return `routes {metadata {default: "http"} rules {matches {path {prefix: "/"}} backends {first_available {backends {backend {` + own() + `}}}}}}`
}

func defaultOpaque() string {
	return `routes {metadata {default: "opaq"} rules {backends {first_available {backends {backend {` + own() + `}}}}}}`
}

func detected(http, opaque string) string {
	return isWeb + `protocol {detect {timeout {seconds: 10} opaque {` + opaque + `} http1 {` + http + `} http2 {` + http + `}}}`
}

// Each field of an outbound policy reaches a client.
func TestOutboundPolicyMessages(t *testing.T) {
	route := func(rule string) string {
		return `routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "HTTPRoute" name: "r"}} ` + rule + `}`
	}
	first := `backends {first_available {backends {backend {` + own() + `}}}}`
	all := `matches {path {prefix: "/"}}`
	for _, c := range []struct{ name, policy, want string }{
		{"none", ``, detected(defaultHTTP(), defaultOpaque())},
		{"empty", `policy: {}`, detected(defaultHTTP(), defaultOpaque())},
		{"opaque profile", `profile: {opaque: true}`, isWeb + `protocol {opaque {` + defaultOpaque() + `}}`},
		{"opaque", `policy: {proxyProtocol: opaque}`, isWeb + `protocol {opaque {` + defaultOpaque() + `}}`},
		{"HTTP/1", `policy: {proxyProtocol: HTTP/1}`, isWeb + `protocol {http1 {` + defaultHTTP() + `}}`},
		{"HTTP/2", `policy: {proxyProtocol: HTTP/2}`, isWeb + `protocol {http2 {` + defaultHTTP() + `}}`},
		{"gRPC", `policy: {proxyProtocol: gRPC}`, isWeb + `protocol {grpc {routes {metadata {default: "grpc"} rules {` + first + `}}}}`},
		{"TLS", `policy: {proxyProtocol: TLS}`, isWeb + `protocol {tls {routes {metadata {default: "tls"} rules {` + first + `}}}}`},
		{
			"matches", `policy: {httpRoutes: [{name: r, hostnames: [a.test, "*.b.test"], rules: [{matches: [
				{path: {value: /p}, method: GET}, {path: {type: Exact, value: /e}, method: PURGE}, {path: {type: RegularExpression, value: "/r.*"}},
				{headers: [{name: X-A, value: "1"}, {type: RegularExpression, name: b, value: ".+"}],
				 queryParams: [{name: q, value: "1"}, {type: RegularExpression, name: v, value: "[0-9]"}]}]}]}]}`,
			detected(route(`hosts {exact: "a.test"} hosts {suffix {reverse_labels: ["test", "b"]}} rules {`+first+`
				matches {path {prefix: "/p"} method {registered: GET}} matches {path {exact: "/e"} method {unregistered: "PURGE"}}
				matches {path {regex: "/r.*"}}
				matches {path {prefix: "/"} headers {name: "x-a" exact: "1"} headers {name: "b" regex: ".+"}
					query_params {name: "q" exact: "1"} query_params {name: "v" regex: "[0-9]"}}}`), defaultOpaque()),
		},
		{
			"filters", `policy: {httpRoutes: [{name: r, rules: [{filters: [
				{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: A, value: b}], add: [{name: c, value: d}], remove: [E]}},
				{type: ResponseHeaderModifier, responseHeaderModifier: {remove: [f]}},
				{type: RequestRedirect, requestRedirect: {scheme: https, hostname: h.test, port: 8443, statusCode: 307, path: {type: ReplacePrefixMatch, replacePrefixMatch: /n}}},
				{type: RequestRedirect, requestRedirect: {path: {replaceFullPath: /f}}}]}]}]}`,
			detected(route(`rules {`+all+first+`
				filters {request_header_modifier {set {headers {name: "a" value: "b"}} add {headers {name: "c" value: "d"}} remove: "e"}}
				filters {response_header_modifier {remove: "f"}}
				filters {redirect {scheme {registered: HTTPS} host: "h.test" port: 8443 status: 307 path {prefix: "/n"}}}
				filters {redirect {status: 302 path {full: "/f"}}}}`), defaultOpaque()),
		},
		{
			"backends", `policy: {httpRoutes: [{name: r, rules: [{backendRefs: [{name: web.ns.svc.cluster.local, weight: 90},
				{name: next.ns.svc.cluster.local, port: 80, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x]}}]},
				{name: none.test, weight: 0}]}]}]}`,
			detected(route(`rules {`+all+`backends {random_available {
				backends {weight: 90 backend {backend {`+own()+`}}}
				backends {weight: 1 backend {filters {request_header_modifier {remove: "x"}} backend {`+balancer("next", "next.ns.svc.cluster.local:80")+`}}}
				backends {backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
					filters {failure_injector {status: 500 message: "destination none.test:80 does not exist"}}}}
				}}}`), defaultOpaque()),
		},
		{
			"timeouts and retries", `policy: {httpRoutes: [{name: r, rules: [{timeouts: {request: 10s, backendRequest: 2s, idle: 1m},
				retry: {conditions: [5xx, gateway-error, 503, 507-511], limit: 3, timeout: 1s}}, {retry: {conditions: [500]}}]}]}`,
			detected(route(`rules {`+all+first+` timeouts {request {seconds: 10} response {seconds: 2} idle {seconds: 60}} requestTimeout {seconds: 2}
				retry {max_retries: 3 max_request_bytes: 65536 timeout {seconds: 1} backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}
					conditions {status_ranges {start: 500 end: 599} status_ranges {start: 502 end: 504} status_ranges {start: 503 end: 503} status_ranges {start: 507 end: 511}}}}
				rules {`+all+first+` retry {max_retries: 1 max_request_bytes: 65536 backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}
					conditions {status_ranges {start: 500 end: 500}}}}`), defaultOpaque()),
		},
		{
			"gRPC routes", `policy: {grpcRoutes: [{name: r, hostnames: [a.test], rules: [{matches: [{method: {service: s.S, method: M}, headers: [{name: h, value: v}]}, {}],
				filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x]}}], backendRefs: [{name: none.test}], timeouts: {request: 1s},
				retry: {conditions: [cancelled, deadline-exceeded, resource-exhausted, internal, unavailable]}}, {}]}]}`,
			isWeb + `protocol {grpc {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "GRPCRoute" name: "r"}} hosts {exact: "a.test"}
				rules {matches {rpc {service: "s.S" method: "M"} headers {name: "h" exact: "v"}} matches {rpc {}}
					filters {request_header_modifier {remove: "x"}} timeouts {request {seconds: 1}}
					backends {random_available {backends {weight: 1 backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
						filters {failure_injector {code: 14 message: "destination none.test:80 does not exist"}}}}}}
					retry {max_retries: 1 max_request_bytes: 65536 backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}
						conditions {cancelled: true deadine_exceeded: true resource_exhausted: true internal: true unavailable: true}}}
				rules {matches {rpc {}} ` + first + `}}}}`,
		},
		{
			"TLS routes", `policy: {tlsRoutes: [{name: r, hostnames: [a.test, "*.b.test"], rules: [{backendRefs: [{name: web.ns.svc.cluster.local}, {name: none.test}]}]}]}`,
			isWeb + `protocol {tls {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "TLSRoute" name: "r"}}
				snis {exact: "a.test"} snis {suffix {reverse_labels: ["test", "b"]}} rules {backends {random_available {
					backends {weight: 1 backend {backend {` + own() + `}}}
					backends {weight: 1 backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
						filters {invalid {message: "destination none.test:80 does not exist"}}}}}}}}}}`,
		},
		{
			"TCP routes", `policy: {tcpRoutes: [{name: r, rules: [{backendRefs: [{name: web.ns.svc.cluster.local, weight: 2}, {name: none.test}]}]}]}`,
			detected(defaultHTTP(), `routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "TCPRoute" name: "r"}} rules {backends {random_available {
					backends {weight: 2 backend {backend {`+own()+`}}}
					backends {weight: 1 backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
						filters {invalid {message: "destination none.test:80 does not exist"}}}}}}}}`),
		},
		{
			"failure accrual", `policy: {proxyProtocol: HTTP/1, failureAccrual: {}}`,
			isWeb + `protocol {http1 {` + defaultHTTP() + ` failure_accrual {consecutive_failures {max_failures: 7
				backoff {min_backoff {seconds: 1} max_backoff {seconds: 60} jitter_ratio: 0.5}}}}}`,
		},
		{
			"success rate", `policy: {proxyProtocol: HTTP/2, failureAccrual: {maxFailures: 3, minPenalty: 2s, maxPenalty: 4s, jitterRatio: 0,
				successRateThreshold: 0.8, successRateWindow: 20s, successRateMinRequests: 9, minReadyEndpoints: 1}}`,
			isWeb + `protocol {http2 {` + defaultHTTP() + ` failure_accrual {ejection {min_ready_endpoints: 1} unified {success_rate_threshold: 0.8 decay {seconds: 20}
				min_requests: 9 max_consecutive_failures: 3 backoff {min_backoff {seconds: 2} max_backoff {seconds: 4}}}}}}`,
		},
		{
			"load biaser", `policy: {proxyProtocol: HTTP/1, loadBiaser: {penalty: 7s}}`,
			isWeb + `protocol {http1 {` + strings.Replace(defaultHTTP(), `peak_ewma {default_rtt {nanos: 30000000} decay {seconds: 10}}`,
				`penalty_peak_ewma {default_rtt {nanos: 30000000} decay {seconds: 10} penalty {seconds: 7} max_retry_after {seconds: 30} penalty_decay {seconds: 10}}`, 1) + `}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			clients := withPolicies(t, "destinations:\n  "+service+":\n    "+strings.ReplaceAll(c.policy, "\t", " ")+"\n  next.ns.svc.cluster.local: {}\n")
			want := expected[outbound.OutboundPolicy](t, c.want)
			got, err := clients.out.Get(within20s(t), named(service))
			require.NoError(t, err)
			same(t, want, got)
			stream, err := clients.out.Watch(within20s(t), named(service+":80"))
			require.NoError(t, err)
			same(t, want, recv(t, stream))
		})
	}
}

// Each field of an inbound policy reaches a client.
func TestInboundPolicyMessages(t *testing.T) {
	const (
		route = `routes {metadata {default: "default"} rules {}}`
		web   = `labels {key: "group" value: "policy.linkerd.io"} labels {key: "kind" value: "server"} labels {key: "name" value: "web"} `
	)
	networks := func(cidrs ...string) string {
		var b strings.Builder
		for _, cidr := range cidrs {
			p := netip.MustParsePrefix(cidr)
			b.WriteString("networks {net {" + prototext.MarshalOptions{}.Format(networkMessage(p)) + "}} ")
		}
		return b.String()
	}
	all := networks("0.0.0.0/0", "::/0")
	access := func(name, rest string) string {
		return `authorizations {metadata {default: "` + name + `"} labels {key: "group" value: ""} labels {key: "kind" value: "default"} labels {key: "name" value: "` + name + `"} ` + rest + `} `
	}
	policy := func(name, rest string) string {
		return `authorizations {metadata {resource {group: "policy.linkerd.io" kind: "authorizationpolicy" name: "` + name + `"}}
			labels {key: "group" value: "policy.linkerd.io"} labels {key: "kind" value: "authorizationpolicy"} labels {key: "name" value: "` + name + `"} ` + rest + `} `
	}
	const (
		open     = `authentication {unauthenticated {}}`
		anyTLS   = `authentication {meshTLS {unauthenticated {}}}`
		anyIdent = `authentication {meshTLS {identities {suffixes {}}}}`
		cluster  = "10.0.0.0/8"
	)
	detect := `protocol {detect {timeout {seconds: 10} http_` + route + `}} `
	for _, c := range []struct{ name, server, want string }{
		{"detect", `{name: web, port: 80}`, web + detect},
		{"HTTP/1", `{name: web, port: 80, proxyProtocol: HTTP/1}`, web + `protocol {http1 {` + route + `}}`},
		{"HTTP/2", `{name: web, port: 80, proxyProtocol: HTTP/2}`, web + `protocol {http2 {` + route + `}}`},
		{"gRPC", `{name: web, port: 80, proxyProtocol: gRPC}`, web + `protocol {grpc {` + route + `}}`},
		{"opaque", `{name: web, port: 80, proxyProtocol: opaque}`, web + `protocol {opaque {}}`},
		{"TLS", `{name: web, port: 80, proxyProtocol: TLS}`, web + `protocol {tls {}}`},
		{"all-unauthenticated", `{name: web, port: 80, accessPolicy: all-unauthenticated}`, web + detect + access("all-unauthenticated", all+open)},
		{"all-authenticated", `{name: web, port: 80, accessPolicy: all-authenticated}`, web + detect + access("all-authenticated", all+anyIdent)},
		{"all-tls-unauthenticated", `{name: web, port: 80, accessPolicy: all-tls-unauthenticated}`, web + detect + access("all-tls-unauthenticated", all+anyTLS)},
		{"cluster-authenticated", `{name: web, port: 80, accessPolicy: cluster-authenticated}`, web + detect + access("cluster-authenticated", networks(cluster)+anyIdent)},
		{"cluster-unauthenticated", `{name: web, port: 80, accessPolicy: cluster-unauthenticated}`, web + detect + access("cluster-unauthenticated", networks(cluster)+open)},
		{"audit", `{name: web, port: 80, accessPolicy: audit}`, web + detect + access("audit", all+open)},
		{
			"authorizations", `{name: web, port: 80, accessPolicy: audit, authorizationPolicies: [{name: a, identities: [x.test, "*.y.test", "*"], serviceAccounts: [{namespace: ns, name: sa}]},
				{name: b, networks: [{cidr: 10.0.0.0/8, except: [10.1.2.3, "fd00::/8"]}]}, {name: c, unauthenticated: true}, {name: d, unauthenticatedTLS: true}]}`,
			web + detect + policy("a", all+`authentication {meshTLS {identities {identities {name: "x.test"} identities {name: "sa.ns.serviceaccount.identity.linkerd.cluster.local"}
				suffixes {parts: ["y", "test"]} suffixes {}}}}`) +
				policy("b", `networks {net {ip {ipv4: 167772160} prefix_len: 8} except {ip {ipv4: 167838211} prefix_len: 32} except {ip {ipv6 {first: 18230571291595767808}} prefix_len: 8}} `+open) +
				policy("c", all+open) + policy("d", all+anyTLS) + access("audit", all+open),
		},
		{
			"HTTP routes", `{name: web, port: 80, proxyProtocol: HTTP/1, httpRoutes: [{name: r, hostnames: [a.test], authorizationPolicies: [{name: a, unauthenticated: true}],
				rules: [{matches: [{path: {value: /p}}], filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x]}}, {type: RequestRedirect, requestRedirect: {hostname: b.test}}]}]}]}`,
			web + `protocol {http1 {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "HTTPRoute" name: "r"}} hosts {exact: "a.test"}
				rules {matches {path {prefix: "/p"}} filters {request_header_modifier {remove: "x"}} filters {redirect {host: "b.test" status: 302}}} ` + policy("a", all+open) + `}}}`,
		},
		{
			"gRPC routes", `{name: web, port: 80, proxyProtocol: gRPC, grpcRoutes: [{name: r, authorizationPolicies: [{name: a, unauthenticatedTLS: true}],
				rules: [{matches: [{method: {service: s.S}}], filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x]}}]}]}]}`,
			web + `protocol {grpc {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "GRPCRoute" name: "r"}}
				rules {matches {rpc {service: "s.S"}} filters {request_header_modifier {remove: "x"}}} ` + policy("a", all+anyTLS) + `}}}`,
		},
		{
			"rate limit", `{name: web, port: 80, httpLocalRateLimit: {name: l, total: {requestsPerSecond: 3}, identity: {requestsPerSecond: 2}, overrides: [{requestsPerSecond: 9, clientRefs: [{namespace: ns, name: sa}]}]}}`,
			web + strings.Replace(detect, "}} ", `http_local_rate_limit {metadata {resource {group: "policy.linkerd.io" kind: "HTTPLocalRateLimitPolicy" name: "l"}}
				total {requestsPerSecond: 3} identity {requestsPerSecond: 2}
				overrides {limit {requestsPerSecond: 9} clients {identities {name: "sa.ns.serviceaccount.identity.linkerd.cluster.local"}}}}}} `, 1),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			clients := withPolicies(t, "destinations: {}\nclusterNetworks: ["+cluster+"]\nservers: ["+strings.ReplaceAll(c.server, "\t", " ")+"]\n")
			want := expected[inbound.Server](t, strings.Replace(c.want, "http_local_rate_limit", " http_local_rate_limit", 1))
			got, err := clients.in.GetPort(within20s(t), &inbound.PortSpec{Workload: "x", Port: 80})
			require.NoError(t, err)
			same(t, want, got)
			stream, err := clients.in.WatchPort(within20s(t), &inbound.PortSpec{Workload: "x", Port: 80})
			require.NoError(t, err)
			same(t, want, recv(t, stream))
		})
	}
}

// An address has the policy of its name. A stream gets the changes of its own target only.
func TestOutboundPolicyWatch(t *testing.T) {
	const file = "destinations:\n  a.test: {}\n  10.0.0.1:80: {profile: {name: a.test}}\n  10.0.0.2:80: {profile: {name: other.test}}\n"
	c := withPolicies(t, file)
	watch := func(spec *outbound.TrafficSpec) func() *outbound.OutboundPolicy {
		stream, err := c.out.Watch(within20s(t), spec)
		require.NoError(t, err)
		return func() *outbound.OutboundPolicy { return recv(t, stream) }
	}
	a, address, other := watch(named("A.test.:80")), watch(byAddr("10.0.0.1:80")), watch(byAddr("10.0.0.2:80"))
	require.NotNil(t, a().GetProtocol().GetDetect())
	require.NotNil(t, address().GetProtocol().GetDetect())
	require.Equal(t, "other.test", other().GetMetadata().GetResource().GetName())

	c.load(t, strings.Replace(file, "a.test: {}", "a.test: {endpoints: [{addr: 10.0.0.9:80}]}", 1)) // no change of policies
	c.load(t, strings.Replace(file, "a.test: {}", "a.test: {policy: {proxyProtocol: HTTP/2}}", 1))
	require.NotNil(t, a().GetProtocol().GetHttp2())
	require.NotNil(t, address().GetProtocol().GetHttp2())
	c.load(t, strings.Replace(file, "other.test", "next.test", 1))
	require.Equal(t, "next.test", other().GetMetadata().GetResource().GetName(), "the first message after the first one")

	for _, spec := range []*outbound.TrafficSpec{named("none.test:80"), byAddr("10.0.0.3:80"), byAddr("[::1]:80")} {
		_, err := c.out.Get(within20s(t), spec)
		require.Equal(t, codes.NotFound, status.Code(err), err)
		stream, err := c.out.Watch(within20s(t), spec)
		require.NoError(t, err)
		s, n := ends(t, stream)
		require.Equal(t, codes.NotFound, s.Code(), s)
		require.Zero(t, n)
	}
	for _, spec := range []*outbound.TrafficSpec{
		nil, named("a..b"), named(""), byAddr("10.0.0.1:0"),
		{Target: &outbound.TrafficSpec_Addr{Addr: &apinet.TcpAddress{Port: 80}}},
		{Target: &outbound.TrafficSpec_Addr{Addr: &apinet.TcpAddress{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{}}, Port: 1 << 16}}},
	} {
		_, err := c.out.Get(within20s(t), spec)
		require.Equal(t, codes.InvalidArgument, status.Code(err), err)
		stream, err := c.out.Watch(within20s(t), spec)
		require.NoError(t, err)
		s, _ := ends(t, stream)
		require.Equal(t, codes.InvalidArgument, s.Code(), s)
	}

	stream, err := c.out.Watch(within20s(t), named("a.test"))
	require.NoError(t, err)
	recv(t, stream)
	c.load(t, "destinations: {}")
	s, _ := ends(t, stream)
	require.Equal(t, codes.NotFound, s.Code(), "the destination was removed")
}

// The server of a workload precedes that of all workloads, and both precede the default.
func TestInboundPolicyWatch(t *testing.T) {
	const file = "destinations: {}\ndefaultInboundPolicy: deny\nservers: [{name: all, port: 80}, {name: one, port: 80, workload: w}]\n"
	c := withPolicies(t, file)
	watch := func(workload string, port uint32) func() string {
		stream, err := c.in.WatchPort(within20s(t), &inbound.PortSpec{Workload: workload, Port: port})
		require.NoError(t, err)
		return func() string { return recv(t, stream).GetLabels()["name"] }
	}
	one, all, rest := watch("w", 80), watch("v", 80), watch("w", 81)
	require.Equal(t, []string{"one", "all", "deny"}, []string{one(), all(), rest()})

	c.load(t, strings.Replace(file, ", {name: one, port: 80, workload: w}", "", 1))
	require.Equal(t, "all", one())
	c.load(t, "destinations: {}\n")
	require.Equal(t, []string{"all-unauthenticated", "all-unauthenticated", "all-unauthenticated"}, []string{one(), all(), rest()})

	for _, port := range []uint32{0, 1 << 16} {
		_, err := c.in.GetPort(within20s(t), &inbound.PortSpec{Port: port})
		require.Equal(t, codes.InvalidArgument, status.Code(err), err)
		stream, err := c.in.WatchPort(within20s(t), &inbound.PortSpec{Port: port})
		require.NoError(t, err)
		s, _ := ends(t, stream)
		require.Equal(t, codes.InvalidArgument, s.Code(), s)
	}
}

// Before the first configuration, Get fails and streams wait.
func TestPolicyBeforeConfiguration(t *testing.T) {
	c := New(nil)
	conn := connected(t, c)
	out, in := outbound.NewOutboundPoliciesClient(conn), inbound.NewInboundServerPoliciesClient(conn)
	_, err := out.Get(within20s(t), named("a.test"))
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	_, err = in.GetPort(within20s(t), &inbound.PortSpec{Port: 80})
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	policies, err := out.Watch(within20s(t), named("a.test"))
	require.NoError(t, err)
	servers, err := in.WatchPort(within20s(t), &inbound.PortSpec{Port: 80})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.policies) == 1 && len(c.servers) == 1
	}, patience, time.Millisecond)
	set(t, c, one("a.test", Destination{}))
	require.NotNil(t, recv(t, policies).GetProtocol().GetDetect())
	require.Equal(t, "all-unauthenticated", recv(t, servers).GetLabels()["name"])
}

func TestSetPolicyErrors(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{DefaultInboundPolicy: "x"}, `default inbound policy "x" must be one of deny, all-unauthenticated, all-authenticated, all-tls-unauthenticated, cluster-unauthenticated, cluster-authenticated, audit`},
		{Config{Servers: []Server{{Policy: &inbound.Server{}}}}, "server: the port must not be 0"},
		{Config{Servers: []Server{{Port: 80}}}, "server of port 80: the policy is required"},
		{Config{Servers: []Server{{Port: 80, Policy: &inbound.Server{}}, {Port: 80, Policy: &inbound.Server{}}}}, `server of port 80 of workload "" is given twice`},
		{Config{Servers: []Server{{Port: 80, Policy: &inbound.Server{Labels: map[string]string{"name": "\xff"}}}}}, "server of port 80 cannot be encoded"},
		{one("10.0.0.1:80", Destination{Policy: &outbound.OutboundPolicy{}}), "must have only a profile"},
		{one("a.test", Destination{Absent: true, Policy: &outbound.OutboundPolicy{}}), "must not have labels, endpoints, a profile or a policy"},
	} {
		require.ErrorContains(t, New(nil).Set(c.cfg), c.want)
	}
}

func TestParsePolicyErrors(t *testing.T) {
	policy := func(s string) string { return in("policy:\n      " + s) }
	rule := func(s string) string {
		return policy("httpRoutes:\n        - name: r\n          rules:\n            - " + s)
	}
	call := func(s string) string {
		return policy("grpcRoutes:\n        - name: r\n          rules:\n            - " + s)
	}
	server := func(s string) string { return "destinations: {}\nservers:\n  - name: s\n    port: 80\n    " + s }
	for _, c := range []struct{ name, yaml, want string }{
		{"unknown field", rule("match: []\n"), `f.yaml:7: unknown field "match"; there are matches, filters, backendRefs, timeouts, retry`},
		{"unknown field of a gRPC match", call("matches: [{path: x}]\n"), `f.yaml:7: unknown field "path"; there are method, headers`},
		{"protocol", policy("proxyProtocol: http\n"), `f.yaml:4: proxyProtocol "http" must be one of unknown, HTTP/1, HTTP/2, gRPC, opaque, TLS`},
		{"routes of another protocol", policy("proxyProtocol: HTTP/1\n      grpcRoutes: [{name: r, rules: [{}]}]\n"), `f.yaml:4: protocol HTTP/1 has no grpcRoutes; there are httpRoutes`},
		{"two kinds", policy("httpRoutes: [{name: r, rules: [{}]}]\n      tlsRoutes: [{name: s, rules: [{}]}]\n"), `f.yaml:4: httpRoutes and tlsRoutes exclude each other`},
		{"route without a name", policy("httpRoutes: [{rules: [{}]}]\n"), `f.yaml:4: the route has no name`},
		{"route twice", policy("httpRoutes:\n        - {name: r, rules: [{}]}\n        - {name: r, rules: [{}]}\n"), `f.yaml:6: route "r" is given twice, first in line 5`},
		{"no rules", policy("httpRoutes:\n        - name: r\n"), `f.yaml:5: the route has no rules`},
		{"hostname", policy("httpRoutes: [{name: r, rules: [{}], hostnames: ['a.*.b']}]\n"), `f.yaml:4: hostname: name "a.*.b": '*' is not allowed in a name`},
		{"path", rule("matches: [{path: {value: a}}]\n"), `f.yaml:7: path "a" must begin with / and have no query`},
		{"path type", rule("matches: [{path: {type: Prefix, value: /}}]\n"), `f.yaml:7: path type "Prefix" must be one of PathPrefix, Exact, RegularExpression`},
		{"path regex", rule("matches: [{path: {type: RegularExpression, value: '('}}]\n"), "f.yaml:7: value: error parsing regexp: missing closing ): `(`"},
		{"method", rule("matches: [{method: get}]\n"), `f.yaml:7: method "get": methods are case-sensitive, write GET`},
		{"header name", rule("matches: [{headers: [{name: 'a b', value: x}]}]\n"), `f.yaml:7: header name "a b" has characters that are not allowed`},
		{"header without name", rule("matches: [{headers: [{value: x}]}]\n"), `f.yaml:7: the header has no name`},
		{"query without name", rule("matches: [{queryParams: [{value: x}]}]\n"), `f.yaml:7: the query parameter has no name`},
		{"query type", rule("matches: [{queryParams: [{name: q, type: exact, value: x}]}]\n"), `f.yaml:7: type "exact" must be one of Exact, RegularExpression`},
		{"gRPC method", call("matches: [{method: {service: a/b}}]\n"), `f.yaml:7: "a/b" is not the name of a gRPC service or method`},
		{"filter without type", rule("filters: [{}]\n"), `f.yaml:7: the filter has no type`},
		{"filter type", rule("filters: [{type: URLRewrite}]\n"), `f.yaml:7: filter type "URLRewrite" must be one of RequestHeaderModifier, ResponseHeaderModifier, RequestRedirect`},
		{"gRPC filter type", call("filters: [{type: RequestRedirect, requestRedirect: {}}]\n"), `f.yaml:7: filter type "RequestRedirect" must be one of RequestHeaderModifier`},
		{"filter without its field", rule("filters: [{type: RequestRedirect}]\n"), `f.yaml:7: the filter has no requestRedirect`},
		{"header value", rule("filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: \"b\\n\"}]}}]\n"), `f.yaml:7: value "b\n" is not allowed in a header`},
		{"redirect scheme", rule("filters: [{type: RequestRedirect, requestRedirect: {scheme: ftp}}]\n"), `f.yaml:7: scheme "ftp" must be one of http, https`},
		{"redirect port", rule("filters: [{type: RequestRedirect, requestRedirect: {port: x}}]\n"), `f.yaml:7: port "x" is not a number from 1 to 65535`},
		{"redirect status", rule("filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]\n"), `f.yaml:7: statusCode 200 must be 301, 302, 303, 307 or 308`},
		{"redirect path", rule("filters: [{type: RequestRedirect, requestRedirect: {path: {replaceFullPath: x}}}]\n"), `f.yaml:7: the path "x" of a redirect must begin with /`},
		{"backend without name", rule("backendRefs: [{port: 80}]\n"), `f.yaml:7: the backendRef has no name`},
		{"backend name", rule("backendRefs: [{name: 'a:80'}]\n"), `f.yaml:7: backendRef: name "a:80": ':' is not allowed in a name`},
		{"backend weight", rule("backendRefs: [{name: a, weight: -1}]\n"), `f.yaml:7: weight "-1" is not a whole number from 0 to 4294967295`},
		{"filters of connections", policy("tcpRoutes: [{name: r, rules: [{backendRefs: [{name: a, filters: [{type: RequestRedirect}]}]}]}]\n"), `f.yaml:4: backends of connections have no filters`},
		{"hostnames of a TCPRoute", policy("tcpRoutes: [{name: r, hostnames: [a], rules: [{}]}]\n"), `f.yaml:4: a TCPRoute has no hostnames`},
		{"timeout", rule("timeouts: {request: 0s}\n"), `f.yaml:7: request 0s: want more than 0, or leave it out`},
		{"retry without conditions", rule("retry: {limit: 1}\n"), `f.yaml:7: the retry has no conditions`},
		{"retry condition", rule("retry: {conditions: [4xx]}\n"), `f.yaml:7: condition "4xx" must be 5xx, gateway-error, a status or a range within 400-599`},
		{"retry limit", rule("retry: {conditions: [5xx], limit: 0}\n"), `f.yaml:7: limit 0 must be from 1 to 65535`},
		{"gRPC condition", call("retry: {conditions: [canceled]}\n"), `f.yaml:7: condition "canceled" must be cancelled, deadline-exceeded, resource-exhausted, internal or unavailable`},
		{"authorizations of a destination", policy("httpRoutes: [{name: r, rules: [{}], authorizationPolicies: [{name: a, unauthenticated: true}]}]\n"), `f.yaml:4: authorizationPolicies are for servers only`},
		{"penalties", policy("failureAccrual: {minPenalty: 2m}\n"), `f.yaml:4: minPenalty 2m0s must be at most maxPenalty 1m0s`},
		{"jitter", policy("failureAccrual: {jitterRatio: -1}\n"), `f.yaml:4: jitterRatio "-1" must be a number from 0 to 100`},
		{"window alone", policy("failureAccrual: {successRateWindow: 10s}\n"), `f.yaml:4: successRateWindow and successRateMinRequests require a successRateThreshold`},

		{"server without name", "destinations: {}\nservers: [{port: 80}]\n", `f.yaml:2: the server has no name`},
		{"server without port", "destinations: {}\nservers: [{name: s}]\n", `f.yaml:2: the server has no port`},
		{"server port", "destinations: {}\nservers: [{name: s, port: 0}]\n", `f.yaml:2: port "0" is not a number from 1 to 65535`},
		{"port twice", server("workload: ''\n  - name: t\n    port: 80\n"), `f.yaml:7: port 80 has two servers, the first in line 4`},
		{"server protocol", server("proxyProtocol: tls\n"), `f.yaml:5: proxyProtocol "tls" must be one of unknown, HTTP/1, HTTP/2, gRPC, opaque, TLS`},
		{"access policy", server("accessPolicy: open\n"), `f.yaml:5: accessPolicy "open" must be one of deny, all-unauthenticated, all-authenticated, all-tls-unauthenticated, cluster-unauthenticated, cluster-authenticated, audit`},
		{"default policy", "destinations: {}\ndefaultInboundPolicy: x\n", `f.yaml:2: defaultInboundPolicy "x" must be one of deny, all-unauthenticated, all-authenticated, all-tls-unauthenticated, cluster-unauthenticated, cluster-authenticated, audit`},
		{"network", "destinations: {}\nclusterNetworks: [a]\n", `f.yaml:2: "a" is not a network such as 10.0.0.0/8`},
		{"routes of an opaque server", server("proxyProtocol: opaque\n    httpRoutes: [{name: r, rules: [{}]}]\n"), `f.yaml:3: httpRoutes require proxyProtocol unknown, HTTP/1 or HTTP/2`},
		{"gRPC routes of a server", server("grpcRoutes: [{name: r, rules: [{}]}]\n"), `f.yaml:3: grpcRoutes require proxyProtocol gRPC`},
		{"rate limit of gRPC", server("proxyProtocol: gRPC\n    httpLocalRateLimit: {name: l, total: {requestsPerSecond: 1}}\n"), `f.yaml:3: httpLocalRateLimit requires proxyProtocol unknown, HTTP/1 or HTTP/2`},
		{"rule of a server", server("httpRoutes: [{name: r, rules: [{backendRefs: [{name: a}]}]}]\n"), `f.yaml:5: a rule of a server has no backendRefs, timeouts and retry`},
		{"filter of a server", server("httpRoutes: [{name: r, rules: [{filters: [{type: ResponseHeaderModifier}]}]}]\n"), `f.yaml:5: filter type "ResponseHeaderModifier" must be one of RequestHeaderModifier, RequestRedirect`},
		{"authorization without clients", server("authorizationPolicies: [{name: a}]\n"), `f.yaml:5: the authorization policy has no networks, identities, serviceAccounts, unauthenticated or unauthenticatedTLS`},
		{"authorization without identities", server("authorizationPolicies: [{name: a, identities: [], networks: [{cidr: 10.0.0.0/8}]}]\n"), `f.yaml:5: the authorization policy has an empty list of networks, identities or serviceAccounts`},
		{"authorization without networks", server("authorizationPolicies: [{name: a, unauthenticated: true, networks: []}]\n"), `f.yaml:5: the authorization policy has an empty list of networks, identities or serviceAccounts`},
		{"authorization of two kinds", server("authorizationPolicies: [{name: a, unauthenticated: true, identities: ['*']}]\n"), `f.yaml:5: unauthenticated, unauthenticatedTLS and identities exclude each other`},
		{"authorization network", server("authorizationPolicies: [{name: a, networks: [{cidr: 10.0.0.0/33}]}]\n"), `f.yaml:5: "10.0.0.0/33" is not a network such as 10.0.0.0/8`},
		{"authorization without network", server("authorizationPolicies: [{name: a, networks: [{}]}]\n"), `f.yaml:5: the network has no cidr`},
		{"authorization without an identity", server("authorizationPolicies: [{name: a, identities: ['']}]\n"), `f.yaml:5: identity "": want a name, a URI, * or *.NAME`},
		{"authorization without a suffix", server("authorizationPolicies: [{name: a, identities: ['*.']}]\n"), `f.yaml:5: identity "*.": want a name, a URI, * or *.NAME`},
		{"authorization identity", server("authorizationPolicies: [{name: a, identities: ['a*']}]\n"), `f.yaml:5: identity: name "a*": '*' is not allowed in a name`},
		{"service account", server("authorizationPolicies: [{name: a, serviceAccounts: [{name: sa}]}]\n"), `f.yaml:5: the service account must have a namespace and a name`},
		{"rate limit without limits", server("httpLocalRateLimit: {name: l}\n"), `f.yaml:5: the rate limit has no total, identity or overrides`},
		{"limit 0", server("httpLocalRateLimit: {name: l, total: {requestsPerSecond: 0}}\n"), `f.yaml:5: requestsPerSecond 0: want at least 1, or leave the limit out`},
		{"limit without rate", server("httpLocalRateLimit: {name: l, total: {}}\n"), `f.yaml:5: the limit has no requestsPerSecond`},
		{"override without clients", server("httpLocalRateLimit: {name: l, overrides: [{requestsPerSecond: 1}]}\n"), `f.yaml:5: the override has no clientRefs and no identities`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("f.yaml", []byte(c.yaml))
			require.EqualError(t, err, c.want)
			require.Empty(t, cfg)
		})
	}
}
