package controller

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/internal/yamlfile"
)

// Server configures the inbound policy for one port of a workload. Workload is the text by which
// the workload's proxies identify it when they ask.
type Server struct {
	Workload string // "" means every workload without its own Server for Port
	Port     uint16
	Policy   *inbound.Server
}

// AccessPolicy says which clients are permitted even if no authorization policy mentions them.
// The values are the same as for linkerd's accessPolicy and defaultInboundPolicy.
type AccessPolicy string

// Access policies. "all" permits clients at any address, and "cluster" only those in the
// cluster's networks. "authenticated" requires a client identity, while "tls-unauthenticated"
// requires only TLS, and "unauthenticated" nothing. Deny permits nobody. Audit permits the same as
// AllUnauthenticated; only the name of the authorization differs, by which proxies report what they
// have permitted.
const (
	Deny                   AccessPolicy = "deny"
	AllUnauthenticated     AccessPolicy = "all-unauthenticated"
	AllAuthenticated       AccessPolicy = "all-authenticated"
	AllTLSUnauthenticated  AccessPolicy = "all-tls-unauthenticated"
	ClusterUnauthenticated AccessPolicy = "cluster-unauthenticated"
	ClusterAuthenticated   AccessPolicy = "cluster-authenticated"
	Audit                  AccessPolicy = "audit"
)

// AccessPolicies returns all access policies, starting with Deny, a server's default.
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

// inboundState is every port's inbound policy, as API messages.
type inboundState struct {
	servers   map[serverKey]*inbound.Server
	otherwise *inbound.Server // for ports without a server
}

// server returns the policy for a workload's port. It falls back to the policy that all workloads
// share for this port, and then to the default policy.
func (s inboundState) server(key serverKey) *inbound.Server {
	if msg := s.servers[key]; msg != nil {
		return msg
	}
	// A key without a workload stands for all workloads.
	if msg := s.servers[serverKey{port: key.port}]; msg != nil {
		return msg
	}
	return s.otherwise
}

// compileInbound checks cfg's servers and default inbound policy and converts them to API
// messages.
func compileInbound(cfg Config) (inboundState, error) {
	p := cfg.DefaultInboundPolicy
	if p == "" {
		p = AllUnauthenticated
	}
	// v has no file: it only collects mistakes, with the path of each.
	v := yamlfile.Program(nil)
	if !slices.Contains(AccessPolicies(), string(p)) {
		v.At("defaultInboundPolicy").Rejectf(p, "want one of %s", strings.Join(AccessPolicies(), ", "))
	}
	s := inboundState{
		servers:   make(map[serverKey]*inbound.Server, len(cfg.Servers)),
		otherwise: DefaultServer(p, cfg.ClusterNetworks, false), // not opaque
	}
	for i, server := range cfg.Servers {
		key := serverKey{server.Workload, server.Port}
		item := v.At("servers").Item(i)
		// The order matters: only a server without one of these mistakes is stored.
		switch {
		case server.Port == 0:
			item.At("port").Rejectf(server.Port, "want a port from 1 to 65535")
		case server.Policy == nil:
			item.Failf("missing: the policy is required")
		case s.servers[key] != nil:
			item.At("port").Rejectf(server.Port, "another server has this port of workload %q: take one out", server.Workload)
		default:
			s.servers[key] = proto.CloneOf(server.Policy)
			if _, err := proto.Marshal(server.Policy); err != nil {
				item.Failf("cannot be encoded: %v", err)
			}
		}
	}
	return s, yamlfile.Join(v.Mistakes)
}

// DefaultServer returns the policy for ports without a server. p is the default inbound policy,
// and cluster lists the cluster's networks; if it is empty, linkerd's defaults apply. If opaque
// is true, connections are forwarded as bytes.
func DefaultServer(p AccessPolicy, cluster []netip.Prefix, opaque bool) *inbound.Server {
	// Opaque is the starting point, because it needs no routes.
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

// defaultInboundRoute returns the route for a server that configures none. It matches all
// requests.
func defaultInboundRoute() *inbound.HttpRoute {
	return &inbound.HttpRoute{Metadata: defaultMetadata("default"), Rules: []*inbound.HttpRoute_Rule{{}}}
}

// accessAuthorization returns the authorization for the clients that p permits, or nil for Deny.
// cluster lists the cluster's networks; if it is empty, linkerd's defaults apply.
func accessAuthorization(p AccessPolicy, cluster []netip.Prefix) []*inbound.Authz {
	if p == Deny {
		return nil
	}
	networks := allNetworks()
	if p == ClusterUnauthenticated || p == ClusterAuthenticated {
		// Without configured networks, linkerd's defaults are those of the cluster.
		if networks = cluster; len(networks) == 0 {
			networks = DefaultClusterNetworks()
		}
	}
	authn := unauthenticated()
	switch p {
	case AllAuthenticated, ClusterAuthenticated:
		// An empty suffix matches every identity.
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

// DefaultClusterNetworks returns the networks that linkerd assumes a cluster to use.
func DefaultClusterNetworks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fd00::/8"),
	}
}

// allNetworks returns networks that contain all IP addresses.
func allNetworks() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
}

