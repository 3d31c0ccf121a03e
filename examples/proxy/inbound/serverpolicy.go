package inbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unique"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/internal/policyroute"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// serverPolicy is a port's policy, from the controller or the settings. It is immutable after
// [Inbound.complete].
type serverPolicy struct {
	resource       meters.Resource
	protocol       handling
	detectTimeout  time.Duration    // timeout of protocol detection; 0: INBOUND_DETECT_TIMEOUT
	authorizations []authorization  // for connections that are not HTTP
	permits        []*meters.Permit // metrics for each of authorizations
	refused        *meters.Permit   // metrics for denied connections and unmatched requests
	limit          *rateLimit       // nil: no limit
	routes         []profiles.Route
	policies       map[string]*routePolicy // by the route's name
	requests       httplayer.Service       // nil if the port does not serve HTTP
}

// handling specifies how the proxy handles TLS and determines a connection's protocol.
type handling uint8

const (
	detected handling = iota // TLS and the protocol are detected
	opaque                   // neither TLS nor the protocol is detected
	tlsOnly                  // TLS is terminated, and the bytes in it are forwarded
	isHTTP                   // TLS is terminated, and all connections are HTTP
)

// routePolicy specifies which clients may use a route.
type routePolicy struct {
	resource       meters.Resource
	authorizations []authorization
	permits        []routePermit     // for each of authorizations
	denied         *meters.Permit    // metrics for denied requests
	deny           httplayer.Service // rejects requests and shows them in tap
	filtered       bool              // the route has filters
	invalid        error             // why all requests on the route fail; usually nil
}

// routePermit serves the requests that one rule permits. The embedded Permit labels their metrics.
type routePermit struct {
	*meters.Permit
	service httplayer.Service
}

// defaultPolicy returns the policy from INBOUND_DEFAULT_POLICY, which applies until the controller
// sends one.
func (in *Inbound) defaultPolicy(port uint16) *serverPolicy {
	p := &serverPolicy{resource: meters.DefaultResource(string(in.DefaultPolicy))}
	if in.OpaquePorts.Contains(port) {
		p.protocol = opaque
	}
	a := authorization{resource: p.resource, networks: allNetworks()}
	switch in.DefaultPolicy {
	// The two authenticated policies need TLS and any identity: the suffix "" matches all of them.
	case settings.AllAuthenticated, settings.ClusterAuthenticated:
		a.tls = true
		a.identity = true
		a.suffixes = []string{""}
	case settings.Deny, settings.AllUnauthenticated, settings.ClusterUnauthenticated, settings.Audit:
	}
	// The cluster policies also limit the networks from which clients may connect.
	if in.DefaultPolicy == settings.ClusterAuthenticated || in.DefaultPolicy == settings.ClusterUnauthenticated {
		a.networks = nil
		for _, prefix := range in.ClusterNetworks {
			a.networks = append(a.networks, network{net: prefix})
		}
	}
	// Without any authorization, nothing is permitted.
	if in.DefaultPolicy != settings.Deny {
		p.authorizations = []authorization{a}
	}
	p.addDefaultRoute()
	return p
}

// policyOf converts a policy from the controller. The result is incomplete: [Inbound.complete] must be called
// before it is used.
func policyOf(msg *pb.Server) (*serverPolicy, error) {
	p := new(serverPolicy)
	var err error
	// Servers are described by labels only, never by metadata.
	if p.resource, err = resourceOf(nil, msg.GetLabels(), "server"); err != nil {
		return nil, err
	}
	// As in linkerd's proxy, the pod itself may always connect, whatever the policy says.
	if p.authorizations, err = authorizationsOf(msg.GetAuthorizations(), []authorization{localhost()}); err != nil {
		return nil, err
	}
	switch kind := msg.GetProtocol().GetKind().(type) {
	// Bytes that are forwarded have no routes.
	case *pb.ProxyProtocol_Opaque_:
		p.protocol = opaque
		return p, nil
	case *pb.ProxyProtocol_Tls_:
		p.protocol = tlsOnly
		return p, nil
	case *pb.ProxyProtocol_Detect_:
		p.detectTimeout = kind.Detect.GetTimeout().AsDuration()
		err = p.addHTTP(kind.Detect.GetHttpRoutes(), kind.Detect.GetHttpLocalRateLimit())
	case *pb.ProxyProtocol_Http1_:
		p.protocol = isHTTP
		err = p.addHTTP(kind.Http1.GetRoutes(), kind.Http1.GetLocalRateLimit())
	case *pb.ProxyProtocol_Http2_:
		p.protocol = isHTTP
		err = p.addHTTP(kind.Http2.GetRoutes(), kind.Http2.GetLocalRateLimit())
	case *pb.ProxyProtocol_Grpc_:
		p.protocol = isHTTP
		err = p.addGRPC(kind.Grpc.GetRoutes())
	default:
		err = errors.New("no protocol")
	}
	if err != nil {
		return nil, err
	}
	// Reject conflicting or incomplete routes now, so that the previous policy stays active instead.
	profile := profiles.Profile{Routes: p.routes, Precedence: profiles.MostSpecific}
	if err := profile.Validate(); err != nil {
		return nil, err
	}
	if p.protocol == isHTTP {
		p.authorizations = nil // there are no connections that are not HTTP
	}
	return p, nil
}

