package controller

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// backend is a route's backendRef as API messages.
type backend struct {
	*outbound.Backend
	weight  uint32
	filters []filter
	failure string // why requests to it always fail; usually empty
}

// backends converts a rule's backendRefs. allowed lists the filter types that a backendRef may
// use; if it is empty, any filter is a mistake. If all weights are 0, the result makes every
// request fail, as the Gateway API requires. Linkerd's proxies would panic at such weights, and
// also at a sum above 32 bits.
func (o *outboundPolicy) backends(list []backendYAML, allowed ...string) []backend {
	backends := make([]backend, 0, len(list))
	// sum needs 64 bits, because it is checked not to exceed 32.
	sum := uint64(0)
	for _, y := range list {
		b := backend{weight: y.Weight}
		// allowed is empty for connections, which have no headers to change.
		if len(allowed) > 0 {
			b.filters = filters(y.Filters, allowed...)
		} else if len(y.Filters) > 0 {
			y.At.At("filters").Failf("backends of connections have no filters: take them out")
		}
		if sum += uint64(b.weight); sum > math.MaxUint32 {
			y.At.At("weight").Rejectf(y.Weight, "the sum of the weights is %d: want at most %d", sum, uint32(math.MaxUint32))
		}
		// An IP address is no destination with endpoints. As a backend it means the address itself.
		if o.ip && y.Name == o.host {
			b.Backend = o.own
			backends = append(backends, b)
			continue
		}
		destination := target{host: strings.ToLower(strings.TrimSuffix(y.Name, ".")), port: cmp.Or(y.Port, defaultPort)}
		check(y.At.At("name"), y.Name, checkName(destination.host))
		// A rule may refer to a destination that does not exist. Only its share of the requests fails then.
		if o.exists(destination.host, y.Port) {
			b.Backend = balancerTo(destination, o.load)
		} else {
			b.Backend = invalidBackend()
			b.failure = fmt.Sprintf("destination %s does not exist", destination)
		}
		backends = append(backends, b)
	}
	// One invalid backend with the weight 1 stands for all of them.
	if len(backends) > 0 && sum == 0 {
		return []backend{{Backend: invalidBackend(), weight: 1, failure: "all backends have the weight 0"}}
	}
	return backends
}

// invalidBackend returns a backend without endpoints.
func invalidBackend() *outbound.Backend {
	return &outbound.Backend{Metadata: defaultMetadata("invalid"), Queue: defaultQueue()}
}

// The functions below convert filters and backends to the messages for one kind of route. local
// is the backend with the destination's own endpoints, which receives all traffic if a rule lists
// no backends.

// httpFilters converts filters, each of which has exactly one field set, for an HTTPRoute.
func httpFilters(filters []filter) []*outbound.HttpRoute_Filter {
	msgs := make([]*outbound.HttpRoute_Filter, 0, len(filters)+1) // one more than filters, for a failure
	for _, f := range filters {
		// A request's header modifier is the kind, unless one of the cases applies.
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

// grpcFilters converts filters for a GRPCRoute, where only those that modify request headers are allowed.
func grpcFilters(filters []filter) []*outbound.GrpcRoute_Filter {
	msgs := make([]*outbound.GrpcRoute_Filter, 0, len(filters)+1)
	for _, f := range filters {
		msgs = append(msgs, &outbound.GrpcRoute_Filter{
			Kind: &outbound.GrpcRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: f.request},
		})
	}
	return msgs
}

// httpBackends distributes an HTTP rule's requests over backends by weight, or sends them all to
// local if there are none. Requests to a backend that does not exist fail with 500.
//
//nolint:dupl // the API has a type for each kind of route
func httpBackends(local *outbound.Backend, backends []backend) *outbound.HttpRoute_Distribution {
	// FirstAvailable with one backend means that all requests go there.
	if len(backends) == 0 {
		return &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.HttpRoute_Distribution_FirstAvailable{Backends: []*outbound.HttpRoute_RouteBackend{{Backend: local}}},
		}}
	}
	random := &outbound.HttpRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		filters := httpFilters(b.filters)
		// The filter makes the proxy answer itself, so the missing backend is never used.
		if b.failure != "" {
			filters = append(filters, &outbound.HttpRoute_Filter{Kind: &outbound.HttpRoute_Filter_FailureInjector{
				FailureInjector: &http_route.HttpFailureInjector{Status: 500, Message: b.failure},
			}})
		}
		random.Backends = append(random.Backends, &outbound.HttpRoute_WeightedRouteBackend{
			Backend: &outbound.HttpRoute_RouteBackend{Backend: b.Backend, Filters: filters}, Weight: b.weight,
		})
	}
	return &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// grpcBackends distributes a gRPC rule's calls over backends by weight, or sends them all to