// unauthenticated permits all clients.
func unauthenticated() *inbound.Authn {
	return &inbound.Authn{Permit: &inbound.Authn_Unauthenticated{Unauthenticated: &inbound.Authn_PermitUnauthenticated{}}}
}

// anyTLS permits clients that use TLS, with or without an identity.
func anyTLS() *inbound.Authn {
	return &inbound.Authn{Permit: &inbound.Authn_MeshTLS{MeshTLS: &inbound.Authn_PermitMeshTLS{
		Clients: &inbound.Authn_PermitMeshTLS_Unauthenticated{Unauthenticated: &inbound.Authn_PermitUnauthenticated{}},
	}}}
}

// identified permits clients with one of the identities, or whose identity ends in one of the
// suffixes. An empty suffix matches any identity.
func identified(identities []*inbound.Identity, suffixes []*inbound.IdentitySuffix) *inbound.Authn {
	return &inbound.Authn{Permit: &inbound.Authn_MeshTLS{MeshTLS: &inbound.Authn_PermitMeshTLS{
		Clients: &inbound.Authn_PermitMeshTLS_Identities{Identities: &inbound.Authn_PermitMeshTLS_PermitClientIdentities{
			Identities: identities, Suffixes: suffixes,
		}},
	}}}
}

// networkMessage returns p as an API message.
func networkMessage(p netip.Prefix) *apinet.IPNetwork {
	p = p.Masked()
	return &apinet.IPNetwork{Ip: wire.FromIP(p.Addr()), PrefixLen: uint32(p.Bits())}
}

// checkServers adds a mistake for each server in list that repeats the name, or the port of the workload,
// of an earlier one. list is at v in the file.
func checkServers(v yamlfile.Value, list []serverYAML) {
	// Both maps contain where the first one is, for the error.
	ports := make(map[serverKey]int)
	names := make(map[string]string)
	for i, y := range list {
		unique(y.At.At("name"), y.Name, names)
		key := serverKey{y.Workload, y.Port}
		if earlier, repeated := ports[key]; repeated {
			v.Item(i).At("port").Rejectf(y.Port, "the port of servers[%d]: want one server for a port of a workload", earlier)
		}
		ports[key] = i
	}
}

