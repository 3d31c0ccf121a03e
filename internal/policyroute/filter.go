package policyroute

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// AddHTTPFilter adds what an HTTPRoute filter does to r. An invalid filter is not added.
func AddHTTPFilter(r *profiles.Route, filter interface {
	GetFailureInjector() *http_route.HttpFailureInjector
	GetRedirect() *http_route.RequestRedirect
	GetRequestHeaderModifier() *http_route.RequestHeaderModifier
}) (err error) {
	if i := filter.GetFailureInjector(); i != nil {
		return addFault(r, profiles.Fault{Status: int(min(i.GetStatus(), math.MaxInt32)), Message: i.GetMessage()}, i.GetRatio())
	}
	if m := filter.GetRedirect(); m != nil {
		r.Redirect, err = redirect(m)
		return err
	}
	return addRequestHeaders(r, filter.GetRequestHeaderModifier())
}

// AddGRPCFilter adds what a GRPCRoute filter does to r. An invalid filter is not added.
func AddGRPCFilter(r *profiles.Route, filter interface {
	GetFailureInjector() *grpc_route.GrpcFailureInjector
	GetRequestHeaderModifier() *http_route.RequestHeaderModifier
}) error {
	if i := filter.GetFailureInjector(); i != nil {
		return addFault(r, profiles.Fault{Status: 500, GRPC: i.GetCode(), Message: i.GetMessage()}, i.GetRatio())
	}
	return addRequestHeaders(r, filter.GetRequestHeaderModifier())
}

// addFault adds a fault for the share ratio of the requests that no earlier fault affects. Its
// Fraction is the corresponding share of all requests. A missing ratio means all that remain.
func addFault(r *profiles.Route, fault profiles.Fault, ratio *http_route.Ratio) error {
	fault.Fraction = 1
	for _, earlier := range r.Faults {
		fault.Fraction = max(0, fault.Fraction-earlier.Fraction)
	}
	if ratio != nil {
		if n, d := ratio.GetNumerator(), ratio.GetDenominator(); d == 0 || n > d {
			return fmt.Errorf("failure injector: the ratio %d/%d is not from 0 to 1", n, d)
		}
		fault.Fraction *= float64(ratio.GetNumerator()) / float64(ratio.GetDenominator())
	}
	r.Faults = append(r.Faults, fault)
	return nil
}

// addRequestHeaders adds the changes of request headers in m to r. A nil m means that the filter is of
// another kind, which is an error.
func addRequestHeaders(r *profiles.Route, m *http_route.RequestHeaderModifier) error {
	if m == nil {
		return errors.New("unknown filter")
	}
	AddHeaders(&r.RequestHeader, m)
	return nil
}

// AddHeaders adds the changes in m, a modifier of request or response headers, to those in dst. It does
// not check them.
func AddHeaders(dst *layer.HeaderMutation, m interface {
	GetAdd() *http_types.Headers
	GetSet() *http_types.Headers
	GetRemove() []string
}) {
	// convert appends the fields of src to dst.
	convert := func(dst []layer.HeaderField, src *http_types.Headers) []layer.HeaderField {
		for _, h := range src.GetHeaders() {
			dst = append(dst, layer.HeaderField{Name: h.GetName(), Value: string(h.GetValue())})
		}
		return dst
	}
	dst.Add = convert(dst.Add, m.GetAdd())
	dst.Set = convert(dst.Set, m.GetSet())
	dst.Remove = append(dst.Remove, m.GetRemove()...)
}

// redirect converts a redirect of linkerd's policy API. The default status is 301. If NewPrefix is set, the caller
// must set OldPrefix, the path prefix that the route's condition requires.
func redirect(m *http_route.RequestRedirect) (*profiles.Redirect, error) {
	if m.GetPort() > math.MaxUint16 {
		return nil, fmt.Errorf("redirect: port %d is above %d", m.GetPort(), math.MaxUint16)
	}
	r := &profiles.Redirect{
		Status: int(cmp.Or(min(m.GetStatus(), math.MaxInt32), 301)), Host: m.GetHost(), Port: uint16(m.GetPort()),
	}
	switch scheme := m.GetScheme().GetType().(type) {
	case *http_types.Scheme_Registered_:
		r.Scheme = "http"
		if scheme.Registered == http_types.Scheme_HTTPS {
			r.Scheme = "https"
		}
	case *http_types.Scheme_Unregistered:
		r.Scheme = scheme.Unregistered
	}
	switch path := m.GetPath().GetReplace().(type) {
	case *http_route.PathModifier_Full:
		r.Path = path.Full
	case *http_route.PathModifier_Prefix:
		r.NewPrefix = cmp.Or(path.Prefix, "/") // "" removes the old prefix, as "/" does
	}
	return r, nil
}
