package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/wire"
)

// Server configures the inbound policy of one port of a workload. Workload is the text by
// which the proxies of the workload identify it when they request the policy.
type Server struct {
	Workload string // "" means all workloads that have no Server of their own for Port
	Port     uint16
	Policy   *inbound.Server
}

// AccessPolicy specifies the clients that are permitted even if no authorization policy
// permits them. The values are those of accessPolicy and defaultInboundPolicy in linkerd.
type AccessPolicy string

// The access policies. Those with "all" permit clients at all addresses. Those with
// "cluster" permit only clients in the networks of the cluster. "authenticated" requires a
// client identity. "tls-unauthenticated" requires TLS, but no identity. Audit permits all
// clients, and Deny rejects all clients.
const (
	Deny                   AccessPolicy = "deny"
	AllUnauthenticated     AccessPolicy = "all-unauthenticated"
	AllAuthenticated       AccessPolicy = "all-authenticated"
	AllTLSUnauthenticated  AccessPolicy = "all-tls-unauthenticated"
	ClusterUnauthenticated AccessPolicy = "cluster-unauthenticated"
	ClusterAuthenticated   AccessPolicy = "cluster-authenticated"
	Audit                  AccessPolicy = "audit"
)

// AccessPolicies returns all access policies. Deny is the first, because it is the default
// of a server.
func AccessPolicies() []string {
	return []string{
		string(Deny), string(AllUnauthenticated), string(AllAuthenticated), string(AllTLSUnauthenticated),
		string(ClusterUnauthenticated), string(ClusterAuthenticated), string(Audit),
	}
}

// serverKey identifies one port of a workload.
type serverKey struct {
	workload string
	port     uint16
}

// inboundState is the inbound policy of all ports, in messages of the API.
type inboundState struct {
	servers   map[serverKey]*inbound.Server
	otherwise *inbound.Server // policy of ports that have no server
}

// server returns the policy of one port of a workload. If the workload has no policy for
// the port, it returns the policy of this port for all workloads, or else the default
// policy.
func (s inboundState) server(key serverKey) *inbound.Server {
	if msg := s.servers[key]; msg != nil {
		return msg
	}
	if msg := s.servers[serverKey{port: key.port}]; msg != nil {
		return msg
	}
	return s.otherwise
}

// compileInbound checks the servers and the default inbound policy of cfg, and converts
// them to messages of the API.
func compileInbound(cfg Config) (inboundState, error) {
	p := cfg.DefaultInboundPolicy
	if p == "" {
		p = AllUnauthenticated
	}
	var errs []error
	if !slices.Contains(AccessPolicies(), string(p)) {
		errs = append(errs, fmt.Errorf("default inbound policy %q must be one of %s", p, strings.Join(AccessPolicies(), ", ")))
	}
	s := inboundState{
		servers:   make(map[serverKey]*inbound.Server, len(cfg.Servers)),
		otherwise: DefaultServer(p, cfg.ClusterNetworks, false),
	}
	for _, server := range cfg.Servers {
		key := serverKey{server.Workload, server.Port}
		switch {
		case server.Port == 0:
			errs = append(errs, errors.New("server: the port must not be 0"))
		case server.Policy == nil:
			errs = append(errs, fmt.Errorf("server of port %d: the policy is required", server.Port))
		case s.servers[key] != nil:
			errs = append(errs, fmt.Errorf("server of port %d of workload %q is given twice", server.Port, server.Workload))
		default:
			s.servers[key] = proto.CloneOf(server.Policy)
			if _, err := proto.Marshal(server.Policy); err != nil {
				errs = append(errs, fmt.Errorf("server of port %d cannot be encoded: %w", server.Port, err))
			}
		}
	}
	return s, errors.Join(errs...)
}

// DefaultServer returns the policy of ports without a server in the configuration. The
// argument p is the default inbound policy, and cluster has the networks of the cluster. An
// empty cluster means the default networks of linkerd. If opaque is true, connections are
// forwarded as bytes.
func DefaultServer(p AccessPolicy, cluster []netip.Prefix, opaque bool) *inbound.Server {
	protocol := &inbound.ProxyProtocol{Kind: &inbound.ProxyProtocol_Opaque_{Opaque: &inbound.ProxyProtocol_Opaque{}}}
	if !opaque {
		protocol.Kind = &inbound.ProxyProtocol_Detect_{Detect: &inbound.ProxyProtocol_Detect{
			Timeout: durationpb.New(detectTimeout), HttpRoutes: []*inbound.HttpRoute{defaultInboundRoute()},
		}}
	}
	return &inbound.Server{
		Protocol:       protocol,
		Authorizations: accessAuthorization(p, cluster),
		Labels:         map[string]string{"group": "", "kind": "default", "name": string(p)},
	}
}

