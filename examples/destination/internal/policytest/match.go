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

func checkRoute(m *meta.Metadata, hosts []*http_route.HostMatch) error {
	if m == nil {
		return errors.New("invalid route metadata: invalid metadata: missing metadata")
	}
	if err := checkResource(m); err != nil {
		return within("invalid route metadata", err)
	}
	return checkHosts(hosts)
}

func checkHosts(hosts []*http_route.HostMatch) error {
	for _, h := range hosts {
		if h.GetMatch() == nil {
			return errors.New("invalid host match: host match must contain a match")
		}
	}
	return nil
}

func checkHTTPMatch(m *http_route.HttpRouteMatch) error {
	if p := m.GetPath(); p != nil {
		switch kind := p.GetKind().(type) {
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

func checkHeaderMatches(list []*http_route.HeaderMatch) error {
	for _, h := range list {
		if !httpguts.ValidHeaderFieldName(h.GetName()) {
			return fmt.Errorf("invalid header match: invalid HTTP header name %q", h.GetName())
		}
		switch v := h.GetValue().(type) {
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

func checkMethod(m *http_types.HttpMethod) error {
	switch kind := m.GetType().(type) {
	case nil:
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

func checkGRPCMatch(m *grpc_route.GrpcRouteMatch) error {
	if m.GetRpc() == nil {
		return errors.New("missing RPC match")
	}
	return checkHeaderMatches(m.GetHeaders())
}

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

// checkFilterKinds checks a TLS or TCP route's filters.
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

func checkHTTPFault(f *http_route.HttpFailureInjector) error {
	if s := f.GetStatus(); s < 100 || s > 999 {
		return fmt.Errorf("invalid HTTP failure injector: invalid HTTP status code: %d", s)
	}
	return checkRatio(f.GetRatio())
}

func checkGRPCFault(f *grpc_route.GrpcFailureInjector) error {
	if f.GetCode() > math.MaxUint16 {
		return fmt.Errorf("invalid HTTP failure injector: gRPC status code is not a u16: %d", f.GetCode())
	}
	return checkRatio(f.GetRatio())
}

func checkRatio(r *http_route.Ratio) error {
	if r != nil && (r.GetDenominator() == 0 || r.GetNumerator() > r.GetDenominator()) {
		return fmt.Errorf("invalid request distribution: %v", r)
	}
	return nil
}

func checkModifier(m interface {
	GetAdd() *http_types.Headers
	GetSet() *http_types.Headers
	GetRemove() []string
},
) error {
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

func checkRedirect(r *http_route.RequestRedirect) error {
	if r.GetPort() > math.MaxUint16 {
		return fmt.Errorf("invalid HTTP redirect: port number must be a u16: %d", r.GetPort())
	}
	if r.GetScheme() != nil && r.GetScheme().GetType() == nil {
		return errors.New("invalid HTTP redirect: scheme must have a type")
	}
	if u, err := url.Parse("http://" + r.GetHost() + "/"); err != nil || u.Host != r.GetHost() {
		return fmt.Errorf("invalid HTTP redirect: invalid HTTP authority: %q", r.GetHost())
	}
	if r.GetPath().GetReplace() != nil && !strings.HasPrefix(r.GetPath().GetFull()+r.GetPath().GetPrefix(), "/") {
		return errors.New("invalid HTTP redirect: redirect paths must be absolute")
	}
	if s := r.GetStatus(); s != 0 && (s < 100 || s > 999) {
		return fmt.Errorf("invalid HTTP redirect: invalid HTTP status code: %d", s)
	}
	return nil
}

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

func requiredDuration(name string, d *durationpb.Duration) error {
	return first(required(name, d != nil), within(fmt.Sprintf("invalid %s duration", name), checkDuration(d)))
}

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

func within(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", prefix, err)
}
