package inbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// serverPolicy is the policy of a port, converted from a message of the controller or
// from the settings. It is immutable after [Inbound.complete] has returned.
type serverPolicy struct {
	resource       meters.Resource
	protocol       handling
	detectTimeout  time.Duration    // maximum time to detect the protocol; 0: INBOUND_DETECT_TIMEOUT
	authorizations []authorization  // of connections that are not HTTP
	permits        []*meters.Permit // for metrics, by the index of the authorization
	refused        *meters.Permit   // for metrics of denied connections and unmatched requests
	limit          *rateLimit       // nil: no limit
	routes         []profiles.Route
	policies       map[string]*routePolicy // by the name of a route
	requests       httplayer.Service       // nil if the port has no HTTP
}

// handling specifies how the proxy handles TLS and determines the protocol of a connection.
type handling uint8

const (
	detected handling = iota // TLS and the protocol are detected
	opaque                   // neither TLS nor the protocol is detected
	tlsOnly                  // TLS is terminated, and the bytes in it are forwarded
	isHTTP                   // TLS is terminated, and all connections are HTTP
)

// routePolicy specifies which clients may send the requests of one route.
type routePolicy struct {
	resource       meters.Resource
	authorizations []authorization
	permits        []routePermit     // by the index of the authorization
	denied         *meters.Permit    // for metrics of denied requests
	deny           httplayer.Service // rejects requests and shows them in tap
	filtered       bool              // the route has filters
	invalid        string            // why all requests of the route fail; "" if they do not
}

// routePermit has the service for the requests that one rule of a route permits. The
// embedded Permit identifies the route and the rule in the labels of metrics.
type routePermit struct {
	*meters.Permit
	to httplayer.Service // serves permitted requests
}

// defaultPolicy returns the policy that applies to a port until the controller sends one.
// INBOUND_DEFAULT_POLICY determines it.
func (in *Inbound) defaultPolicy(port uint16) *serverPolicy {
	p := &serverPolicy{resource: meters.DefaultResource(string(in.DefaultPolicy))}
	if in.OpaquePorts.Contains(port) {
		p.protocol = opaque
	}
	a := authorization{resource: p.resource, networks: allNetworks()}
	switch in.DefaultPolicy {
	case settings.AllAuthenticated, settings.ClusterAuthenticated:
		a.tls, a.identity, a.suffixes = true, true, []string{""}
	case settings.Deny, settings.AllUnauthenticated, settings.ClusterUnauthenticated, settings.Audit:
	}
	if in.DefaultPolicy == settings.ClusterAuthenticated || in.DefaultPolicy == settings.ClusterUnauthenticated {
		a.networks = nil
		for _, prefix := range in.ClusterNetworks {
			a.networks = append(a.networks, network{net: prefix})
		}
	}
	if in.DefaultPolicy != settings.Deny {
		p.authorizations = []authorization{a}
	}
	p.addDefaultRoute()
	return p
}

// policyOf converts msg, a policy of the controller. The result must not be used before
// [Inbound.complete] has been called with it.
func policyOf(msg *pb.Server) (*serverPolicy, error) {
	p := new(serverPolicy)
	var err error
	if p.resource, err = resourceOf(nil, msg.GetLabels(), "server"); err != nil {
		return nil, err
	}
	if p.authorizations, err = authorizationsOf(msg.GetAuthorizations(), []authorization{localhost()}); err != nil {
		return nil, err
	}
	switch kind := msg.GetProtocol().GetKind().(type) {
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
		p.protocol, err = isHTTP, p.addHTTP(kind.Http1.GetRoutes(), kind.Http1.GetLocalRateLimit())
	case *pb.ProxyProtocol_Http2_:
		p.protocol, err = isHTTP, p.addHTTP(kind.Http2.GetRoutes(), kind.Http2.GetLocalRateLimit())
	case *pb.ProxyProtocol_Grpc_:
		p.protocol, err = isHTTP, p.addGRPC(kind.Grpc.GetRoutes())
	default:
		err = errors.New("no protocol")
	}
	if err != nil {
		return nil, err
	}
	profile := profiles.Profile{Routes: p.routes, Precedence: profiles.MostSpecific}
	if err := profile.Validate(); err != nil {
		return nil, err
	}
	if p.protocol == isHTTP {
		p.authorizations = nil // of connections that are not HTTP
	}
	return p, nil
}

// addDefaultRoute adds a route for all requests. It has the authorizations of the port.
func (p *serverPolicy) addDefaultRoute() {
	p.addRoute("default", meters.DefaultResource("default"), p.authorizations, profiles.Route{Match: profiles.All{}})
}

