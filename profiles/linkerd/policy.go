package linkerd

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/policyroute"
	"github.com/gotower/gotower/profiles"
)

// convertPolicy converts a message to a Profile. It calls drop with an error for each part that
// it leaves out. It returns an error if the message contains no protocol.
func convertPolicy(m *outbound.OutboundPolicy, drop func(error)) (*profiles.Profile, error) {
	p := &profiles.Profile{
		Precedence: profiles.MostSpecific, RoutesOnly: true,
		Policy: &profiles.Policy{Name: metaName(m.GetMetadata()), Labels: metaLabels("parent", m.GetMetadata())},
	}
	// The converter reports each part that is left out, with its place.
	c := &policyConverter{drop: drop}
	// Connections that are not HTTP have no route, so they are rejected.
	closed := &profiles.Profile{RoutesOnly: true}
	// The controller says which protocol the target speaks, or that it must be detected.
	switch kind := m.GetProtocol().GetKind().(type) {
	case *outbound.ProxyProtocol_Detect_:
		h1, h2 := kind.Detect.GetHttp1(), kind.Detect.GetHttp2()
		routes, accrual := h2.GetRoutes(), h2.GetFailureAccrual()
		// With detection, a profile has one list of routes for both versions.
		switch {
		case h2 == nil:
			routes, accrual = h1.GetRoutes(), h1.GetFailureAccrual()
		case h1 != nil && !proto.Equal(&outbound.ProxyProtocol_Http2{Routes: h1.GetRoutes(), FailureAccrual: h1.GetFailureAccrual()}, h2):
			drop(errors.New("the routes of HTTP/1 differ from those of HTTP/2, which are used"))
		}
		p.Routes = c.withBreaker(accrual).httpRoutes(routes)
		p.Policy.Connections = c.connections(kind.Detect.GetOpaque())
	case *outbound.ProxyProtocol_Http1_:
		p.Routes = c.withBreaker(kind.Http1.GetFailureAccrual()).httpRoutes(kind.Http1.GetRoutes())
		p.Policy.Connections = closed
	case *outbound.ProxyProtocol_Http2_:
		p.Routes = c.withBreaker(kind.Http2.GetFailureAccrual()).httpRoutes(kind.Http2.GetRoutes())
		p.Policy.Connections = closed
	case *outbound.ProxyProtocol_Grpc_:
		p.Routes = c.withBreaker(kind.Grpc.GetFailureAccrual()).grpcRoutes(kind.Grpc.GetRoutes())
		p.Policy.Connections = closed
	case *outbound.ProxyProtocol_Opaque_:
		p.OpaqueProtocol = true
		p.Policy.Connections = c.connections(kind.Opaque)
		p.Routes = p.Policy.Connections.Routes // of requests in ingress mode
	case *outbound.ProxyProtocol_Tls_:
		p.Policy.ServerNames = true
		p.Policy.Connections = &profiles.Profile{
			Precedence: profiles.MostSpecific, RoutesOnly: true, Routes: c.tlsRoutes(kind.Tls.GetRoutes()),
		}
	default:
		return nil, errors.New("the policy has no protocol")
	}
	return p, nil
}

// policyConverter converts one policy's routes to profile routes.
type policyConverter struct {
	drop      func(error)        // is called for each part of the policy that is left out
	balancing profiles.Balancing // the Balancing of all backends; only its Breaker is set
	at        string             // the route and the rule that are being converted, for errors
}

// problem and problemf report a part of the policy that is left out, with its place.
func (c *policyConverter) problem(err error) { c.drop(fmt.Errorf("%s: %w", c.at, err)) }

// problemf records a part of the policy that is ignored, and why.
func (c *policyConverter) problemf(format string, args ...any) {
	c.problem(fmt.Errorf(format, args...))
}

// rule is a converted rule of an HTTP, gRPC, TLS or opaque route.
type rule struct {
	matches  []profiles.All // one of them must hold; if empty, the rule matches all requests
	prefixes []string       // for redirects: the path prefix of the match with the same index, or ""
	route    profiles.Route
}

// routes converts the rule r to profile routes for the given hosts, usually one. If r is a
// redirect that replaces a path prefix, there is one route for each match, because each match
// brings its own prefix. metadata belongs to linkerd's route.
func (c *policyConverter) routes(r rule, hosts []profiles.Match, metadata *meta.Metadata) []profiles.Route {
	route := r.route
	route.Name, route.Labels = metaName(metadata), metaLabels("route", metadata)
	if len(r.matches) == 0 {
		r.matches, r.prefixes = []profiles.All{{}}, []string{""}
	}
	if redirect := route.Redirect; redirect != nil && redirect.NewPrefix != "" {
		routes := make([]profiles.Route, 0, len(r.matches))
		for i, m := range r.matches {
			copied := *redirect
			copied.OldPrefix = cmp.Or(r.prefixes[i], "/")
			route.Match, route.Redirect = atHosts(hosts, []profiles.All{m}), &copied
			routes = append(routes, route)
		}
		return routes
	}
	route.Match = atHosts(hosts, r.matches)
	return []profiles.Route{route}
}

