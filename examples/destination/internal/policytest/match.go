package policytest

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/destination/internal/rustregexp"
)

// This file checks the parts of routes that outbound and inbound policies share.

// checkRoute checks what all kinds of outbound routes have in common.
func checkRoute(m *meta.Metadata, hosts []*http_route.HostMatch) error {
	if m == nil {
		return errors.New("invalid route metadata: invalid metadata: missing metadata")
	}
	if err := checkResource(m); err != nil {
		return within("invalid route metadata", err)
	}
	return checkHosts(hosts)
}

// checkHosts checks a route's conditions on the host.
func checkHosts(hosts []*http_route.HostMatch) error {
	for _, h := range hosts {
		if h.GetMatch() == nil {
			return errors.New("invalid host match: host match must contain a match")
		}
	}
	return nil
}

// checkHTTPMatch checks a condition on HTTP requests. Everything in it is optional.
func checkHTTPMatch(m *http_route.HttpRouteMatch) error {
	if p := m.GetPath(); p != nil {
		switch kind := p.GetKind().(type) {
		// The kind is nil if it is missing, or if this version of the API does not know it.
		case nil:
			return errors.New("invalid path match: missing match")
		case *http_route.PathMatch_Regex:
			if err := rustregexp.Check(kind.Regex); err != nil {
				return within("invalid path match: invalid regular expression", err)
			}
		}
	}
	for _, q := range m.GetQueryParams() {
		if q.GetName() == "" {
			return errors.New("invalid query param match: missing a query param name")
		}
		switch v := q.GetValue().(type) {
		case nil:
			return errors.New("invalid query param match: missing a query param value")
		case *http_route.QueryParamMatch_Regex:
			if err := rustregexp.Check(v.Regex); err != nil {
				return within("invalid query param match: invalid regular expression", err)
			}
		}
	}
	return first(checkHeaderMatches(m.GetHeaders()), checkMethod(m.GetMethod()))
}

// checkHeaderMatches checks conditions on headers, of HTTP requests or gRPC calls.
func checkHeaderMatches(list []*http_route.HeaderMatch) error {
	for _, h := range list {
		if !httpguts.ValidHeaderFieldName(h.GetName()) {
			return fmt.Errorf("invalid header match: invalid HTTP header name %q", h.GetName())
		}
		switch v := h.GetValue().(type) {
		// The kind is nil if it is missing, or if this version of the API does not know it.
		case nil:
			return errors.New("invalid header match: missing a header value match")
		case *http_route.HeaderMatch_Exact:
			if !httpguts.ValidHeaderFieldValue(string(v.Exact)) {
				return fmt.Errorf("invalid header match: failed to parse header value %q", v.Exact)
			}
		case *http_route.HeaderMatch_Regex:
			if err := rustregexp.Check(v.Regex); err != nil {
				return within("invalid header match: invalid regular expression", err)
			}
		}
	}
	return nil
}

// checkMethod checks a condition on the method. A nil m matches any method.
func checkMethod(m *http_types.HttpMethod) error {
	switch kind := m.GetType().(type) {
	case nil:
		// A message without a type is an error, but no message at all is not.
		return required("HTTP method type", m == nil)
	case *http_types.HttpMethod_Registered_:
		if _, ok := http_types.HttpMethod_Registered_name[int32(kind.Registered)]; !ok {
			return fmt.Errorf("invalid method match: unexpected registered method: %d", kind.Registered)
		}
	case *http_types.HttpMethod_Unregistered:
		if !httpguts.ValidHeaderFieldName(kind.Unregistered) { // both are tokens
			return fmt.Errorf("invalid method match: invalid unregistered method %q", kind.Unregistered)
		}
	}
	return nil
}

// checkGRPCMatch checks a condition on gRPC calls. It needs an RPC, but its names may be empty.
func checkGRPCMatch(m *grpc_route.GrpcRouteMatch) error {
	if m.GetRpc() == nil {
		return errors.New("missing RPC match")
	}
	return checkHeaderMatches(m.GetHeaders())
}

// checkHTTPFilter checks a filter of an outbound HTTP route or of one of its backends.
func checkHTTPFilter(f *outbound.HttpRoute_Filter) error {
	switch kind := f.GetKind().(type) {
	case nil:
		return errors.New("missing filter kind")
	case *outbound.HttpRoute_Filter_FailureInjector:
		return checkHTTPFault(kind.FailureInjector)
	case *outbound.HttpRoute_Filter_RequestHeaderModifier:
		return checkModifier(kind.RequestHeaderModifier)
	case *outbound.HttpRoute_Filter_ResponseHeaderModifier:
		return checkModifier(kind.ResponseHeaderModifier)
	case *outbound.HttpRoute_Filter_Redirect:
		return checkRedirect(kind.Redirect)
	default:
		return fmt.Errorf("unknown filter %T", kind)
	}
}