// addDefaultRoute adds a route for all requests with the port's authorizations.
func (p *serverPolicy) addDefaultRoute() {
	p.addRoute("default", meters.DefaultResource("default"), p.authorizations, profiles.Route{Match: profiles.All{}})
}

// addRoute adds a route to p. routes contains it once for each of its conditions. One of
// authorizations must permit a client's requests.
func (p *serverPolicy) addRoute(
	name string, resource meters.Resource, authorizations []authorization, routes ...profiles.Route,
) *routePolicy {
	if p.policies == nil {
		p.policies = make(map[string]*routePolicy)
	}
	policy := &routePolicy{resource: resource, authorizations: authorizations}
	p.policies[name] = policy
	// r is a copy, so the caller's routes keep their names.
	for _, r := range routes {
		r.Name = name
		// The router has to edit the requests of a filtered route, which onlyRoute needs to know.
		policy.filtered = policy.filtered || !r.RequestHeader.Empty() || r.Redirect != nil || len(r.Faults) > 0
		p.routes = append(p.routes, r)
	}
	return policy
}

// addHTTP adds the controller's HTTPRoutes and rate limit. Without routes, it adds a default route
// for all requests, as linkerd's proxy does.
func (p *serverPolicy) addHTTP(routes []*pb.HttpRoute, limit *pb.HttpLocalRateLimit) (err error) {
	if p.limit, err = rateLimitOf(limit, p.resource); err != nil {
		return err
	}
	// The wrapper only adapts the names of the types.
	return addRoutes(p, "HTTPRoute", routes, policyroute.HTTPMatch, func(r *profiles.Route, filter *pb.HttpRoute_Filter) error {
		return policyroute.AddHTTPFilter(r, filter)
	})
}

// addGRPC adds the controller's GRPCRoutes, or a default route for all requests.
func (p *serverPolicy) addGRPC(routes []*pb.GrpcRoute) error {
	return addRoutes(p, "GRPCRoute", routes, policyroute.GRPCMatch, func(r *profiles.Route, filter *pb.GrpcRoute_Filter) error {
		return policyroute.AddGRPCFilter(r, filter)
	})
}

// addRoutes adds the controller's routes to p, or a default route if there are none. kind names the
// type R of the routes in errors, and U, M and F are the types of their rules, matches and filters.
// match converts a match to a condition and a path prefix, and addFilter adds a filter's effect to
// a route.
func addRoutes[U interface {
	GetMatches() []M
	GetFilters() []F
}, R interface {
	GetMetadata() *meta.Metadata
	GetAuthorizations() []*pb.Authz
	GetHosts() []*http_route.HostMatch
	GetRules() []U
}, M, F any](
	p *serverPolicy, kind string, routes []R,
	match func(M) (profiles.All, string, error), addFilter func(*profiles.Route, F) error,
) error {
	// A server without routes accepts all requests that its own authorizations permit.
	if len(routes) == 0 {
		p.addDefaultRoute()
	}
	for i, msg := range routes {
		fail := func(err error) error { return fmt.Errorf("%s %d: %w", kind, i+1, err) }
		resource, authorizations, err := p.routeOf(msg.GetMetadata(), msg.GetAuthorizations())
		if err != nil {
			return fail(err)
		}
		hosts, err := hostsOf(msg.GetHosts())
		if err != nil {
			return fail(err)
		}
		for j, rule := range msg.GetRules() {
			// The filters are applied to an empty route first. Each match then gets a copy of it.
			var edits profiles.Route
			// An invalid filter does not reject the policy. It makes the rule's requests fail.
			var invalid error
			for _, f := range rule.GetFilters() {
				invalid = cmp.Or(invalid, addFilter(&edits, f))
			}
			matches := rule.GetMatches()
			if len(matches) == 0 {
				matches = make([]M, 1) // all requests satisfy a nil match
			}
			var converted []profiles.Route
			for _, m := range matches {
				r := edits
				condition, prefix, err := match(m)
				if err != nil {
					return fail(err)
				}
				// A redirect may replace the prefix that the request matched. Only the match knows that prefix.
				if r.Redirect != nil && r.Redirect.NewPrefix != "" {
					// Copy the redirect, because the other matches of this rule share it.
					redirect := *r.Redirect
					redirect.OldPrefix = prefix
					r.Redirect = &redirect
					if prefix == "" {
						r.Redirect = nil
						invalid = errors.New("a redirect replaces the prefix of a match that is not a prefix")
					}
				}
				// A route has one condition, so each pair of a host and a match becomes a route of its own.
				for _, host := range hosts {
					r.Match = slices.Concat(host, condition)
					converted = append(converted, r)
				}
			}
			p.addRoute(fmt.Sprintf("%s %d.%d", resource.Name, i, j), resource, authorizations, converted...).invalid = invalid
		}
	}
	return nil
}

