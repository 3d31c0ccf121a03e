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

	"github.com/gotower/gotower/examples/destination/internal/policytest"
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
		return `routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "HTTPRoute" name: "r" namespace: "ns"}} ` + rule + `}`
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
			detected(route(`rules {`+all+first+` timeouts {request {seconds: 10} response {seconds: 2} idle {seconds: 60}} requestTimeout {seconds: 10}
				retry {max_retries: 3 max_request_bytes: 65536 timeout {seconds: 1} backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}
					conditions {status_ranges {start: 500 end: 599} status_ranges {start: 502 end: 504} status_ranges {start: 503 end: 503} status_ranges {start: 507 end: 511}}}}
				rules {`+all+first+` retry {max_retries: 1 max_request_bytes: 65536 backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}
					conditions {status_ranges {start: 500 end: 500}}}}`), defaultOpaque()),
		},
		{
			"gRPC routes", `policy: {grpcRoutes: [{name: r, hostnames: [a.test], rules: [{matches: [{method: {service: s.S, method: M}, headers: [{name: h, value: v}]}, {}],
				filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x]}}], backendRefs: [{name: none.test}], timeouts: {request: 1s},
				retry: {conditions: [cancelled, deadline-exceeded, resource-exhausted, internal, unavailable]}}, {}]}]}`,
			isWeb + `protocol {grpc {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "GRPCRoute" name: "r" namespace: "ns"}} hosts {exact: "a.test"}
				rules {matches {rpc {service: "s.S" method: "M"} headers {name: "h" exact: "v"}} matches {rpc {}}
					filters {request_header_modifier {remove: "x"}} timeouts {request {seconds: 1}} requestTimeout {seconds: 1}
					backends {random_available {backends {weight: 1 backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
						filters {failure_injector {code: 14 message: "destination none.test:80 does not exist"}}}}}}
					retry {max_retries: 1 max_request_bytes: 65536 backoff {min_backoff {nanos: 25000000} max_backoff {nanos: 250000000} jitter_ratio: 1}
						conditions {cancelled: true deadine_exceeded: true resource_exhausted: true internal: true unavailable: true}}}
				rules {matches {rpc {}} ` + first + `}}}}`,
		},
		{
			"TLS routes", `policy: {tlsRoutes: [{name: r, hostnames: [a.test, "*.b.test"], rules: [{backendRefs: [{name: web.ns.svc.cluster.local}, {name: none.test}]}]}]}`,
			isWeb + `protocol {tls {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "TLSRoute" name: "r" namespace: "ns"}}
				snis {exact: "a.test"} snis {suffix {reverse_labels: ["test", "b"]}} rules {backends {random_available {
					backends {weight: 1 backend {backend {` + own() + `}}}
					backends {weight: 1 backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
						filters {invalid {message: "destination none.test:80 does not exist"}}}}}}}}}}`,
		},
		{
			"TCP routes", `policy: {tcpRoutes: [{name: r, rules: [{backendRefs: [{name: web.ns.svc.cluster.local, weight: 2}, {name: none.test}]}]}]}`,
			isWeb + `protocol {opaque {routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "TCPRoute" name: "r" namespace: "ns"}} rules {backends {random_available {
					backends {weight: 2 backend {backend {` + own() + `}}}
					backends {weight: 1 backend {backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
						filters {invalid {message: "destination none.test:80 does not exist"}}}}}}}}}}`,
		},
		{
			"weights of 0", `policy: {httpRoutes: [{name: r, rules: [{backendRefs: [{name: web.ns.svc.cluster.local, weight: 0}, {name: none.test, weight: 0}]}]}]}`,
			detected(route(`rules {`+all+`backends {random_available {backends {weight: 1 backend {
				backend {metadata {default: "invalid"} queue {capacity: 100 failfast_timeout {seconds: 3}}}
				filters {failure_injector {status: 500 message: "all backends have the weight 0"}}}}}}}`), defaultOpaque()),
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
			"load biaser of a backend", `policy: {proxyProtocol: HTTP/2, loadBiaser: {}, httpRoutes: [{name: r, rules: [{backendRefs: [{name: web.ns.svc.cluster.local}]}]}]}`,
			isWeb + `protocol {http2 {` + route(`rules {`+all+`backends {random_available {backends {weight: 1 backend {backend {`+
				strings.Replace(own(), `peak_ewma {default_rtt {nanos: 30000000} decay {seconds: 10}}`,
					`penalty_peak_ewma {default_rtt {nanos: 30000000} decay {seconds: 10} penalty {seconds: 5} max_retry_after {seconds: 30} penalty_decay {seconds: 10}}`, 1)+
				`}}}}}}`) + `}}`,
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

// Proxies of linkerd reject metadata without a namespace, so the policy of a name that is not that
// of a Service has one too.
func TestOutboundPolicyOfOtherNames(t *testing.T) {
	clients := withPolicies(t, "destinations:\n  web.test: {policy: {httpRoutes: [{name: r, rules: [{backendRefs: [{name: web.test}]}]}]}}\n")
	got, err := clients.out.Get(within20s(t), named("web.test"))
	require.NoError(t, err)
	require.Equal(t, "default", got.GetMetadata().GetResource().GetNamespace())
	require.Equal(t, "default", got.GetProtocol().GetDetect().GetHttp1().GetRoutes()[0].GetMetadata().GetResource().GetNamespace())
}

// The policy of an address forwards to the address. Its traffic policy decides about requests
// without a route.
func TestOutboundPolicyOfAddress(t *testing.T) {
	clients := withPolicies(t, "destinations:\n  192.0.2.1:80: {policy: {trafficPolicy: Deny, httpRoutes: [{name: r, rules: [{backendRefs: [{name: 192.0.2.1}]}]}]}}\n")
	got, err := clients.out.Get(within20s(t), byAddr("192.0.2.1:80"))
	require.NoError(t, err)
	address := `metadata {resource {group: "policy.linkerd.io" kind: "EgressNetwork" name: "192.0.2.1" namespace: "default" port: 80}} `
	backend := `backend {` + address + `forward {addr {ip {ipv4: 3221225985} port: 80} weight: 1} queue {capacity: 100 failfast_timeout {seconds: 3}}}`
	http := `routes {metadata {resource {group: "gateway.networking.k8s.io" kind: "HTTPRoute" name: "r" namespace: "default"}}
		rules {matches {path {prefix: "/"}} backends {random_available {backends {weight: 1 backend {` + backend + `}}}}}}
		routes {metadata {default: "http-egress-deny"} rules {matches {path {prefix: "/"}} filters {failure_injector {status: 403 message: "traffic not allowed"}}
		backends {first_available {backends {` + backend + `}}}}}`
	same(t, expected[outbound.OutboundPolicy](t, address+`protocol {detect {timeout {seconds: 10} http1 {`+http+`} http2 {`+http+`}
		opaque {routes {metadata {default: "tcp-egress-deny"} rules {filters {forbidden {}} backends {first_available {backends {`+backend+`}}}}}}}}`), got)
}

// Proxies of linkerd accept each policy of the example configuration.
func TestExampleConfiguration(t *testing.T) {
	cfg, _, err := New(nil).Load("../destination.yaml")
	require.NoError(t, err)
	entries, err := compile(cfg)
	require.NoError(t, err)
	for name, e := range entries {
		if policy := e.outbound(); policy != nil {
			require.NoError(t, policytest.Outbound(policy), name)
		}
	}
	servers, err := compileInbound(cfg)
	require.NoError(t, err)
	for key, server := range servers.servers {
		require.NoError(t, policytest.Inbound(server), key)
	}
}

// Proxies of linkerd accept the policy of a port without a server, for each access policy.
func TestDefaultServer(t *testing.T) {
	for _, access := range AccessPolicies() {
		require.NoError(t, policytest.Inbound(DefaultServer(AccessPolicy(access), nil, false)), access)
		require.NoError(t, policytest.Inbound(DefaultServer(AccessPolicy(access), nil, true)), access)
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
		{Config{DefaultInboundPolicy: "x"}, `defaultInboundPolicy "x": want one of deny, all-unauthenticated, all-authenticated, all-tls-unauthenticated, cluster-unauthenticated, cluster-authenticated, audit`},
		{Config{Servers: []Server{{Policy: &inbound.Server{}}}}, `servers[0].port "0": want a port from 1 to 65535`},
		{Config{Servers: []Server{{Port: 80}}}, "servers[0]: missing: the policy is required"},
		{Config{Servers: []Server{{Port: 80, Policy: &inbound.Server{}}, {Port: 80, Policy: &inbound.Server{}}}}, `servers[1].port "80": another server has this port of workload "": take one out`},
		{Config{Servers: []Server{{Port: 80, Policy: &inbound.Server{Labels: map[string]string{"name": "\xff"}}}}}, "servers[0]: cannot be encoded"},
		{one("10.0.0.1:80", Destination{Labels: map[string]string{"a": "b"}, Policy: &outbound.OutboundPolicy{}}), "an IP address is not resolved: want only a profile and a policy"},
		{one("a.test", Destination{Absent: true, Policy: &outbound.OutboundPolicy{}}), "the destination does not exist: want no labels, endpoints, profile and policy"},
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
		{"unknown field", rule("match: []\n"), `f.yaml:7:15: destinations["web.test:80"].policy.httpRoutes[0].rules[0].match: unknown field: there are backendRefs, filters, matches, retry, timeouts`},
		{"unknown field of a gRPC match", call("matches: [{path: x}]\n"), `f.yaml:7:26: destinations["web.test:80"].policy.grpcRoutes[0].rules[0].matches[0].path: unknown field: there are headers, method`},
		{"protocol", policy("proxyProtocol: http\n"), `f.yaml:4:22: destinations["web.test:80"].policy.proxyProtocol "http": want one of unknown, HTTP/1, HTTP/2, gRPC, opaque, TLS`},
		{"routes of another protocol", policy("proxyProtocol: HTTP/1\n      grpcRoutes: [{name: r, rules: [{}]}]\n"), `f.yaml:5:19: destinations["web.test:80"].policy.grpcRoutes: the protocol HTTP/1 does not have them: want httpRoutes`},
		{"two kinds", policy("httpRoutes: [{name: r, rules: [{}]}]\n      tlsRoutes: [{name: s, rules: [{}]}]\n"), `f.yaml:4:7: destinations["web.test:80"].policy: httpRoutes and tlsRoutes exclude each other: want one of them`},
		{"route without a name", policy("httpRoutes: [{rules: [{}]}]\n"), `f.yaml:4:20: destinations["web.test:80"].policy.httpRoutes[0].name: missing: name is required`},
		{"route twice", policy("httpRoutes:\n        - {name: r, rules: [{}]}\n        - {name: r, rules: [{}]}\n"), `f.yaml:6:18: destinations["web.test:80"].policy.httpRoutes[1].name "r": the name of destinations["web.test:80"].policy.httpRoutes[0].name: want another one`},
		{"no rules", policy("httpRoutes:\n        - name: r\n"), `f.yaml:5:11: destinations["web.test:80"].policy.httpRoutes[0].rules: missing: want at least one rule`},
		{"hostname", policy("httpRoutes: [{name: r, rules: [{}], hostnames: ['a.*.b']}]\n"), `f.yaml:4:55: destinations["web.test:80"].policy.httpRoutes[0].hostnames[0] "a.*.b": '*' is not allowed in a name`},
		{"path", rule("matches: [{path: {value: a}}]\n"), `f.yaml:7:40: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].path.value "a": want a path that begins with /, without a query`},
		{"path type", rule("matches: [{path: {type: Prefix, value: /}}]\n"), `f.yaml:7:39: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].path.type "Prefix": want one of PathPrefix, Exact, RegularExpression`},
		{"path regex", rule("matches: [{path: {type: RegularExpression, value: '('}}]\n"), "f.yaml:7:65: destinations[\"web.test:80\"].policy.httpRoutes[0].rules[0].matches[0].path.value \"(\": error parsing regexp: missing closing ): `(`"},
		{"regex of Go only", rule("matches: [{path: {type: RegularExpression, value: '/users/{id}'}}]\n"), `f.yaml:7:65: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].path.value "/users/{id}": the regular expression "/users/{id}" has "{", which linkerd2-proxy refuses or understands differently`},
		{"header match value", rule("matches: [{headers: [{name: a, value: \"b\\n\"}]}]\n"), `f.yaml:7:53: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].headers[0].value "b\n": want a header value without control characters`},
		{"method", rule("matches: [{method: get}]\n"), `f.yaml:7:34: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].method "get": methods are case-sensitive: write GET`},
		{"header name", rule("matches: [{headers: [{name: 'a b', value: x}]}]\n"), `f.yaml:7:43: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].headers[0].name "a b": want the name of a header, such as x-user`},
		{"header without name", rule("matches: [{headers: [{value: x}]}]\n"), `f.yaml:7:36: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].headers[0].name: missing: name is required`},
		{"query without name", rule("matches: [{queryParams: [{value: x}]}]\n"), `f.yaml:7:40: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].queryParams[0].name: missing: name is required`},
		{"query type", rule("matches: [{queryParams: [{name: q, type: exact, value: x}]}]\n"), `f.yaml:7:56: destinations["web.test:80"].policy.httpRoutes[0].rules[0].matches[0].queryParams[0].type "exact": want one of Exact, RegularExpression`},
		{"gRPC method", call("matches: [{method: {service: a/b}}]\n"), `f.yaml:7:44: destinations["web.test:80"].policy.grpcRoutes[0].rules[0].matches[0].method.service "a/b": want the name of a gRPC service or method, without /`},
		{"filter without type", rule("filters: [{}]\n"), `f.yaml:7:25: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].type: missing: type is required`},
		{"filter type", rule("filters: [{type: URLRewrite}]\n"), `f.yaml:7:32: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].type "URLRewrite": want one of RequestHeaderModifier, ResponseHeaderModifier, RequestRedirect`},
		{"gRPC filter type", call("filters: [{type: RequestRedirect, requestRedirect: {}}]\n"), `f.yaml:7:32: destinations["web.test:80"].policy.grpcRoutes[0].rules[0].filters[0].type "RequestRedirect": want one of RequestHeaderModifier`},
		{"filter without its field", rule("filters: [{type: RequestRedirect}]\n"), `f.yaml:7:25: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].requestRedirect: missing: a filter with the type RequestRedirect requires it`},
		{"header value", rule("filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: \"b\\n\"}]}}]\n"), `f.yaml:7:102: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].requestHeaderModifier.set[0].value "b\n": want a header value without control characters`},
		{"redirect scheme", rule("filters: [{type: RequestRedirect, requestRedirect: {scheme: ftp}}]\n"), `f.yaml:7:75: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].requestRedirect.scheme "ftp": want one of http, https`},
		{"redirect port", rule("filters: [{type: RequestRedirect, requestRedirect: {port: x}}]\n"), `f.yaml:7:73: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].requestRedirect.port "x": want a whole number from 1 to 65535`},
		{"redirect status", rule("filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]\n"), `f.yaml:7:79: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].requestRedirect.statusCode "200": want 301, 302, 303, 307 or 308`},
		{"redirect path", rule("filters: [{type: RequestRedirect, requestRedirect: {path: {replaceFullPath: x}}}]\n"), `f.yaml:7:91: destinations["web.test:80"].policy.httpRoutes[0].rules[0].filters[0].requestRedirect.path.replaceFullPath "x": want a path that begins with /`},
		{"backend without name", rule("backendRefs: [{port: 80}]\n"), `f.yaml:7:29: destinations["web.test:80"].policy.httpRoutes[0].rules[0].backendRefs[0].name: missing: name is required`},
		{"backend name", rule("backendRefs: [{name: 'a:80'}]\n"), `f.yaml:7:36: destinations["web.test:80"].policy.httpRoutes[0].rules[0].backendRefs[0].name "a:80": ':' is not allowed in a name`},
		{"backend weight", rule("backendRefs: [{name: a, weight: -1}]\n"), `f.yaml:7:47: destinations["web.test:80"].policy.httpRoutes[0].rules[0].backendRefs[0].weight "-1": want a whole number from 0 to 4294967295`},
		{"sum of weights", rule("backendRefs: [{name: a, weight: 4294967295}, {name: b, weight: 1}]\n"), `f.yaml:7:78: destinations["web.test:80"].policy.httpRoutes[0].rules[0].backendRefs[1].weight "1": the sum of the weights is 4294967296: want at most 4294967295`},
		{"rules of a TLSRoute", policy("tlsRoutes: [{name: r, rules: [{}, {}]}]\n"), `f.yaml:4:36: destinations["web.test:80"].policy.tlsRoutes[0].rules: want one rule in a TLSRoute or TCPRoute, not 2`},
		{"rules of a TCPRoute", policy("tcpRoutes: [{name: r, rules: [{}, {}]}]\n"), `f.yaml:4:36: destinations["web.test:80"].policy.tcpRoutes[0].rules: want one rule in a TLSRoute or TCPRoute, not 2`},
		{"two TCPRoutes", policy("tcpRoutes: [{name: r, rules: [{}]}, {name: s, rules: [{}]}]\n"), `f.yaml:4:18: destinations["web.test:80"].policy.tcpRoutes: want one TCPRoute, which matches all connections, not 2`},
		{"filters of connections", policy("tcpRoutes: [{name: r, rules: [{backendRefs: [{name: a, filters: [{type: RequestRedirect}]}]}]}]\n"), `f.yaml:4:71: destinations["web.test:80"].policy.tcpRoutes[0].rules[0].backendRefs[0].filters: backends of connections have no filters: take them out`},
		{"hostnames of a TCPRoute", policy("tcpRoutes: [{name: r, hostnames: [a], rules: [{}]}]\n"), `f.yaml:4:40: destinations["web.test:80"].policy.tcpRoutes[0].hostnames: a TCPRoute has no hostnames: take them out`},
		{"timeout", rule("timeouts: {request: 0s}\n"), `f.yaml:7:35: destinations["web.test:80"].policy.httpRoutes[0].rules[0].timeouts.request "0s": want a duration of more than 0, such as 250ms or 10s`},
		{"retry without conditions", rule("retry: {limit: 1}\n"), `f.yaml:7:22: destinations["web.test:80"].policy.httpRoutes[0].rules[0].retry.conditions: missing: conditions is required`},
		{"retry condition", rule("retry: {conditions: [4xx]}\n"), `f.yaml:7:36: destinations["web.test:80"].policy.httpRoutes[0].rules[0].retry.conditions[0] "4xx": want 5xx, gateway-error, a status or a range within 400-599`},
		{"retry limit", rule("retry: {conditions: [5xx], limit: 0}\n"), `f.yaml:7:49: destinations["web.test:80"].policy.httpRoutes[0].rules[0].retry.limit "0": want a whole number from 1 to 65535`},
		{"gRPC condition", call("retry: {conditions: [canceled]}\n"), `f.yaml:7:36: destinations["web.test:80"].policy.grpcRoutes[0].rules[0].retry.conditions[0] "canceled": want cancelled, deadline-exceeded, resource-exhausted, internal or unavailable`},
		{"authorizations of a destination", policy("httpRoutes: [{name: r, rules: [{}], authorizationPolicies: [{name: a, unauthenticated: true}]}]\n"), `f.yaml:4:66: destinations["web.test:80"].policy.httpRoutes[0].authorizationPolicies: they are for routes of servers only: take them out`},
		{"traffic policy", policy("trafficPolicy: Deny\n"), `f.yaml:4:22: destinations["web.test:80"].policy.trafficPolicy "Deny": it is for IP addresses only: take it out`},
		{"value of a traffic policy", "destinations:\n  192.0.2.1:80:\n    policy: {trafficPolicy: deny}\n", `f.yaml:3:29: destinations["192.0.2.1:80"].policy.trafficPolicy "deny": want one of Allow, Deny`},
		{"penalties", policy("failureAccrual: {minPenalty: 2m}\n"), `f.yaml:4:36: destinations["web.test:80"].policy.failureAccrual.minPenalty "2m": want at most maxPenalty, 1m0s`},
		{"jitter", policy("failureAccrual: {jitterRatio: -1}\n"), `f.yaml:4:37: destinations["web.test:80"].policy.failureAccrual.jitterRatio "-1": want a number from 0 to 100`},
		{"window", policy("failureAccrual: {successRateThreshold: 0.5, successRateWindow: 9ms}\n"), `f.yaml:4:70: destinations["web.test:80"].policy.failureAccrual.successRateWindow "9ms": want a duration of at least 10ms`},
		{"requests", policy("failureAccrual: {successRateThreshold: 0.5, successRateMinRequests: 1000001}\n"), `f.yaml:4:75: destinations["web.test:80"].policy.failureAccrual.successRateMinRequests "1000001": want a whole number from 0 to 1000000`},
		{"window alone", policy("failureAccrual: {successRateWindow: 10s}\n"), `f.yaml:4:23: destinations["web.test:80"].policy.failureAccrual.successRateThreshold: missing: successRateWindow and successRateMinRequests require it`},

		{"server without name", "destinations: {}\nservers: [{port: 80}]\n", `f.yaml:2:11: servers[0].name: missing: name is required`},
		{"server without port", "destinations: {}\nservers: [{name: s}]\n", `f.yaml:2:11: servers[0].port: missing: port is required`},
		{"server port", "destinations: {}\nservers: [{name: s, port: 0}]\n", `f.yaml:2:27: servers[0].port "0": want a whole number from 1 to 65535`},
		{"port twice", server("workload: ''\n  - name: t\n    port: 80\n"), `f.yaml:7:11: servers[1].port "80": the port of servers[0]: want one server for a port of a workload`},
		{"server protocol", server("proxyProtocol: tls\n"), `f.yaml:5:20: servers[0].proxyProtocol "tls": want one of unknown, HTTP/1, HTTP/2, gRPC, opaque, TLS`},
		{"access policy", server("accessPolicy: open\n"), `f.yaml:5:19: servers[0].accessPolicy "open": want one of deny, all-unauthenticated, all-authenticated, all-tls-unauthenticated, cluster-unauthenticated, cluster-authenticated, audit`},
		{"default policy", "destinations: {}\ndefaultInboundPolicy: x\n", `f.yaml:2:23: defaultInboundPolicy "x": want one of deny, all-unauthenticated, all-authenticated, all-tls-unauthenticated, cluster-unauthenticated, cluster-authenticated, audit`},
		{"network", "destinations: {}\nclusterNetworks: [a]\n", `f.yaml:2:19: clusterNetworks[0] "a": want a network such as 10.0.0.0/8, or an IP address`},
		{"routes of an opaque server", server("proxyProtocol: opaque\n    httpRoutes: [{name: r, rules: [{}]}]\n"), `f.yaml:6:17: servers[0].httpRoutes: they require the proxyProtocol unknown, HTTP/1 or HTTP/2`},
		{"gRPC routes of a server", server("grpcRoutes: [{name: r, rules: [{}]}]\n"), `f.yaml:5:17: servers[0].grpcRoutes: they require proxyProtocol: gRPC`},
		{"rate limit of gRPC", server("proxyProtocol: gRPC\n    httpLocalRateLimit: {name: l, total: {requestsPerSecond: 1}}\n"), `f.yaml:6:25: servers[0].httpLocalRateLimit: it requires the proxyProtocol unknown, HTTP/1 or HTTP/2`},
		{"rule of a server", server("httpRoutes: [{name: r, rules: [{backendRefs: [{name: a}]}]}]\n"), `f.yaml:5:36: servers[0].httpRoutes[0].rules[0]: backendRefs, timeouts and retry are for rules of destinations only: take them out`},
		{"filter of a server", server("httpRoutes: [{name: r, rules: [{filters: [{type: ResponseHeaderModifier}]}]}]\n"), `f.yaml:5:54: servers[0].httpRoutes[0].rules[0].filters[0].type "ResponseHeaderModifier": want one of RequestHeaderModifier, RequestRedirect`},
		{"authorization without clients", server("authorizationPolicies: [{name: a}]\n"), `f.yaml:5:29: servers[0].authorizationPolicies[0]: missing: want networks, identities, serviceAccounts, unauthenticated or unauthenticatedTLS`},
		{"authorization without identities", server("authorizationPolicies: [{name: a, identities: [], networks: [{cidr: 10.0.0.0/8}]}]\n"), `f.yaml:5:29: servers[0].authorizationPolicies[0]: an empty list of networks, identities or serviceAccounts permits no client: take it out`},
		{"authorization without networks", server("authorizationPolicies: [{name: a, unauthenticated: true, networks: []}]\n"), `f.yaml:5:29: servers[0].authorizationPolicies[0]: an empty list of networks, identities or serviceAccounts permits no client: take it out`},
		{"authorization of two kinds", server("authorizationPolicies: [{name: a, unauthenticated: true, identities: ['*']}]\n"), `f.yaml:5:29: servers[0].authorizationPolicies[0]: unauthenticated, unauthenticatedTLS and identities exclude each other: want one of them`},
		{"authorization network", server("authorizationPolicies: [{name: a, networks: [{cidr: 10.0.0.0/33}]}]\n"), `f.yaml:5:57: servers[0].authorizationPolicies[0].networks[0].cidr "10.0.0.0/33": want a network such as 10.0.0.0/8, or an IP address`},
		{"authorization without network", server("authorizationPolicies: [{name: a, networks: [{}]}]\n"), `f.yaml:5:50: servers[0].authorizationPolicies[0].networks[0].cidr: missing: cidr is required`},
		{"authorization without an identity", server("authorizationPolicies: [{name: a, identities: ['']}]\n"), `f.yaml:5:52: servers[0].authorizationPolicies[0].identities[0]: want a name, a URI, * or *.NAME`},
		{"authorization without a suffix", server("authorizationPolicies: [{name: a, identities: ['*.']}]\n"), `f.yaml:5:52: servers[0].authorizationPolicies[0].identities[0] "*.": want a name, a URI, * or *.NAME`},
		{"authorization identity", server("authorizationPolicies: [{name: a, identities: ['a*']}]\n"), `f.yaml:5:52: servers[0].authorizationPolicies[0].identities[0] "a*": '*' is not allowed in a name`},
		{"service account", server("authorizationPolicies: [{name: a, serviceAccounts: [{name: sa}]}]\n"), "f.yaml:5:57: servers[0].authorizationPolicies[0].serviceAccounts[0].namespace: missing: namespace is required\nf.yaml:5:64: servers[0].authorizationPolicies[0].serviceAccounts[0].name \"sa\": a label is empty"},
		{"rate limit without limits", server("httpLocalRateLimit: {name: l}\n"), `f.yaml:5:25: servers[0].httpLocalRateLimit: missing: want total, identity or overrides`},
		{"limit 0", server("httpLocalRateLimit: {name: l, total: {requestsPerSecond: 0}}\n"), `f.yaml:5:62: servers[0].httpLocalRateLimit.total.requestsPerSecond "0": want a whole number from 1 to 4294967295`},
		{"limit without rate", server("httpLocalRateLimit: {name: l, total: {}}\n"), `f.yaml:5:42: servers[0].httpLocalRateLimit.total.requestsPerSecond: missing: requestsPerSecond is required`},
		{"override without clients", server("httpLocalRateLimit: {name: l, overrides: [{requestsPerSecond: 1}]}\n"), `f.yaml:5:47: servers[0].httpLocalRateLimit.overrides[0]: missing: want clientRefs or identities`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("f.yaml", []byte(c.yaml))
			require.EqualError(t, err, c.want)
			require.Empty(t, cfg)
		})
	}
}
