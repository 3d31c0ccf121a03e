// Package policyroute converts the parts of routes that the outbound and the inbound policies
// of linkerd's API have in common: conditions on requests, and filters.
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

// HostMatch converts a condition on the host of a request, or on the server name of a connection.
func HostMatch[S interface{ GetReverseLabels() []string }, H interface {
	GetExact() string
	GetSuffix() S
}](m H) (profiles.Match, error) {
	host := profiles.Host{Value: profiles.Exact(m.GetExact())}
	if labels := slices.Clone(m.GetSuffix().GetReverseLabels()); len(labels) > 0 {
		slices.Reverse(labels)
		host.Value = profiles.Suffix("." + strings.Join(labels, "."))
	}
	return host, valid(host)
}

// HTTPMatch converts a condition on HTTP requests. The result prefix is the path prefix of the
// condition, or "/" if all paths satisfy it. It is "" if the condition has an exact path or a
// regular expression.
func HTTPMatch(m *http_route.HttpRouteMatch) (all profiles.All, prefix string, err error) {
	all = profiles.All{}
	switch kind := m.GetPath().GetKind().(type) {
	case *http_route.PathMatch_Exact:
		all = append(all, profiles.Path("^"+regexp.QuoteMeta(kind.Exact)+"$"))
	case *http_route.PathMatch_Regex:
		if _, err := regexp.Compile(kind.Regex); err != nil { // before the group is added
			return nil, "", fmt.Errorf("path: %w", err)
		}
		all = append(all, profiles.Path("^(?:"+kind.Regex+")$"))
	default:
		if prefix = m.GetPath().GetPrefix(); strings.Trim(prefix, "/") == "" {
			prefix = "/"
		} else {
			all = append(all, profiles.PathPrefix(strings.TrimRight(prefix, "/")))
		}
	}
	if all, err = withHeaders(all, m.GetHeaders()); err != nil {
		return nil, "", err
	}
	for _, q := range m.GetQueryParams() {
		match := profiles.Query{Name: q.GetName(), Value: profiles.Exact(q.GetExact())}
		if _, ok := q.GetValue().(*http_route.QueryParamMatch_Regex); ok {
			match.Value = profiles.Regex(q.GetRegex())
		}
		all = append(all, match)
	}
	if m.GetMethod() != nil {
		method := Method(m.GetMethod(), func(of error) { err = of })
		if all = append(all, method); err != nil {
			return nil, "", err
		}
	}
	return all, prefix, validMembers(all)
}

// GRPCMatch converts a condition on gRPC requests. The second result, the path prefix, is
// always "".
func GRPCMatch(m *grpc_route.GrpcRouteMatch) (profiles.All, string, error) {
	all := profiles.All{
		profiles.GRPC{Service: m.GetRpc().GetService(), Method: m.GetRpc().GetMethod()}, profiles.Method("POST"),
	}
	all, err := withHeaders(all, m.GetHeaders())
	if err != nil {
		return nil, "", err
	}
	return all, "", validMembers(all)
}

// Method converts a condition on the method of a request. It returns nil if m is empty or
// unknown. It calls drop with an error if m is unknown.
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

func withHeaders(all profiles.All, headers []*http_route.HeaderMatch) (profiles.All, error) {
	for _, h := range headers {
		match := profiles.Header{Name: h.GetName()}
		switch v := h.GetValue().(type) {
		case *http_route.HeaderMatch_Exact:
			match.Value = profiles.Exact(v.Exact)
		case *http_route.HeaderMatch_Regex:
			match.Value = profiles.Regex(v.Regex)
		default:
			return nil, fmt.Errorf("header %q: no value", h.GetName())
		}
		all = append(all, match)
	}
	return all, nil
}

// valid returns an error if m is invalid. It must be called for each member of an All. A Router
// leaves an invalid member out, and the All would then hold for too many requests.
func valid(m profiles.Match) error { return profiles.Route{Match: m}.Validate() }

func validMembers(all profiles.All) error {
	for _, m := range all {
		if err := valid(m); err != nil {
			return err
		}
	}
	return nil
}