// defaultInboundRoute returns the route of a server for which no route is configured. It
// matches all requests.
func defaultInboundRoute() *inbound.HttpRoute {
	return &inbound.HttpRoute{Metadata: defaultMetadata("default"), Rules: []*inbound.HttpRoute_Rule{{}}}
}

// accessAuthorization returns the authorization for the clients that p permits, or nil for
// Deny. The argument cluster has the networks of the cluster. If it is empty, they are the
// default networks of linkerd.
func accessAuthorization(p AccessPolicy, cluster []netip.Prefix) []*inbound.Authz {
	if p == Deny {
		return nil
	}
	networks := allNetworks()
	if p == ClusterUnauthenticated || p == ClusterAuthenticated {
		if networks = cluster; len(networks) == 0 {
			networks = clusterNetworks()
		}
	}
	authn := unauthenticated()
	switch p {
	case AllAuthenticated, ClusterAuthenticated:
		authn = identified(nil, []*inbound.IdentitySuffix{{}})
	case AllTLSUnauthenticated:
		authn = anyTLS()
	case AllUnauthenticated, ClusterUnauthenticated, Audit, Deny:
	}
	a := &inbound.Authz{
		Authentication: authn, Metadata: defaultMetadata(string(p)),
		Labels: map[string]string{"group": "", "kind": "default", "name": string(p)},
	}
	for _, n := range networks {
		a.Networks = append(a.Networks, &inbound.Network{Net: networkMessage(n)})
	}
	return []*inbound.Authz{a}
}

// clusterNetworks returns the networks that linkerd uses by default as networks of a
// cluster.
func clusterNetworks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fd00::/8"),
	}
}

// allNetworks returns networks that contain all IP addresses.
func allNetworks() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
}

// unauthenticated returns an authentication that permits all clients.
func unauthenticated() *inbound.Authn {
	return &inbound.Authn{Permit: &inbound.Authn_Unauthenticated{Unauthenticated: &inbound.Authn_PermitUnauthenticated{}}}
}

// anyTLS returns an authentication that permits clients with TLS, with or without an
// identity.
func anyTLS() *inbound.Authn {
	return &inbound.Authn{Permit: &inbound.Authn_MeshTLS{MeshTLS: &inbound.Authn_PermitMeshTLS{
		Clients: &inbound.Authn_PermitMeshTLS_Unauthenticated{Unauthenticated: &inbound.Authn_PermitUnauthenticated{}},
	}}}
}

// identified returns an authentication that permits clients with one of the identities, or
// with an identity that ends in one of the suffixes. An empty suffix matches any identity.
func identified(identities []*inbound.Identity, suffixes []*inbound.IdentitySuffix) *inbound.Authn {
	return &inbound.Authn{Permit: &inbound.Authn_MeshTLS{MeshTLS: &inbound.Authn_PermitMeshTLS{
		Clients: &inbound.Authn_PermitMeshTLS_Identities{Identities: &inbound.Authn_PermitMeshTLS_PermitClientIdentities{
			Identities: identities, Suffixes: suffixes,
		}},
	}}}
}

// networkMessage returns p as a message of the API.
func networkMessage(p netip.Prefix) *apinet.IPNetwork {
	p = p.Masked()
	return &apinet.IPNetwork{Ip: wire.FromIP(p.Addr()), PrefixLen: uint32(p.Bits())}
}

// servers converts the servers of the file. The argument cluster has the networks of the
// cluster. servers adds an error if a port of a workload has two servers.
func (r *reader) servers(list []serverYAML, cluster []netip.Prefix) []Server {
	if len(list) == 0 {
		return nil
	}
	servers := make([]Server, 0, len(list))
	first, names := make(map[serverKey]int), make(map[string]int)
	for _, y := range list {
		r.named("server", y.At, y.Name, names)
		s := Server{Workload: y.Workload.value}
		if !y.Port.given() {
			r.missing(y.At.n, "the server has no port")
		} else if s.Port = r.port(y.Port); s.Port != 0 {
			key := serverKey{s.Workload, s.Port}
			if was, twice := first[key]; twice {
				r.failf(y.Port.line, "port %d has two servers, the first in line %d", s.Port, was)
			}
			first[key] = y.Port.line
		}
		s.Policy = r.server(y, cluster)
		servers = append(servers, s)
	}
	return servers
}