// checkGRPCFilter checks a filter of an outbound gRPC route or of one of its backends.
func checkGRPCFilter(f *outbound.GrpcRoute_Filter) error {
	switch kind := f.GetKind().(type) {
	case nil:
		return errors.New("missing filter kind")
	case *outbound.GrpcRoute_Filter_FailureInjector:
		return checkGRPCFault(kind.FailureInjector)
	case *outbound.GrpcRoute_Filter_RequestHeaderModifier:
		return checkModifier(kind.RequestHeaderModifier)
	default:
		return fmt.Errorf("unknown filter %T", kind)
	}
}

// checkFilterKinds returns an error if one of filters, those of a TLS or TCP route, has no kind. There are
// two kinds, Invalid and Forbidden, whose contents may be anything.
func checkFilterKinds[F interface {
	GetInvalid() *opaque_route.Invalid
	GetForbidden() *opaque_route.Forbidden
}](filters []F) error {
	for _, f := range filters {
		if f.GetInvalid() == nil && f.GetForbidden() == nil {
			return errors.New("invalid filter: missing filter kind")
		}
	}
	return nil
}

// checkHTTPFault checks a filter that makes the proxy answer HTTP requests with an error.
func checkHTTPFault(f *http_route.HttpFailureInjector) error {
	if s := f.GetStatus(); s < 100 || s > 999 {
		return fmt.Errorf("invalid HTTP failure injector: invalid HTTP status code: %d", s)
	}
	return checkRatio(f.GetRatio())
}

// checkGRPCFault checks a filter that makes the proxy answer gRPC calls with an error.
func checkGRPCFault(f *grpc_route.GrpcFailureInjector) error {
	if f.GetCode() > math.MaxUint16 {
		return fmt.Errorf("invalid HTTP failure injector: gRPC status code is not a u16: %d", f.GetCode())
	}
	return checkRatio(f.GetRatio())
}

// checkRatio checks the share of requests that a fault applies to. A nil r means all of them.
func checkRatio(r *http_route.Ratio) error {
	if r != nil && (r.GetDenominator() == 0 || r.GetNumerator() > r.GetDenominator()) {
		return fmt.Errorf("invalid request distribution: %v", r)
	}
	return nil
}

// checkModifier checks a filter that changes the headers of requests or responses.
func checkModifier(m interface {
	GetAdd() *http_types.Headers
	GetSet() *http_types.Headers
	GetRemove() []string
},
) error {
	// Added and set fields need valid values, and removed ones only a valid name.
	for _, headers := range []*http_types.Headers{m.GetAdd(), m.GetSet()} {
		for _, h := range headers.GetHeaders() {
			if !httpguts.ValidHeaderFieldName(h.GetName()) || !httpguts.ValidHeaderFieldValue(string(h.GetValue())) {
				return fmt.Errorf("invalid HTTP header modifier: %v", h)
			}
		}
	}
	for _, name := range m.GetRemove() {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("invalid HTTP header modifier: %q", name)
		}
	}
	return nil
}

// checkRedirect checks a filter that answers with a redirect.
func checkRedirect(r *http_route.RequestRedirect) error {
	if r.GetPort() > math.MaxUint16 {
		return fmt.Errorf("invalid HTTP redirect: port number must be a u16: %d", r.GetPort())
	}
	if r.GetScheme() != nil && r.GetScheme().GetType() == nil {
		return errors.New("invalid HTTP redirect: scheme must have a type")
	}
	// A host that changes when it is parsed contains more than a host.
	if u, err := url.Parse("http://" + r.GetHost() + "/"); err != nil || u.Host != r.GetHost() {
		return fmt.Errorf("invalid HTTP redirect: invalid HTTP authority: %q", r.GetHost())
	}
	// At most one of the two paths is set, so their concatenation is that one.
	if r.GetPath().GetReplace() != nil && !strings.HasPrefix(r.GetPath().GetFull()+r.GetPath().GetPrefix(), "/") {
		return errors.New("invalid HTTP redirect: redirect paths must be absolute")
	}
	if s := r.GetStatus(); s != 0 && (s < 100 || s > 999) {
		return fmt.Errorf("invalid HTTP redirect: invalid HTTP status code: %d", s)
	}
	return nil
}

// checkTimeouts checks a rule's timeouts. A nil t has none.
func checkTimeouts(t *http_route.Timeouts) error {
	return first(
		within("invalid response timeout", checkDuration(t.GetResponse())),
		within("invalid idle timeout", checkDuration(t.GetIdle())),
		within("invalid request timeout", checkDuration(t.GetRequest())),
	)
}

// checkDuration returns an error if d is negative. A missing duration is valid.
func checkDuration(d *durationpb.Duration) error {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		return fmt.Errorf("%v is not a valid duration", d)
	}
	return nil
}

// requiredDuration returns an error if d is missing or negative. name is what errors call it.
func requiredDuration(name string, d *durationpb.Duration) error {
	return first(required(name, d != nil), within(fmt.Sprintf("invalid %s duration", name), checkDuration(d)))
}

// required returns an error if ok is false, because the field that errors call name is missing.
func required(name string, ok bool) error {
	if !ok {
		return fmt.Errorf("missing %s", name)
	}
	return nil
}

// first returns the first error that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// within adds prefix to err, as linkerd2-proxy's errors have it. A nil err stays nil.
func within(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", prefix, err)
}