// addRoute adds a route with the given name to p. The argument routes contains the route
// once for each of its conditions. A client may send a request of the route if at least
// one rule in the argument authorizations permits the client.
func (p *serverPolicy) addRoute(
	name string, resource meters.Resource, authorizations []authorization, routes ...profiles.Route,
) *routePolicy {
	if p.policies == nil {
		p.policies = make(map[string]*routePolicy)
	}
	policy := &routePolicy{resource: resource, authorizations: authorizations}
	p.policies[name] = policy
	for _, r := range routes {
		r.Name = name
		policy.filtered = policy.filtered || !r.RequestHeader.Empty() || r.Redirect != nil || len(r.Faults) > 0
		p.routes = append(p.routes, r)
	}
	return policy
}

// addHTTP adds the given HTTPRoutes and rate limit of the controller. Without routes, it
// adds a default route for all requests, as linkerd's proxy does.
func (p *serverPolicy) addHTTP(routes []*pb.HttpRoute, limit *pb.HttpLocalRateLimit) (err error) {
	if p.limit, err = rateLimitOf(limit, p.resource); err != nil {
		return err
	}
	if len(routes) == 0 {
		p.addDefaultRoute()
	}
	for i, msg := range routes {
		resource, authorizations, err := p.routeOf(msg.GetMetadata(), msg.GetAuthorizations())
		if err != nil {
			return fmt.Errorf("HTTPRoute %d: %w", i+1, err)
		}
		for j, rule := range msg.GetRules() {
			edits, invalid := httpFilters(rule.GetFilters())
			matches := rule.GetMatches()
			if len(matches) == 0 {
				matches = []*http_route.HttpRouteMatch{{}}
			}
			var compiled []profiles.Route
			for _, m := range matches {
				r := edits
				condition, prefix := httpMatch(m)
				if r.Redirect != nil && r.Redirect.NewPrefix != "" {
					redirect := *r.Redirect
					if redirect.OldPrefix, r.Redirect = prefix, &redirect; prefix == "" {
						r.Redirect, invalid = nil, "a redirect replaces the prefix of a match that is not a prefix"
					}
				}
				compiled = append(compiled, onHosts(r, condition, msg.GetHosts())...)
			}
			p.addRoute(fmt.Sprintf("%s %d.%d", resource.Name, i, j), resource, authorizations, compiled...).invalid = invalid
		}
	}
	return nil
}

// addGRPC adds the given GRPCRoutes of the controller. Without routes, it adds a default
// route for all requests.
func (p *serverPolicy) addGRPC(routes []*pb.GrpcRoute) error {
	if len(routes) == 0 {
		p.addDefaultRoute()
	}
	for i, msg := range routes {
		resource, authorizations, err := p.routeOf(msg.GetMetadata(), msg.GetAuthorizations())
		if err != nil {
			return fmt.Errorf("GRPCRoute %d: %w", i+1, err)
		}
		for j, rule := range msg.GetRules() {
			edits, invalid := grpcFilters(rule.GetFilters())
			matches := rule.GetMatches()
			if len(matches) == 0 {
				matches = []*grpc_route.GrpcRouteMatch{{}}
			}
			var compiled []profiles.Route
			for _, m := range matches {
				call := profiles.GRPC{Service: m.GetRpc().GetService(), Method: m.GetRpc().GetMethod()}
				condition := append(profiles.All{profiles.Method(http.MethodPost), call}, headerMatches(m.GetHeaders())...)
				compiled = append(compiled, onHosts(edits, condition, msg.GetHosts())...)
			}
			p.addRoute(fmt.Sprintf("%s %d.%d", resource.Name, i, j), resource, authorizations, compiled...).invalid = invalid
		}
	}
	return nil
}

// routeOf converts m and authz, the metadata and the rules of a route. The returned rules
// also include those of the server, which come last. They are included because they apply
// to each route.
func (p *serverPolicy) routeOf(m *meta.Metadata, authz []*pb.Authz) (meters.Resource, []authorization, error) {
	resource, err := resourceOf(m, nil, "")
	if err != nil {
		return resource, nil, err
	}
	authorizations, err := authorizationsOf(authz, p.authorizations)
	return resource, authorizations, err
}

// onHosts returns a copy of r for each host in hosts. A copy matches the requests to its
// host that also meet the argument condition. If hosts is empty, onHosts returns a single
// copy, for all hosts.
func onHosts(r profiles.Route, condition profiles.All, hosts []*http_route.HostMatch) []profiles.Route {
	if len(hosts) == 0 {
		r.Match = condition
		return []profiles.Route{r}
	}
	var routes []profiles.Route
	for _, h := range hosts {
		var value profiles.StringMatch = profiles.Exact(strings.TrimSuffix(h.GetExact(), "."))
		if s := h.GetSuffix(); s != nil {
			name := ""
			for _, label := range s.GetReverseLabels() {
				name = "." + label + name
			}
			value = profiles.Suffix(name)
		}
		r.Match = append(profiles.All{profiles.Host{Value: value}}, condition...)
		routes = append(routes, r)
	}
	return routes
}