// message converts a server with its routes and authorizations. cluster lists the networks from which
// the access policies ClusterUnauthenticated and ClusterAuthenticated permit clients. Routes or a rate
// limit that the protocol does not support are a mistake in the file.
func (y *serverYAML) message(cluster []netip.Prefix) *inbound.Server {
	msg := &inbound.Server{
		Labels:         map[string]string{"group": policyGroup, "kind": "server", "name": y.Name},
		Authorizations: append(authorizations(y.Authorizations), accessAuthorization(y.AccessPolicy, cluster)...),
		Protocol:       &inbound.ProxyProtocol{},
	}
	protocol := y.ProxyProtocol
	names := make(map[string]string)
	routes := make([]*inbound.HttpRoute, 0, len(y.HTTPRoutes)+1)
	// Names are unique among all routes of the server, so names is shared by both loops.
	for _, route := range y.HTTPRoutes {
		checkRoute(route.At, route.Name, len(route.Rules), names)
		routes = append(routes, inboundHTTP(route))
	}
	// A server without routes permits all requests that its authorizations permit.
	if len(routes) == 0 {
		routes = append(routes, defaultInboundRoute())
	}
	calls := make([]*inbound.GrpcRoute, 0, len(y.GRPCRoutes)+1)
	for _, route := range y.GRPCRoutes {
		checkRoute(route.At, route.Name, len(route.Rules), names)
		calls = append(calls, inboundGRPC(route))
	}
	if len(calls) == 0 {
		calls = append(calls, &inbound.GrpcRoute{Metadata: defaultMetadata("default"), Rules: []*inbound.GrpcRoute_Rule{{}}})
	}
	limit := y.RateLimit.message()
	// A rate limit and HTTPRoutes need HTTP. If the protocol is unknown, it may be detected as HTTP.
	isHTTP := protocol == protocolUnknown || protocol == protocolHTTP1 || protocol == protocolHTTP2
	switch {
	case len(y.GRPCRoutes) > 0 && protocol != protocolGRPC:
		y.At.At("grpcRoutes").Failf("they require proxyProtocol: gRPC")
	case len(y.HTTPRoutes) > 0 && !isHTTP:
		y.At.At("httpRoutes").Failf("they require the proxyProtocol unknown, HTTP/1 or HTTP/2")
	case y.RateLimit != nil && !isHTTP:
		y.At.At("httpLocalRateLimit").Failf("it requires the proxyProtocol unknown, HTTP/1 or HTTP/2")
	}
	// gRPC requests use calls and the other HTTP protocols use routes, so one of the two lists stays unused.
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

// inboundHTTP converts a server's HTTPRoute.
func inboundHTTP(y policyRouteYAML[httpMatchYAML]) *inbound.HttpRoute {
	route := &inbound.HttpRoute{
		Metadata: resourceMetadata(gatewayGroup, "HTTPRoute", y.Name), Hosts: hostMatches(y.At.At("hostnames"), y.Hostnames),
		Authorizations: authorizations(y.Authorizations),
	}
	for _, rule := range y.Rules {
		checkInboundRule(rule)
		msg := &inbound.HttpRoute_Rule{Matches: httpMatches(rule.Matches)}
		// Inbound routes can only change request headers and redirect.
		for _, f := range filters(rule.Filters, requestFilter, redirectFilter) {
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

// inboundGRPC converts a server's GRPCRoute.
func inboundGRPC(y policyRouteYAML[grpcMatchYAML]) *inbound.GrpcRoute {
	route := &inbound.GrpcRoute{
		Metadata: resourceMetadata(gatewayGroup, "GRPCRoute", y.Name), Hosts: hostMatches(y.At.At("hostnames"), y.Hostnames),
		Authorizations: authorizations(y.Authorizations),
	}
	for _, rule := range y.Rules {
		checkInboundRule(rule)
		msg := &inbound.GrpcRoute_Rule{Matches: grpcMatches(rule.Matches)}
		// Of all filters, an inbound gRPC route only has the one for request headers.
		for _, f := range filters(rule.Filters, requestFilter) {
			msg.Filters = append(msg.Filters, &inbound.GrpcRoute_Filter{
				Kind: &inbound.GrpcRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: f.request},
			})
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// checkInboundRule adds a mistake if y has fields that only the rules of destinations may use.
func checkInboundRule[M any](y policyRuleYAML[M]) {
	if len(y.BackendRefs) > 0 || y.Timeouts != nil || y.Retry != nil {
		y.At.Failf("backendRefs, timeouts and retry are for rules of destinations only: take them out")
	}
}

// authorizations converts a server's or route's authorization policies.
func authorizations(list []authorizationYAML) []*inbound.Authz {
	authorizations := make([]*inbound.Authz, 0, len(list))
	names := make(map[string]string)
	for _, y := range list {
		unique(y.At.At("name"), y.Name, names)
		m := resourceMetadata(policyGroup, "authorizationpolicy", y.Name)
		a := &inbound.Authz{Metadata: m, Labels: oldLabels(m), Authentication: y.authentication()}
		for _, n := range y.Networks {
			msg := &inbound.Network{Net: networkMessage(n.CIDR)}
			for _, e := range n.Except {
				msg.Except = append(msg.Except, networkMessage(e))
			}
			a.Networks = append(a.Networks, msg)
		}
		// Without networks, clients at any address are permitted.
		if len(y.Networks) == 0 {
			for _, n := range allNetworks() {
				a.Networks = append(a.Networks, &inbound.Network{Net: networkMessage(n)})
			}
		}
		authorizations = append(authorizations, a)
	}
	return authorizations
}

// oldLabels repeats the resource in m as labels, for old proxies that do not read metadata.
func oldLabels(m *meta.Metadata) map[string]string {
	res := m.GetResource()
	return map[string]string{"group": res.GetGroup(), "kind": res.GetKind(), "name": res.GetName()}
}

// authentication converts the fields that say which clients the policy permits. With networks and
// nothing else, it permits every client in these networks, like linkerd's NetworkAuthentication.
func (y *authorizationYAML) authentication() *inbound.Authn {
	// open, tls and named are the three ways to say which clients are permitted.
	open := y.Unauthenticated
	tls := y.AnyTLS
	named := len(y.Identities)+len(y.ServiceAccounts) > 0
	// The order matters: the message names the most specific mistake.
	switch {
	case open && tls, open && named, tls && named:
		y.At.Failf("unauthenticated, unauthenticatedTLS and identities exclude each other: want one of them")
	case isEmpty(y.Networks) || isEmpty(y.Identities) || isEmpty(y.ServiceAccounts):
		y.At.Failf("an empty list of networks, identities or serviceAccounts permits no client: take it out")
	case !open && !tls && !named && len(y.Networks) == 0:
		y.At.Failf("missing: want networks, identities, serviceAccounts, unauthenticated or unauthenticatedTLS")
	}
	// open, and networks alone, permit clients without TLS too.
	switch {
	case tls:
		return anyTLS()
	case !named:
		return unauthenticated()
	}
	var identities []*inbound.Identity
	var suffixes []*inbound.IdentitySuffix
	for i, name := range y.Identities {
		item := y.At.At("identities").Item(i)
		suffix, wildcard := strings.CutPrefix(name, "*.")
		// The order matters: "*." without a name has an empty suffix, and "*" has no prefix "*.".
		switch {
		case suffix == "":
			item.Rejectf(name, "want a name, a URI, * or *.NAME")
		case name == "*":
			suffixes = append(suffixes, &inbound.IdentitySuffix{})
		case wildcard:
			check(item, name, checkIdentity(suffix))
			suffixes = append(suffixes, &inbound.IdentitySuffix{Parts: strings.Split(suffix, ".")})
		default:
			check(item, name, checkIdentity(name))
			identities = append(identities, &inbound.Identity{Name: name})
		}
	}
	return identified(append(identities, serviceAccounts(y.ServiceAccounts)...), suffixes)
}

// isEmpty reports whether the file contains list, but without an item; a list that the file leaves out
// is nil. An empty list would permit no client, while leaving it out permits all networks or all clients,
// so the author probably did not mean it.
func isEmpty[T any](list []T) bool { return list != nil && len(list) == 0 }

// serviceAccounts returns the identities that linkerd issues to the service accounts in list.
func serviceAccounts(list []serviceAccountYAML) []*inbound.Identity {
	identities := make([]*inbound.Identity, 0, len(list))
	for _, y := range list {
		id := y.Name + "." + y.Namespace + ".serviceaccount.identity.linkerd.cluster.local"
		// The name is part of the identity, so checking the identity also checks the name.
		check(y.At.At("name"), y.Name, checkIdentity(id))
		identities = append(identities, &inbound.Identity{Name: id})
	}
	return identities
}

// message converts a server's rate limits. A nil y means no limit.
func (y *rateLimitYAML) message() *inbound.HttpLocalRateLimit {
	if y == nil {
		return nil
	}
	msg := &inbound.HttpLocalRateLimit{
		Metadata: resourceMetadata(policyGroup, "HTTPLocalRateLimitPolicy", y.Name),
		Total:    y.Total.message(), Identity: y.Identity.message(),
	}
	// An override applies to the listed clients instead of the limit for each identity.
	for _, o := range y.Overrides {
		if len(o.Clients)+len(o.Named) == 0 {
			o.At.Failf("missing: want clientRefs or identities")
		}
		identities := serviceAccounts(o.Clients)
		for i, name := range o.Named {
			check(o.At.At("identities").Item(i), name, checkIdentity(name))
			identities = append(identities, &inbound.Identity{Name: name})
		}
		msg.Overrides = append(msg.Overrides, &inbound.HttpLocalRateLimit_Override{
			Limit:   o.message(),
			Clients: &inbound.HttpLocalRateLimit_Override_ClientIdentities{Identities: identities},
		})
	}
	if msg.GetTotal() == nil && msg.GetIdentity() == nil && len(msg.GetOverrides()) == 0 {
		y.At.Failf("missing: want total, identity or overrides")
	}
	return msg
}

// message converts one rate limit. A nil y means no limit.
func (y *limitYAML) message() *inbound.HttpLocalRateLimit_Limit {
	if y == nil {
		return nil
	}
	return &inbound.HttpLocalRateLimit_Limit{RequestsPerSecond: y.Rate}
}