// server converts one server with its routes and authorizations. cluster has the networks
// of the cluster. server adds an error for routes and rate limits that the protocol does
// not allow.
func (r *reader) server(y serverYAML, cluster []netip.Prefix) *inbound.Server {
	labels := map[string]string{"group": policyGroup, "kind": "server", "name": y.Name.value}
	access := AccessPolicy(r.oneOf("accessPolicy", y.AccessPolicy, AccessPolicies()...))
	msg := &inbound.Server{
		Labels:         labels,
		Authorizations: append(r.authorizations(y.Authorizations), accessAuthorization(access, cluster)...),
		Protocol:       &inbound.ProxyProtocol{},
	}
	protocol := r.oneOf("proxyProtocol", y.ProxyProtocol,
		protocolUnknown, protocolHTTP1, protocolHTTP2, protocolGRPC, protocolOpaque, protocolTLS)
	names := make(map[string]int)
	routes := make([]*inbound.HttpRoute, 0, len(y.HTTPRoutes)+1)
	for _, route := range y.HTTPRoutes {
		r.policyRoute(route.At, route.Name, len(route.Rules), names)
		routes = append(routes, r.inboundHTTP(route))
	}
	if len(routes) == 0 {
		routes = append(routes, defaultInboundRoute())
	}
	calls := make([]*inbound.GrpcRoute, 0, len(y.GRPCRoutes)+1)
	for _, route := range y.GRPCRoutes {
		r.policyRoute(route.At, route.Name, len(route.Rules), names)
		calls = append(calls, r.inboundGRPC(route))
	}
	if len(calls) == 0 {
		calls = append(calls, &inbound.GrpcRoute{Metadata: defaultMetadata("default"), Rules: []*inbound.GrpcRoute_Rule{{}}})
	}
	limit := r.rateLimit(y.RateLimit)
	isHTTP := protocol == protocolUnknown || protocol == protocolHTTP1 || protocol == protocolHTTP2
	switch {
	case len(y.GRPCRoutes) > 0 && protocol != protocolGRPC:
		r.failf(y.At.n, "grpcRoutes require proxyProtocol gRPC")
	case len(y.HTTPRoutes) > 0 && !isHTTP:
		r.failf(y.At.n, "httpRoutes require proxyProtocol unknown, HTTP/1 or HTTP/2")
	case y.RateLimit != nil && !isHTTP:
		r.failf(y.At.n, "httpLocalRateLimit requires proxyProtocol unknown, HTTP/1 or HTTP/2")
	}
	switch protocol {
	case protocolHTTP1:
		msg.Protocol.Kind = &inbound.ProxyProtocol_Http1_{Http1: &inbound.ProxyProtocol_Http1{Routes: routes, LocalRateLimit: limit}}
	case protocolHTTP2:
		msg.Protocol.Kind = &inbound.ProxyProtocol_Http2_{Http2: &inbound.ProxyProtocol_Http2{Routes: routes, LocalRateLimit: limit}}
	case protocolGRPC:
		msg.Protocol.Kind = &inbound.ProxyProtocol_Grpc_{Grpc: &inbound.ProxyProtocol_Grpc{Routes: calls}}
	case protocolOpaque:
		msg.Protocol.Kind = &inbound.ProxyProtocol_Opaque_{Opaque: &inbound.ProxyProtocol_Opaque{}}
	case protocolTLS:
		msg.Protocol.Kind = &inbound.ProxyProtocol_Tls_{Tls: &inbound.ProxyProtocol_Tls{}}
	default:
		msg.Protocol.Kind = &inbound.ProxyProtocol_Detect_{Detect: &inbound.ProxyProtocol_Detect{
			Timeout: durationpb.New(detectTimeout), HttpRoutes: routes, HttpLocalRateLimit: limit,
		}}
	}
	return msg
}