// httpMatch converts a match of an HTTPRoute to a condition. prefix is the path prefix of
// the match, or "/" if the match has no path. It is "" if the match requires an exact path
// or a regular expression.
func httpMatch(m *http_route.HttpRouteMatch) (condition profiles.All, prefix string) {
	switch path := m.GetPath().GetKind().(type) {
	case *http_route.PathMatch_Exact:
		condition = append(condition, profiles.Path("^"+regexp.QuoteMeta(path.Exact)+"$"))
	case *http_route.PathMatch_Regex:
		pattern := path.Regex
		if _, err := regexp.Compile(pattern); err == nil { // a group could make an invalid pattern valid
			pattern = "^(?:" + pattern + ")$"
		}
		condition = append(condition, profiles.Path(pattern))
	case *http_route.PathMatch_Prefix:
		prefix = path.Prefix
		condition = append(condition, profiles.PathPrefix(prefix))
	default:
		prefix = "/"
	}
	switch method := m.GetMethod().GetType().(type) {
	case *http_types.HttpMethod_Registered_:
		condition = append(condition, profiles.Method(method.Registered.String()))
	case *http_types.HttpMethod_Unregistered:
		condition = append(condition, profiles.Method(method.Unregistered))
	}
	condition = append(condition, headerMatches(m.GetHeaders())...)
	for _, q := range m.GetQueryParams() {
		var value profiles.StringMatch = profiles.Exact(q.GetExact())
		if regex, ok := q.GetValue().(*http_route.QueryParamMatch_Regex); ok {
			value = profiles.Regex(regex.Regex)
		}
		condition = append(condition, profiles.Query{Name: q.GetName(), Value: value})
	}
	return condition, prefix
}

// headerMatches converts the conditions on the headers of a request.
func headerMatches(msgs []*http_route.HeaderMatch) []profiles.Match {
	matches := make([]profiles.Match, 0, len(msgs))
	for _, h := range msgs {
		var value profiles.StringMatch = profiles.Exact(h.GetExact())
		if regex, ok := h.GetValue().(*http_route.HeaderMatch_Regex); ok {
			value = profiles.Regex(regex.Regex)
		}
		matches = append(matches, profiles.Header{Name: h.GetName(), Value: value})
	}
	return matches
}

// forever is a TTL of 100 years, for a failure that a policy injects. Such a failure has
// no time limit, but profiles.Fault requires one.
const forever = 100 * 365 * 24 * time.Hour

// httpFilters returns the fields of a route that apply the filters of an HTTPRoute. If the
// type of a filter is unknown, invalid describes the error, and the caller must reject all
// requests of the route. Otherwise invalid is "".
func httpFilters(filters []*pb.HttpRoute_Filter) (r profiles.Route, invalid string) {
	for _, f := range filters {
		switch kind := f.GetKind().(type) {
		case *pb.HttpRoute_Filter_RequestHeaderModifier:
			addHeaders(&r.RequestHeader, kind.RequestHeaderModifier)
		case *pb.HttpRoute_Filter_Redirect:
			r.Redirect = redirectOf(kind.Redirect)
		case *pb.HttpRoute_Filter_FailureInjector:
			i := kind.FailureInjector
			r.Faults = append(r.Faults, profiles.Fault{Fraction: fraction(i.GetRatio()), Status: int(i.GetStatus()), TTL: forever})
		default:
			invalid = "unknown filter"
		}
	}
	return r, invalid
}

// grpcFilters returns the fields of a route that apply the filters of a GRPCRoute. If the
// type of a filter is unknown, invalid describes the error, and the caller must reject all
// requests of the route. Otherwise invalid is "".
func grpcFilters(filters []*pb.GrpcRoute_Filter) (r profiles.Route, invalid string) {
	for _, f := range filters {
		switch kind := f.GetKind().(type) {
		case *pb.GrpcRoute_Filter_RequestHeaderModifier:
			addHeaders(&r.RequestHeader, kind.RequestHeaderModifier)
		case *pb.GrpcRoute_Filter_FailureInjector:
			i := kind.FailureInjector
			r.Faults = append(r.Faults, profiles.Fault{
				Fraction: fraction(i.GetRatio()), Status: http.StatusInternalServerError, GRPC: i.GetCode(), TTL: forever,
			})
		default:
			invalid = "unknown filter"
		}
	}
	return r, invalid
}

// fraction returns r as a number from 0 to 1. A nil r means all requests and becomes 1.
func fraction(r *http_route.Ratio) float64 {
	if r == nil {
		return 1
	}
	return float64(r.GetNumerator()) / float64(r.GetDenominator())
}