// local if there are none. Calls to a backend that does not exist fail with UNAVAILABLE.
//
//nolint:dupl // the API has a type for each kind of route
func grpcBackends(local *outbound.Backend, backends []backend) *outbound.GrpcRoute_Distribution {
	// FirstAvailable with one backend means that all calls go there.
	if len(backends) == 0 {
		return &outbound.GrpcRoute_Distribution{Kind: &outbound.GrpcRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.GrpcRoute_Distribution_FirstAvailable{Backends: []*outbound.GrpcRoute_RouteBackend{{Backend: local}}},
		}}
	}
	random := &outbound.GrpcRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		filters := grpcFilters(b.filters)
		// The filter makes the proxy answer itself. 14 is the gRPC status UNAVAILABLE.
		if b.failure != "" {
			filters = append(filters, &outbound.GrpcRoute_Filter{Kind: &outbound.GrpcRoute_Filter_FailureInjector{
				FailureInjector: &grpc_route.GrpcFailureInjector{Code: 14, Message: b.failure},
			}})
		}
		random.Backends = append(random.Backends, &outbound.GrpcRoute_WeightedRouteBackend{
			Backend: &outbound.GrpcRoute_RouteBackend{Backend: b.Backend, Filters: filters}, Weight: b.weight,
		})
	}
	return &outbound.GrpcRoute_Distribution{Kind: &outbound.GrpcRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// tlsBackends distributes a TLS rule's connections over backends by weight, or sends them all to
// local if there are none. Connections to a backend that does not exist fail.
func tlsBackends(local *outbound.Backend, backends []backend) *outbound.TlsRoute_Distribution {
	// FirstAvailable with one backend means that all connections go there.
	if len(backends) == 0 {
		return &outbound.TlsRoute_Distribution{Kind: &outbound.TlsRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.TlsRoute_Distribution_FirstAvailable{Backends: []*outbound.TlsRoute_RouteBackend{{Backend: local}}},
		}}
	}
	random := &outbound.TlsRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		msg := &outbound.TlsRoute_RouteBackend{Backend: b.Backend}
		// The filter makes the proxy reject the connection.
		if b.failure != "" {
			invalid := &outbound.TlsRoute_Filter_Invalid{Invalid: &opaque_route.Invalid{Message: b.failure}}
			msg.Filters = []*outbound.TlsRoute_Filter{{Kind: invalid}}
		}
		random.Backends = append(random.Backends, &outbound.TlsRoute_WeightedRouteBackend{Backend: msg, Weight: b.weight})
	}
	return &outbound.TlsRoute_Distribution{Kind: &outbound.TlsRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}

// opaqueBackends distributes a TCP rule's connections over backends by weight, or sends them all
// to local if there are none. Connections to a backend that does not exist fail.
func opaqueBackends(local *outbound.Backend, backends []backend) *outbound.OpaqueRoute_Distribution {
	// FirstAvailable with one backend means that all connections go there.
	if len(backends) == 0 {
		return &outbound.OpaqueRoute_Distribution{Kind: &outbound.OpaqueRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.OpaqueRoute_Distribution_FirstAvailable{
				Backends: []*outbound.OpaqueRoute_RouteBackend{{Backend: local}},
			},
		}}
	}
	random := &outbound.OpaqueRoute_Distribution_RandomAvailable{}
	for _, b := range backends {
		msg := &outbound.OpaqueRoute_RouteBackend{Backend: b.Backend}
		// The filter makes the proxy reject the connection.
		if b.failure != "" {
			msg.Filters = []*outbound.OpaqueRoute_Filter{{
				Kind: &outbound.OpaqueRoute_Filter_Invalid{Invalid: &opaque_route.Invalid{Message: b.failure}},
			}}
		}
		random.Backends = append(random.Backends, &outbound.OpaqueRoute_WeightedRouteBackend{Backend: msg, Weight: b.weight})
	}
	return &outbound.OpaqueRoute_Distribution{Kind: &outbound.OpaqueRoute_Distribution_RandomAvailable_{RandomAvailable: random}}
}