// atHosts returns a condition that holds if at least one element of hosts and at least one element
// of matches hold. If hosts is empty, an element of matches is sufficient.
func atHosts(hosts []profiles.Match, matches []profiles.All) profiles.Match {
	var all profiles.Any
	// Without hosts, a condition is sufficient by itself.
	if len(hosts) == 0 {
		for _, m := range matches {
			all = append(all, m)
		}
	}
	for _, h := range hosts {
		for _, m := range matches {
			// A host and a condition must hold together.
			all = append(all, append(profiles.All{h}, m...))
		}
	}
	return all
}

// httpRoutes converts the HTTP routes of the policy, one profile route or more for each rule. It drops a rule whose
// conditions are all invalid, because it would match every request.
//
//nolint:dupl // the API has a type for each kind of route
func (c *policyConverter) httpRoutes(all []*outbound.HttpRoute) []profiles.Route {
	hosts := func(r *outbound.HttpRoute) ([]profiles.Match, bool) { return hostsOf(c, r.GetHosts()) }
	return routesOf(c, all, hosts, func(source *outbound.HttpRoute_Rule) (converted rule, ok bool) {
		if !convertMatches(c, &converted, source.GetMatches(), policyroute.HTTPMatch) {
			return converted, false
		}
		d := source.GetBackends()
		converted.route = c.httpFilters(source.GetFilters()).Route
		c.addTimeouts(&converted.route, source)
		c.addHTTPRetry(&converted.route, source.GetRetry())
		converted.route.Backends, converted.route.Distribution = backendsOf(
			c, d.GetKind() != nil, d.GetFirstAvailable().GetBackends(), d.GetRandomAvailable().GetBackends(), c.httpFilters)
		return converted, true
	})
}

// grpcRoutes converts the gRPC routes of the policy, one profile route or more for each rule. It drops a rule whose
// conditions are all invalid, because it would match every request.
//
//nolint:dupl // the API has a type for each kind of route
func (c *policyConverter) grpcRoutes(all []*outbound.GrpcRoute) []profiles.Route {
	hosts := func(r *outbound.GrpcRoute) ([]profiles.Match, bool) { return hostsOf(c, r.GetHosts()) }
	return routesOf(c, all, hosts, func(source *outbound.GrpcRoute_Rule) (converted rule, ok bool) {
		if !convertMatches(c, &converted, source.GetMatches(), policyroute.GRPCMatch) {
			return converted, false
		}
		d := source.GetBackends()
		converted.route = c.grpcFilters(source.GetFilters()).Route
		c.addTimeouts(&converted.route, source)
		c.addGRPCRetry(&converted.route, source.GetRetry())
		converted.route.Backends, converted.route.Distribution = backendsOf(
			c, d.GetKind() != nil, d.GetFirstAvailable().GetBackends(), d.GetRandomAvailable().GetBackends(), c.grpcFilters)
		return converted, true
	})
}

// connections returns the profile for a policy of opaque connections. As in linkerd, only the
// first rule in the first route counts.
func (c *policyConverter) connections(o *outbound.ProxyProtocol_Opaque) *profiles.Profile {
	p := &profiles.Profile{RoutesOnly: true}
	// min, because the list may be empty.
	for _, r := range o.GetRoutes()[:min(len(o.GetRoutes()), 1)] {
		first := &outbound.OpaqueRoute{Metadata: r.GetMetadata(), Rules: r.GetRules()[:min(len(r.GetRules()), 1)]}
		hosts := func(*outbound.OpaqueRoute) ([]profiles.Match, bool) { return nil, true }
		p.Routes = routesOf(c, []*outbound.OpaqueRoute{first}, hosts, func(source *outbound.OpaqueRoute_Rule) (rule, bool) {
			d := source.GetBackends()
			return connectionRule(
				c, source.GetFilters(), d.GetKind() != nil, d.GetFirstAvailable().GetBackends(), d.GetRandomAvailable().GetBackends()), true
		})
	}
	return p
}

// tlsRoutes converts the routes for TLS connections. A condition on the host applies to the
// server name in the ClientHello.
func (c *policyConverter) tlsRoutes(all []*outbound.TlsRoute) []profiles.Route {
	hosts := func(r *outbound.TlsRoute) ([]profiles.Match, bool) { return hostsOf(c, r.GetSnis()) }
	return routesOf(c, all, hosts, func(source *outbound.TlsRoute_Rule) (rule, bool) {
		d := source.GetBackends()
		return connectionRule(
			c, source.GetFilters(), d.GetKind() != nil, d.GetFirstAvailable().GetBackends(), d.GetRandomAvailable().GetBackends()), true
	})
}