// addHeaders appends the header changes of m to the header changes in *to.
func addHeaders(to *layer.HeaderMutation, m *http_route.RequestHeaderModifier) {
	for _, h := range m.GetAdd().GetHeaders() {
		to.Add = append(to.Add, layer.HeaderField{Name: h.GetName(), Value: string(h.GetValue())})
	}
	for _, h := range m.GetSet().GetHeaders() {
		to.Set = append(to.Set, layer.HeaderField{Name: h.GetName(), Value: string(h.GetValue())})
	}
	to.Remove = append(to.Remove, m.GetRemove()...)
}

// redirectOf converts a redirect. The default status is 301. The caller must set
// OldPrefix, the path prefix that the condition of the route requires.
func redirectOf(m *http_route.RequestRedirect) *profiles.Redirect {
	r := &profiles.Redirect{Status: int(m.GetStatus()), Host: m.GetHost(), Port: uint16(m.GetPort())}
	if r.Status == 0 {
		r.Status = http.StatusMovedPermanently
	}
	switch scheme := m.GetScheme().GetType().(type) {
	case *http_types.Scheme_Registered_:
		r.Scheme = strings.ToLower(scheme.Registered.String())
	case *http_types.Scheme_Unregistered:
		r.Scheme = scheme.Unregistered
	}
	switch path := m.GetPath().GetReplace().(type) {
	case *http_route.PathModifier_Full:
		r.Path = path.Full
	case *http_route.PathModifier_Prefix:
		r.NewPrefix = cmp.Or(path.Prefix, "/") // "" removes the old prefix, as "/" does
	}
	return r
}

// complete adds to p the services that receive the requests to the port, and the labels of
// metrics for each rule. It returns p. If p needs a router, the router ends when ctx ends.
func (in *Inbound) complete(ctx context.Context, p *serverPolicy) *serverPolicy {
	p.refused = &meters.Permit{Server: p.resource}
	for i := range p.authorizations {
		p.permits = append(p.permits, &meters.Permit{Server: p.resource, Authz: p.authorizations[i].resource})
	}
	for _, route := range p.policies {
		route.denied = &meters.Permit{Server: p.resource, Route: route.resource}
		route.deny = in.deny(route.denied)
		for i := range route.authorizations {
			permit := meters.Permit{Server: p.resource, Route: route.resource, Authz: route.authorizations[i].resource}
			handle := unique.Make(permit)
			route.permits = append(route.permits, routePermit{&permit, in.logicals.Router(func(req *http.Request) (logicalKey, error) {
				l, err := in.logicalKey(req)
				l.permit = handle
				return l, err
			})})
		}
	}
	switch route := p.onlyRoute(); {
	case len(p.routes) == 0:
	case route != nil:
		p.requests = &routeAuthorizer{Service: permittedRequests{}, in: in, server: p, route: route}
	default:
		p.requests = in.router(ctx, p)
	}
	return p
}

// onlyRoute returns the policy of the route to which all requests belong. It returns nil if
// a router is necessary, to select the route or to apply its filters.
func (p *serverPolicy) onlyRoute() *routePolicy {
	if len(p.routes) != 1 || p.policies[p.routes[0].Name].filtered {
		return nil
	}
	if condition, ok := p.routes[0].Match.(profiles.All); !ok || len(condition) > 0 {
		return nil
	}
	return p.policies[p.routes[0].Name]
}

// router returns the service that selects one of the routes of p for each request. The
// service ends when ctx ends.
func (in *Inbound) router(ctx context.Context, p *serverPolicy) httplayer.Service {
	var editor layer.Editor[*http.Request, *http.Response] = httplayer.Editor{InPlace: true}
	source := new(profiles.Static)
	routes := slices.Clone(p.routes)
	for i := range routes { // a backend of its own saves an allocation for each request
		to := profiles.Target{Authority: "application:80", Weight: 1}
		routes[i].Policy = &profiles.RoutePolicy{Backends: []profiles.Backend{{Target: to}}}
	}
	source.Set(p.resource.Name, &profiles.Profile{Routes: routes, Precedence: profiles.MostSpecific})
	return profiles.New(ctx, p.resource.Name, source, httplayer.Accessor{},
		func(string) httplayer.Service { return permittedRequests{} },
		profiles.WithInitialWait[*http.Request, *http.Response](routerWait),
		profiles.WithLogger[*http.Request, *http.Response](in.Log),
		profiles.WithRouteLayers(httplayer.Replayer{}, editor, httplayer.Classify),
		profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
			return &routeAuthorizer{Service: next, in: in, server: p, route: p.policies[route.Name]}
		}),
		profiles.WithDefaultRoute(func(next httplayer.Service) httplayer.Service { return &noRoute{next, in, p} }))
}

// routerWait is the maximum time that a request waits until the router of a new policy has
// its routes. After a change of the policy, the previous router is kept for the same time,
// for requests that have already chosen it.
const routerWait = time.Second
