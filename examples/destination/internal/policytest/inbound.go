package policytest

import (
	"errors"
	"fmt"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/net"

	"github.com/gotower/gotower/internal/wire"
)

// Inbound returns an error if linkerd2-proxy would reject s, a port's policy.
func Inbound(s *inbound.Server) error {
	if err := checkAuthorizations(s.GetAuthorizations()); err != nil {
		return err
	}
	if _, ok := s.GetLabels()["name"]; !ok {
		return errors.New("invalid label: missing 'name' label")
	}
	// Each protocol carries its own lists of routes, which are checked in the same way.
	switch kind := s.GetProtocol().GetKind().(type) {
	case nil:
		return errors.New("missing proxy protocol")
	case *inbound.ProxyProtocol_Detect_:
		if kind.Detect.GetTimeout() == nil {
			return errors.New("missing protocol detection timeout")
		}
		return first(checkDuration(kind.Detect.GetTimeout()),
			checkServerRoutes(kind.Detect.GetHttpRoutes(), kind.Detect.GetHttpLocalRateLimit()))
	case *inbound.ProxyProtocol_Http1_:
		return checkServerRoutes(kind.Http1.GetRoutes(), kind.Http1.GetLocalRateLimit())
	case *inbound.ProxyProtocol_Http2_:
		return checkServerRoutes(kind.Http2.GetRoutes(), kind.Http2.GetLocalRateLimit())
	case *inbound.ProxyProtocol_Grpc_:
		return checkServerCalls(kind.Grpc.GetRoutes())
	case *inbound.ProxyProtocol_Tls_, *inbound.ProxyProtocol_Opaque_:
		return nil
	default:
		return fmt.Errorf("unknown protocol %T", kind)
	}
}

// checkServerRoutes checks an inbound port's HTTP routes and its rate limit, which may be nil.
func checkServerRoutes(routes []*inbound.HttpRoute, limit *inbound.HttpLocalRateLimit) error {
	if limit.GetMetadata() != nil && limit.GetMetadata().GetKind() == nil {
		return errors.New("invalid label: missing")
	}
	for _, route := range routes {
		// The first error is kept, because linkerd2-proxy also stops at the first one.
		err := checkServerRoute(route.GetMetadata(), route.GetHosts(), route.GetAuthorizations())
		for _, rule := range route.GetRules() {
			for _, m := range rule.GetMatches() {
				err = first(err, within("invalid route match", checkHTTPMatch(m)))
			}
			for _, f := range rule.GetFilters() {
				err = first(err, checkServerFilter(f))
			}
		}
		if err != nil {
			return within("invalid HTTP route", err)
		}
	}
	return nil
}

// checkServerFilter checks a filter of an inbound HTTP route.
func checkServerFilter(f *inbound.HttpRoute_Filter) error {
	switch kind := f.GetKind().(type) {
	case *inbound.HttpRoute_Filter_FailureInjector:
		return checkHTTPFault(kind.FailureInjector)
	case *inbound.HttpRoute_Filter_RequestHeaderModifier:
		return checkModifier(kind.RequestHeaderModifier)
	case *inbound.HttpRoute_Filter_Redirect:
		return checkRedirect(kind.Redirect)
	default:
		return errors.New("server policy configured with unknown filter")
	}
}

// checkServerCalls checks an inbound port's gRPC routes.
func checkServerCalls(routes []*inbound.GrpcRoute) error {
	for _, route := range routes {
		// The first error counts.
		err := checkServerRoute(route.GetMetadata(), route.GetHosts(), route.GetAuthorizations())
		for _, rule := range route.GetRules() {
			for _, m := range rule.GetMatches() {
				err = first(err, within("invalid route match", checkGRPCMatch(m)))
			}
			for _, f := range rule.GetFilters() {
				switch kind := f.GetKind().(type) {
				case *inbound.GrpcRoute_Filter_FailureInjector:
					err = first(err, checkGRPCFault(kind.FailureInjector))
				case *inbound.GrpcRoute_Filter_RequestHeaderModifier:
					err = first(err, checkModifier(kind.RequestHeaderModifier))
				default:
					err = first(err, errors.New("server policy configured with unknown filter"))
				}
			}
		}
		if err != nil {
			return within("invalid gRPC route", err)
		}
	}
	return nil
}

// checkServerRoute checks what all of a server's routes have in common. Unlike outbound routes,
// their metadata needs a kind but no namespace.
func checkServerRoute(m *meta.Metadata, hosts []*http_route.HostMatch, authorizations []*inbound.Authz) error {
	if m.GetKind() == nil {
		return errors.New("invalid labels: missing")
	}
	return first(checkHosts(hosts), checkAuthorizations(authorizations))
}

// checkAuthorizations checks the authorizations of a server or of a route.
func checkAuthorizations(list []*inbound.Authz) error {
	for _, a := range list {
		if err := checkAuthorization(a); err != nil {
			return within("invalid authorization", err)
		}
	}
	return nil
}

// checkAuthorization checks one authorization: its networks, its authentication and its name.
func checkAuthorization(a *inbound.Authz) error {
	if len(a.GetNetworks()) == 0 {
		return errors.New("missing networks")
	}
	for _, n := range a.GetNetworks() {
		// Networks and their exceptions follow the same rules.
		for _, network := range append([]*net.IPNetwork{n.GetNet()}, n.GetExcept()...) {
			ip, err := wire.IP(network.GetIp())
			if err != nil {
				return fmt.Errorf("invalid network: %w", err)
			}
			if _, err := ip.Prefix(int(network.GetPrefixLen())); err != nil {
				return fmt.Errorf("invalid network: %w", err)
			}
		}
	}
	switch permit := a.GetAuthentication().GetPermit().(type) {
	case nil:
		return errors.New("missing authentications")
	case *inbound.Authn_MeshTLS:
		if permit.MeshTLS.GetClients() == nil {
			return errors.New("missing authentications")
		}
	}
	// Old messages have labels, and newer ones metadata. One of them must name the resource.
	if _, ok := a.GetLabels()["name"]; !ok && a.GetMetadata().GetKind() == nil {
		return errors.New("invalid label: missing 'name' label")
	}
	return nil
}