// routesOf converts linkerd's routes (type R) with their rules (type U). hosts converts a route's
// hosts, and convert converts a rule. If one of them returns false, the route or the rule is left
// out. For errors, routesOf sets c.at to where the route and the rule are.
func routesOf[U any, R interface {
	GetMetadata() *meta.Metadata
	GetRules() []U
}](c *policyConverter, all []R, hosts func(R) ([]profiles.Match, bool), convert func(U) (rule, bool)) []profiles.Route {
	var routes []profiles.Route
	for i, r := range all {
		c.at = fmt.Sprintf("route %d %q", i, metaName(r.GetMetadata()))
		// A route whose hosts are all invalid must not apply to every host.
		names, ok := hosts(r)
		if !ok {
			continue
		}
		for j, source := range r.GetRules() {
			c.at = fmt.Sprintf("route %d %q, rule %d", i, metaName(r.GetMetadata()), j)
			// A rule whose conditions are all invalid must not apply to every request.
			if converted, ok := convert(source); ok {
				routes = append(routes, c.routes(converted, names, r.GetMetadata())...)
			}
		}
	}
	return routes
}

// hostsOf converts conditions on a request's host, or on the server name of a connection. It
// leaves out invalid conditions. The result ok is false if all conditions are invalid. Without
// conditions, ok is true.
func hostsOf[S interface{ GetReverseLabels() []string }, H interface {
	GetExact() string
	GetSuffix() S
}](c *policyConverter, all []H) (hosts []profiles.Match, ok bool) {
	for _, h := range all {
		m, err := policyroute.HostMatch(h)
		if err != nil {
			c.problem(err)
			continue
		}
		hosts = append(hosts, m)
	}
	// Without hosts, a route holds for every host. If all hosts are invalid, the route must not.
	return hosts, len(hosts) > 0 || len(all) == 0
}

// convertMatches converts conditions by the function convert and adds the results to a rule.
// Invalid conditions are left out. convertMatches returns false if all conditions are invalid.
// Without conditions, it returns true.
func convertMatches[M any](c *policyConverter, target *rule, all []M, convert func(M) (profiles.All, string, error)) bool {
	for _, m := range all {
		match, prefix, err := convert(m)
		if err != nil {
			c.problem(err)
			continue
		}
		// Both lists have the same length, also if a match has no prefix.
		target.matches, target.prefixes = append(target.matches, match), append(target.prefixes, prefix)
	}
	return len(target.matches) > 0 || len(all) == 0
}

// requestRule is a rule in an HTTP or gRPC route.
type requestRule interface {
	GetTimeouts() *http_route.Timeouts
	GetRequestTimeout() *durationpb.Duration // an old field, which controllers still set
	GetAllowL5DRequestHeaders() bool
}

// addTimeouts sets the timeouts of route to those of r, and whether header fields may change them.
func (c *policyConverter) addTimeouts(route *profiles.Route, r requestRule) {
	t := r.GetTimeouts()
	route.RequestTimeout = c.duration("request timeout", cmp.Or(t.GetRequest(), r.GetRequestTimeout()))
	route.ResponseTimeout = c.duration("response timeout", t.GetResponse())
	route.IdleTimeout = c.duration("idle timeout", t.GetIdle())
	route.Overrides = r.GetAllowL5DRequestHeaders()
}

// duration converts d. It returns 0 if d is missing or invalid. what describes
// d in errors.
func (c *policyConverter) duration(what string, d *durationpb.Duration) time.Duration {
	// A duration that is not set is 0, which means the default.
	if d == nil {
		return 0
	}
	converted, err := convertDuration(d)
	if err != nil {
		c.problemf("%s: %w", what, err)
	}
	return converted
}

// metaName returns a resource's name as linkerd writes it: "HTTPRoute.default.web:80".
func metaName(m *meta.Metadata) string {
	r := m.GetResource()
	switch {
	// Without a resource, the controller has made the route itself.
	case r == nil:
		return "default." + m.GetDefault()
	case r.GetPort() == 0:
		return fmt.Sprintf("%s.%s.%s", r.GetKind(), r.GetNamespace(), r.GetName())
	}
	return fmt.Sprintf("%s.%s.%s:%d", r.GetKind(), r.GetNamespace(), r.GetName(), r.GetPort())
}

// metaLabels returns the labels for the resource m, as linkerd's proxy names them. For the prefix
// "route", they are route_group, route_kind, route_namespace and route_name. For another prefix,
// there are also labels for the port and the section, such as backend_port and
// backend_section_name.
func metaLabels(prefix string, m *meta.Metadata) map[string]string {
	r := m.GetResource()
	labels := map[string]string{
		prefix + "_group": r.GetGroup(), prefix + "_kind": r.GetKind(),
		prefix + "_namespace": r.GetNamespace(), prefix + "_name": r.GetName(),
	}
	// As above, a default of the controller has no resource.
	if r == nil {
		labels[prefix+"_kind"], labels[prefix+"_name"] = "default", m.GetDefault()
	}
	if prefix != "route" {
		labels[prefix+"_port"], labels[prefix+"_section_name"] = "", r.GetSection()
		if r.GetPort() != 0 {
			labels[prefix+"_port"] = strconv.FormatUint(uint64(r.GetPort()), 10)
		}
	}
	return labels
}
