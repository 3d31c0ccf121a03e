package controller

import (
	"fmt"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// backend is a backendRef of a route, converted to messages of the API.
type backend struct {
	*outbound.Backend
	weight  uint32
	filters []filter
	missing string // host:port of a destination that does not exist; requests to it fail
}

// backends converts the backendRefs of a rule. The argument allowed has the types of
// filters that a backendRef may have. If allowed is empty, any filter is an error.
func (r *reader) backends(list []backendYAML, allowed ...string) []backend {
	backends := make([]backend, 0, len(list))
	for _, y := range list {
		b := backend{weight: 1}
		if len(allowed) > 0 {
			b.filters = r.filters(y.Filters, allowed...)
		} else if len(y.Filters) > 0 {
			r.failf(y.At.n, "backends of connections have no filters")
		}
		if y.Weight.given() {
			b.weight = r.number("weight", y.Weight)
		}
		if !y.Name.given() {
			r.missing(y.At.n, "the backendRef has no name")
			continue
		}
		to := target{host: strings.ToLower(strings.TrimSuffix(y.Name.value, ".")), port: defaultPort}
		if err := checkName(to.host); err != nil {
			r.failf(y.Name.line, "backendRef: %s", err)
			continue
		}
		if y.Port.given() {
			to.port = r.port(y.Port)
		}
		if r.exists[to] {
			b.Backend = balancerTo(to, nil)
		} else {
			b.Backend = &outbound.Backend{Metadata: defaultMetadata("invalid"), Queue: defaultQueue()}
			b.missing = to.String()
		}
		backends = append(backends, b)
	}
	return backends
}

// The functions below convert filters and backends to the messages of one kind of route.
// The argument own is the backend with the endpoints of the destination itself. A rule
// without backends sends all traffic to this backend.

func httpFilters(filters []filter) []*outbound.HttpRoute_Filter {
	msgs := make([]*outbound.HttpRoute_Filter, 0, len(filters)+1) // and that of a missing backend
	for _, f := range filters {
		msg := &outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: f.request}}
		switch {
		case f.response != nil:
			msg.Kind = &outbound.HttpRoute_Filter_ResponseHeaderModifier{ResponseHeaderModifier: f.response}
		case f.redirect != nil:
			msg.Kind = &outbound.HttpRoute_Filter_Redirect{Redirect: f.redirect}
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

func grpcFilters(filters []filter) []*outbound.GrpcRoute_Filter {
	msgs := make([]*outbound.GrpcRoute_Filter, 0, len(filters)+1)
	for _, f := range filters {
		msgs = append(msgs, &outbound.GrpcRoute_Filter{
			Kind: &outbound.GrpcRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: f.request},
		})
	}
	return msgs
}

// missingMessage returns the error message for requests to a destination that does not
// exist.
func missingMessage(name string) string { return fmt.Sprintf("destination %s does not exist", name) }

// httpBackends returns the distribution of an HTTP rule over backends, by weight. Requests to a
// backend that does not exist fail with 500. If the list backends is empty, the only backend is
// own, which has the endpoints of the destination itself.
//
//nolint:dupl // the API has a type for each kind of route
func httpBackends(own *outbound.Backend, backends []backend) *outbound.HttpRoute_Distribution {
	if len(backends) == 0 {
		return &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.HttpRoute_Distribution_FirstAvailable{Backends: []*outbound.HttpRoute_RouteBackend{{Backend: own}}},
		}}
	}
	random := &outbound.HttpRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		filters := httpFilters(b.filters)
		if b.missing != "" {
			filters = append(filters, &outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_FailureInjector{
				FailureInjector: &http_route.HttpFailureInjector{Status: 500, Message: missingMessage(b.missing)},
			}})
		}
		random.Backends = append(random.Backends, &outbound.HttpRoute_WeightedRouteBackend{
			Backend: &outbound.HttpRoute_RouteBackend{Backend: b.Backend, Filters: filters}, Weight: b.weight,
		})
	}
	return &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// grpcBackends returns the distribution of a gRPC rule over backends, by weight. Calls to a