// routeOf converts a route's metadata and rules. The server's rules apply to each route too, and
// come last.
func (p *serverPolicy) routeOf(m *meta.Metadata, authz []*pb.Authz) (meters.Resource, []authorization, error) {
	resource, err := resourceOf(m, nil, "")
	if err != nil {
		return resource, nil, err
	}
	authorizations, err := authorizationsOf(authz, p.authorizations)
	return resource, authorizations, err
}

// hostsOf converts a route's hosts to conditions, one of which a request must satisfy. Without
// hosts, the only condition is empty and matches all hosts.
func hostsOf(msgs []*http_route.HostMatch) ([]profiles.All, error) {
	if len(msgs) == 0 {
		// All is a list of conditions, and an empty one is always met.
		return []profiles.All{nil}, nil
	}
	hosts := make([]profiles.All, 0, len(msgs))
	for _, msg := range msgs {
		host, err := policyroute.HostMatch(msg)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, profiles.All{host})
	}
	return hosts, nil
}

// complete adds the services for the port's requests and the metric labels for each rule to p, and
// returns p. p's router, if it needs one, ends when ctx ends.
func (in *Inbound) complete(ctx context.Context, p *serverPolicy) *serverPolicy {
	p.refused = &meters.Permit{Server: p.resource}
	// Metrics need the labels of each rule in every decision, so they are built once here.
	for i := range p.authorizations {
		p.permits = append(p.permits, &meters.Permit{Server: p.resource, Authz: p.authorizations[i].resource})
	}
	for _, route := range p.policies {
		route.denied = &meters.Permit{Server: p.resource, Route: route.resource}
		route.deny = in.deny(route.denied)
		for i := range route.authorizations {
			permit := meters.Permit{Server: p.resource, Route: route.resource, Authz: route.authorizations[i].resource}
			// A handle compares by pointer, which makes logicalKey small and cheap to compare.
			handle := unique.Make(permit)
			// The cache in.logicals has one service for each logicalKey. This rule is its permit, and the request
			// determines the rest.
			service := in.logicals.Router(func(req *http.Request) (logicalKey, error) {
				l, err := in.logicalKey(req)
				l.permit = handle
				return l, err
			})
			route.permits = append(route.permits, routePermit{&permit, service})
		}
	}
	// The order matters: a policy without routes has no service, and a router is only needed if there is a choice.
	switch route := p.onlyRoute(); {
	// The port does not serve HTTP, so requests stays nil.
	case len(p.routes) == 0:
	case route != nil:
		p.requests = &routeAuthorizer{Service: permittedRequests{}, in: in, server: p, route: route}
	default:
		p.requests = in.router(ctx, p)
	}
	return p
}

// onlyRoute returns the route to which all requests belong. It returns nil if a router is needed to
// select the route or to apply its filters.
func (p *serverPolicy) onlyRoute() *routePolicy {
	if len(p.routes) != 1 || p.policies[p.routes[0].Name].filtered {
		return nil
	}
	// Only an empty list of conditions matches all requests.
	if condition, ok := p.routes[0].Match.(profiles.All); !ok || len(condition) > 0 {
		return nil
	}
	return p.policies[p.routes[0].Name]
}

// router returns the service that selects one of p's routes for each request, until ctx ends.
func (in *Inbound) router(ctx context.Context, p *serverPolicy) httplayer.Service {
	// The router expects a source that it can watch. This one never changes.
	source := new(profiles.Static)
	routes := slices.Clone(p.routes)
	for i := range routes { // a backend for each route saves an allocation for each request
		target := profiles.Target{Authority: "application:80", Weight: 1}
		routes[i].Backends = []profiles.Backend{{Target: target}}
	}
	source.Set(p.resource.Name, &profiles.Profile{Routes: routes, Precedence: profiles.MostSpecific})
	// Routes only choose the authorizer. All of their backends are permittedRequests, which sends the request on.
	return profiles.New(ctx, profiles.Config{Target: p.resource.Name, Source: source, InitialWait: routerWait, Log: in.Log},
		httplayer.HTTP{}, func(string) httplayer.Service { return permittedRequests{} },
		profiles.WithRouteLayers(httplayer.HTTP{InPlace: true}),
		profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
			return &routeAuthorizer{Service: next, in: in, server: p, route: p.policies[route.Name]}
		}),
		profiles.WithDefaultRoute(func(_ *profiles.Profile, next httplayer.Service) httplayer.Service {
			return &noRoute{next, in, p}
		}))
}

// routerWait limits how long a request waits for the routes of a new policy. After a change, the
// previous router is kept as long, for requests that have already chosen it.
const routerWait = time.Second
