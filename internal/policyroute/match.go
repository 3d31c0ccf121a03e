// Package policyroute converts what routes in linkerd's outbound and inbound policies share:
// conditions on requests, and filters.
package policyroute

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"

	"github.com/gotower/gotower/profiles"
)

// HostMatch converts a condition of linkerd's policy API on a request's host, or on the server name of a TLS
// connection.
func HostMatch[S interface{ GetReverseLabels() []string }, H interface {
	GetExact() string
	GetSuffix() S
}](m H) (profiles.Match, error) {
	host := profiles.Host{Value: profiles.Exact(m.GetExact())}
	// The API lists the labels from the last one to the first.
	if labels := slices.Clone(m.GetSuffix().GetReverseLabels()); len(labels) > 0 {
		slices.Reverse(labels)
		host.Value = profiles.Suffix("." + strings.Join(labels, "."))
	}
	return host, valid(host)
}

// HTTPMatch converts a condition of linkerd's policy API on HTTP requests. prefix is the condition's path prefix, or
// "/" if all paths satisfy it: a redirect that replaces a path's prefix needs it. It is "" if the condition contains
// an exact path or a regular expression.
func HTTPMatch(m *http_route.HttpRouteMatch) (conditions profiles.All, prefix string, err error) {
	conditions = profiles.All{}
	switch kind := m.GetPath().GetKind().(type) {
	case *http_route.PathMatch_Exact:
		conditions = append(conditions, profiles.Path("^"+regexp.QuoteMeta(kind.Exact)+"$"))
	case *http_route.PathMatch_Regex:
		if _, err := regexp.Compile(kind.Regex); err != nil { // before the group is added
			return nil, "", fmt.Errorf("path: %w", err)
		}
		conditions = append(conditions, profiles.Path("^(?:"+kind.Regex+")$"))
	default:
		if prefix = m.GetPath().GetPrefix(); strings.Trim(prefix, "/") == "" {
			prefix = "/"
		} else {
			conditions = append(conditions, profiles.PathPrefix(strings.TrimRight(prefix, "/")))
		}
	}
	if conditions, err = withHeaders(conditions, m.GetHeaders()); err != nil {
		return nil, "", err
	}
	for _, q := range m.GetQueryParams() {
		match := profiles.Query{Name: q.GetName(), Value: profiles.Exact(q.GetExact())}
		if _, ok := q.GetValue().(*http_route.QueryParamMatch_Regex); ok {
			match.Value = profiles.Regex(q.GetRegex())
		}
		conditions = append(conditions, match)
	}
	if m.GetMethod() != nil {
		// Method calls the function at once, if at all.
		method := Method(m.GetMethod(), func(reason error) { err = reason })
		if conditions = append(conditions, method); err != nil {
			return nil, "", err
		}
	}
	return conditions, prefix, validMembers(conditions)
}

// GRPCMatch converts a condition of linkerd's policy API on gRPC requests. The second result, the path prefix that
// HTTPMatch returns, is always "".
func GRPCMatch(m *grpc_route.GrpcRouteMatch) (profiles.All, string, error) {
	conditions := profiles.All{
		profiles.GRPC{Service: m.GetRpc().GetService(), Method: m.GetRpc().GetMethod()}, profiles.Method("POST"),
	}
	conditions, err := withHeaders(conditions, m.GetHeaders())
	if err != nil {
		return nil, "", err
	}
	return conditions, "", validMembers(conditions)
}

// Method converts a condition of linkerd's API on a request method. It returns nil if m is empty or unknown. If m is
// unknown, it also calls drop with an error.
func Method(m *http_types.HttpMethod, drop func(error)) profiles.Match {
	switch m := m.GetType().(type) {
	case *http_types.HttpMethod_Registered_:
		name, ok := http_types.HttpMethod_Registered_name[int32(m.Registered)]
		if !ok {
			drop(fmt.Errorf("method %d is not registered", m.Registered))
			return nil
		}
		return profiles.Method(name)
	case *http_types.HttpMethod_Unregistered:
		return profiles.Method(m.Unregistered)
	}
	return nil
}

// withHeaders appends the conditions for headers to conditions.
func withHeaders(conditions profiles.All, headers []*http_route.HeaderMatch) (profiles.All, error) {
	for _, h := range headers {
		match := profiles.Header{Name: h.GetName(), AnyLine: true} // as in linkerd's proxy
		switch v := h.GetValue().(type) {
		case *http_route.HeaderMatch_Exact:
			match.Value = profiles.Exact(v.Exact)
		case *http_route.HeaderMatch_Regex:
			match.Value = profiles.Regex(v.Regex)
		default:
			return nil, fmt.Errorf("header %q: no value", h.GetName())
		}
		conditions = append(conditions, match)
	}
	return conditions, nil
}

// valid returns an error if m is invalid. It must be called for each member of an All. A Router
// leaves an invalid member out, and the All would then hold for too many requests.
func valid(m profiles.Match) error { return profiles.ValidateMatch(m) }

// validMembers returns the error of the first invalid condition.
func validMembers(conditions profiles.All) error {
	for _, m := range conditions {
		if err := valid(m); err != nil {
			return err
		}
	}
	return nil
}