// backend that does not exist fail with UNAVAILABLE. If the list backends is empty, the only
// backend is own, which has the endpoints of the destination itself.
//
//nolint:dupl // the API has a type for each kind of route
func grpcBackends(own *outbound.Backend, backends []backend) *outbound.GrpcRoute_Distribution {
	if len(backends) == 0 {
		return &outbound.GrpcRoute_Distribution{Kind: &outbound.GrpcRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.GrpcRoute_Distribution_FirstAvailable{Backends: []*outbound.GrpcRoute_RouteBackend{{Backend: own}}},
		}}
	}
	random := &outbound.GrpcRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		filters := grpcFilters(b.filters)
		if b.missing != "" {
			filters = append(filters, &outbound.GrpcRoute_Filter{Kind: &outbound.GrpcRoute_Filter_FailureInjector{
				FailureInjector: &grpc_route.GrpcFailureInjector{Code: 14, Message: missingMessage(b.missing)},
			}})
		}
		random.Backends = append(random.Backends, &outbound.GrpcRoute_WeightedRouteBackend{
			Backend: &outbound.GrpcRoute_RouteBackend{Backend: b.Backend, Filters: filters}, Weight: b.weight,
		})
	}
	return &outbound.GrpcRoute_Distribution{Kind: &outbound.GrpcRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// tlsBackends returns the distribution of a TLS rule over backends, by weight. Connections to a
// backend that does not exist fail. If the list backends is empty, the only backend is own,
// which has the endpoints of the destination itself.
//
//nolint:dupl // the API has a type for each kind of route
func tlsBackends(own *outbound.Backend, backends []backend) *outbound.TlsRoute_Distribution {
	if len(backends) == 0 {
		return &outbound.TlsRoute_Distribution{Kind: &outbound.TlsRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.TlsRoute_Distribution_FirstAvailable{Backends: []*outbound.TlsRoute_RouteBackend{{Backend: own}}},
		}}
	}
	random := &outbound.TlsRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		msg := &outbound.TlsRoute_RouteBackend{Backend: b.Backend}
		if b.missing != "" {
			msg.Filters = []*outbound.TlsRoute_Filter{{Kind: &outbound.TlsRoute_Filter_Invalid{Invalid: invalidBackend(b.missing)}}}
		}
		random.Backends = append(random.Backends, &outbound.TlsRoute_WeightedRouteBackend{Backend: msg, Weight: b.weight})
	}
	return &outbound.TlsRoute_Distribution{Kind: &outbound.TlsRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// opaqueBackends returns the distribution of a TCP rule over backends, by weight. Connections to
// a backend that does not exist fail. If the list backends is empty, the only backend is own,
// which has the endpoints of the destination itself.
//
//nolint:dupl // the API has a type for each kind of route
func opaqueBackends(own *outbound.Backend, backends []backend) *outbound.OpaqueRoute_Distribution {
	if len(backends) == 0 {
		return &outbound.OpaqueRoute_Distribution{Kind: &outbound.OpaqueRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.OpaqueRoute_Distribution_FirstAvailable{
				Backends: []*outbound.OpaqueRoute_RouteBackend{{Backend: own}},
			},
		}}
	}
	random := &outbound.OpaqueRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		msg := &outbound.OpaqueRoute_RouteBackend{Backend: b.Backend}
		if b.missing != "" {
			msg.Filters = []*outbound.OpaqueRoute_Filter{{Kind: &outbound.OpaqueRoute_Filter_Invalid{Invalid: invalidBackend(b.missing)}}}
		}
		random.Backends = append(random.Backends, &outbound.OpaqueRoute_WeightedRouteBackend{Backend: msg, Weight: b.weight})
	}
	return &outbound.OpaqueRoute_Distribution{Kind: &outbound.OpaqueRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// invalidBackend returns a filter that fails all connections to the destination with the
// given name, because this destination does not exist.
func invalidBackend(name string) *opaque_route.Invalid {
	return &opaque_route.Invalid{Message: missingMessage(name)}
}