// inboundHTTP converts an HTTPRoute of a server.
func (r *reader) inboundHTTP(y policyRouteYAML[httpMatchYAML]) *inbound.HttpRoute {
	route := &inbound.HttpRoute{
		Metadata: resourceMetadata(gatewayGroup, "HTTPRoute", y.Name.value), Hosts: r.hostnames(y.Hostnames),
		Authorizations: r.authorizations(y.Authorizations),
	}
	for _, rule := range y.Rules {
		notOutbound(r, rule)
		msg := &inbound.HttpRoute_Rule{Matches: r.httpMatches(rule.Matches)}
		for _, f := range r.filters(rule.Filters, requestFilter, redirectFilter) {
			m := &inbound.HttpRoute_Filter{Kind: &inbound.HttpRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: f.request}}
			if f.redirect != nil {
				m.Kind = &inbound.HttpRoute_Filter_Redirect{Redirect: f.redirect}
			}
			msg.Filters = append(msg.Filters, m)
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// inboundGRPC converts a GRPCRoute of a server.
func (r *reader) inboundGRPC(y policyRouteYAML[grpcMatchYAML]) *inbound.GrpcRoute {
	route := &inbound.GrpcRoute{
		Metadata: resourceMetadata(gatewayGroup, "GRPCRoute", y.Name.value), Hosts: r.hostnames(y.Hostnames),
		Authorizations: r.authorizations(y.Authorizations),
	}
	for _, rule := range y.Rules {
		notOutbound(r, rule)
		msg := &inbound.GrpcRoute_Rule{Matches: r.grpcMatches(rule.Matches)}
		for _, f := range r.filters(rule.Filters, requestFilter) {
			msg.Filters = append(msg.Filters, &inbound.GrpcRoute_Filter{
				Kind: &inbound.GrpcRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: f.request},
			})
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// notOutbound adds an error if the rule y of a server has fields that only rules of
// destinations may have.
func notOutbound[M any](r *reader, y policyRuleYAML[M]) {
	if len(y.BackendRefs) > 0 || y.Timeouts != nil || y.Retry != nil {
		r.failf(y.At.n, "a rule of a server has no backendRefs, timeouts and retry")
	}
}

// authorizations converts the authorization policies of a server or route.
func (r *reader) authorizations(list []authorizationYAML) []*inbound.Authz {
	authorizations := make([]*inbound.Authz, 0, len(list))
	names := make(map[string]int)
	for _, y := range list {
		r.named("authorization policy", y.At, y.Name, names)
		m := resourceMetadata(policyGroup, "authorizationpolicy", y.Name.value)
		a := &inbound.Authz{Metadata: m, Labels: oldLabels(m), Authentication: r.authentication(y)}
		for _, n := range y.Networks {
			if !n.CIDR.given() {
				r.missing(n.At.n, "the network has no cidr")
			}
			msg := &inbound.Network{Net: networkMessage(r.prefix(n.CIDR))}
			for _, e := range n.Except {
				msg.Except = append(msg.Except, networkMessage(r.prefix(e)))
			}
			a.Networks = append(a.Networks, msg)
		}
		if len(y.Networks) == 0 {
			for _, n := range allNetworks() {
				a.Networks = append(a.Networks, &inbound.Network{Net: networkMessage(n)})
			}
		}
		authorizations = append(authorizations, a)
	}
	return authorizations
}

// oldLabels returns the labels group, kind and name of the resource in m. They are for old
// proxies, which read these labels instead of the metadata m.
func oldLabels(m *meta.Metadata) map[string]string {
	res := m.GetResource()
	return map[string]string{"group": res.GetGroup(), "kind": res.GetKind(), "name": res.GetName()}
}

// authentication converts the fields of y that specify which clients the policy permits. If
// y has networks but none of these fields, the policy permits all clients in the networks,
// as with a NetworkAuthentication of linkerd.
func (r *reader) authentication(y authorizationYAML) *inbound.Authn {
	open := r.boolean("unauthenticated", y.Unauthenticated, false)
	tls := r.boolean("unauthenticatedTLS", y.AnyTLS, false)
	named := len(y.Identities)+len(y.ServiceAccounts) > 0
	switch {
	case open && tls, open && named, tls && named:
		r.failf(y.At.n, "unauthenticated, unauthenticatedTLS and identities exclude each other")
	case isEmpty(y.Networks) || isEmpty(y.Identities) || isEmpty(y.ServiceAccounts):
		r.missing(y.At.n, "the authorization policy has an empty list of networks, identities or serviceAccounts")
	case !open && !tls && !named && len(y.Networks) == 0:
		r.missing(y.At.n, "the authorization policy has no networks, identities, serviceAccounts, unauthenticated or unauthenticatedTLS")
	}
	switch {
	case tls:
		return anyTLS()
	case !named:
		return unauthenticated()
	}
	var identities []*inbound.Identity
	var suffixes []*inbound.IdentitySuffix
	for _, t := range y.Identities {
		suffix, wildcard := strings.CutPrefix(t.value, "*.")
		switch {
		case suffix == "":
			r.failf(t.line, "identity %q: want a name, a URI, * or *.NAME", t.value)
		case t.value == "*":
			suffixes = append(suffixes, &inbound.IdentitySuffix{})
		case wildcard:
			r.check(t.line, checkIdentity(suffix))
			suffixes = append(suffixes, &inbound.IdentitySuffix{Parts: strings.Split(suffix, ".")})
		default:
			r.check(t.line, checkIdentity(t.value))
			identities = append(identities, &inbound.Identity{Name: t.value})
		}
	}
	return identified(append(identities, r.serviceAccounts(y.ServiceAccounts)...), suffixes)
}

// isEmpty returns whether the file has list and list is empty. Such a list permits no client, but
// without it a policy permits all networks or all clients in its networks.
func isEmpty[T any](list []T) bool { return list != nil && len(list) == 0 }

// serviceAccounts returns the identities that linkerd gives to the service accounts in
// list.
func (r *reader) serviceAccounts(list []serviceAccountYAML) []*inbound.Identity {
	var identities []*inbound.Identity
	for _, y := range list {
		if !y.Name.given() || !y.Namespace.given() {
			r.missing(y.At.n, "the service account must have a namespace and a name")
			continue
		}
		id := y.Name.value + "." + y.Namespace.value + ".serviceaccount.identity.linkerd.cluster.local"
		r.check(y.Name.line, checkIdentity(id))
		identities = append(identities, &inbound.Identity{Name: id})
	}
	return identities
}

// prefix parses a network, such as 10.0.0.0/8, or an IP address. For an invalid value it
// adds an error and returns 0.0.0.0/0, so that no second error follows from the first. For
// a missing value it returns 0.0.0.0/0 without an error.
func (r *reader) prefix(t text) netip.Prefix {
	if p, err := netip.ParsePrefix(t.value); err == nil {
		return p.Masked()
	}
	if ip, err := netip.ParseAddr(t.value); err == nil && ip.Zone() == "" {
		return netip.PrefixFrom(ip, ip.BitLen())
	}
	if t.given() {
		r.failf(t.line, "%q is not a network such as 10.0.0.0/8", t.value)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// rateLimit converts the rate limits of a server. It returns nil if y is nil, because
// requests are then not limited.
func (r *reader) rateLimit(y *rateLimitYAML) *inbound.HttpLocalRateLimit {
	if y == nil {
		return nil
	}
	r.named("rate limit", y.At, y.Name, make(map[string]int))
	msg := &inbound.HttpLocalRateLimit{
		Metadata: resourceMetadata(policyGroup, "HTTPLocalRateLimitPolicy", y.Name.value),
		Total:    r.limit(y.Total), Identity: r.limit(y.Identity),
	}
	for _, o := range y.Overrides {
		if len(o.Clients)+len(o.Named) == 0 {
			r.missing(o.At.n, "the override has no clientRefs and no identities")
		}
		identities := r.serviceAccounts(o.Clients)
		for _, t := range o.Named {
			r.check(t.line, checkIdentity(t.value))
			identities = append(identities, &inbound.Identity{Name: t.value})
		}
		msg.Overrides = append(msg.Overrides, &inbound.HttpLocalRateLimit_Override{
			Limit:   r.limit(&limitYAML{o.At, o.Rate}),
			Clients: &inbound.HttpLocalRateLimit_Override_ClientIdentities{Identities: identities},
		})
	}
	if msg.GetTotal() == nil && msg.GetIdentity() == nil && len(msg.GetOverrides()) == 0 {
		r.missing(y.At.n, "the rate limit has no total, identity or overrides")
	}
	return msg
}

// limit converts one rate limit. It returns nil if y is nil.
func (r *reader) limit(y *limitYAML) *inbound.HttpLocalRateLimit_Limit {
	switch {
	case y == nil:
		return nil
	case !y.Rate.given():
		r.missing(y.At.n, "the limit has no requestsPerSecond")
		return &inbound.HttpLocalRateLimit_Limit{}
	}
	n := r.number("requestsPerSecond", y.Rate)
	if n == 0 {
		r.failf(y.Rate.line, "requestsPerSecond 0: want at least 1, or leave the limit out")
	}
	return &inbound.HttpLocalRateLimit_Limit{RequestsPerSecond: n}
}
