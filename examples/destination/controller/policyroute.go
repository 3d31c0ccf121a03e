package controller

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"golang.org/x/net/http/httpguts"
)

// This file converts the parts of HTTPRoutes and GRPCRoutes that destinations and servers share.

// The API groups of Kubernetes resources, for metadata.
const (
	gatewayGroup = "gateway.networking.k8s.io"
	policyGroup  = "policy.linkerd.io"
)

// defaultMetadata returns metadata for an object that the controller itself adds, such as a
// default route. The metadata contains the name of the object, instead of a Kubernetes
// resource.
func defaultMetadata(name string) *meta.Metadata {
	return &meta.Metadata{Kind: &meta.Metadata_Default{Default: name}}
}

// resourceMetadata returns metadata that identifies a Kubernetes resource.
func resourceMetadata(group, kind, name string) *meta.Metadata {
	return &meta.Metadata{Kind: &meta.Metadata_Resource{Resource: &meta.Resource{Group: group, Kind: kind, Name: name}}}
}

// named checks the name of an item in a list, and adds it to first, the map from each previous name
// to its line. If the name is missing or already in the map, named adds an error instead. The
// argument kind describes the item in the error, such as "route". The argument at is the line of
// the item.
func (r *reader) named(kind string, at line, name text, first map[string]int) {
	if name.value == "" {
		r.missing(max(name.line, at.n), fmt.Sprintf("the %s has no name", kind))
	} else if was, twice := first[name.value]; twice {
		r.failf(name.line, "%s %q is given twice, first in line %d", kind, name.value, was)
	} else {
		first[name.value] = name.line
	}
}

// oneOf returns t, the value of the field with the given name. The list allowed has the valid
// values. If the field is missing or invalid, oneOf returns the first valid value.
func (r *reader) oneOf(name string, t text, allowed ...string) string {
	if !t.given() {
		return allowed[0]
	}
	if !slices.Contains(allowed, t.value) {
		r.failf(t.line, "%s %q must be one of %s", name, t.value, strings.Join(allowed, ", "))
		return allowed[0]
	}
	return t.value
}

// hostnames converts the hostnames of a route. A hostname is a DNS name, or *.name for all
// subdomains of name.
func (r *reader) hostnames(list []text) []*http_route.HostMatch {
	var hosts []*http_route.HostMatch
	for _, t := range list {
		name, wildcard := strings.CutPrefix(t.value, "*.")
		if err := checkName(name); err != nil {
			r.failf(t.line, "hostname: %s", err)
		}
		if !wildcard {
			hosts = append(hosts, &http_route.HostMatch{Match: &http_route.HostMatch_Exact{Exact: name}})
			continue
		}
		hosts = append(hosts, &http_route.HostMatch{Match: &http_route.HostMatch_Suffix_{
			Suffix: &http_route.HostMatch_Suffix{ReverseLabels: reverseLabels(name)},
		}})
	}
	return hosts
}

// reverseLabels returns the labels of a DNS name in reverse order: com, example for
// example.com.
func reverseLabels(name string) []string {
	labels := strings.Split(name, ".")
	slices.Reverse(labels)
	return labels
}

// The values of the field type of a condition, as in the Gateway API.
const (
	exactMatch  = "Exact"
	prefixMatch = "PathPrefix"
	regexMatch  = "RegularExpression"
)

// allPaths returns a condition that matches all requests. A rule without matches has this
// condition.
func allPaths() *http_route.HttpRouteMatch {
	return &http_route.HttpRouteMatch{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/"}}}
}

// httpMatches converts the conditions of a rule of an HTTPRoute. A request must meet one of
// them. If list is empty, all requests match.
func (r *reader) httpMatches(list []httpMatchYAML) []*http_route.HttpRouteMatch {
	matches := make([]*http_route.HttpRouteMatch, 0, max(1, len(list)))
	for _, y := range list {
		m := allPaths()
		if y.Path != nil {
			m.Path = r.pathMatch(*y.Path)
		}
		if y.Method.given() {
			r.check(y.Method.line, checkMethod(y.Method.value))
			m.Method = methodMessage(y.Method.value)
		}
		m.Headers = r.headerMatches(y.Headers)
		for _, q := range y.QueryParams {
			p := &http_route.QueryParamMatch{Name: q.Name.value}
			if q.Name.value == "" {
				r.missing(q.At.n, "the query parameter has no name")
			}
			if r.isRegex(q.Type, q.Value) {
				p.Value = &http_route.QueryParamMatch_Regex{Regex: q.Value.value}
			} else {
				p.Value = &http_route.QueryParamMatch_Exact{Exact: q.Value.value}
			}
			m.QueryParams = append(m.QueryParams, p)
		}
		matches = append(matches, m)
	}
	if len(matches) == 0 {
		matches = append(matches, allPaths())
	}
	return matches
}

// pathMatch converts a condition on the path of a request. A missing type means PathPrefix,
// and a missing value means "/".
func (r *reader) pathMatch(y valueYAML) *http_route.PathMatch {
	kind := r.oneOf("path type", y.Type, prefixMatch, exactMatch, regexMatch)
	value := y.Value.value
	if !y.Value.given() {
		value = "/"
	}
	if kind == regexMatch {
		r.check(y.Value.line, checkRegex(value))
		return &http_route.PathMatch{Kind: &http_route.PathMatch_Regex{Regex: value}}
	}
	if !strings.HasPrefix(value, "/") || strings.ContainsAny(value, "?#") {
		r.failf(y.Value.line, "path %q must begin with / and have no query", value)
	}
	if kind == exactMatch {
		return &http_route.PathMatch{Kind: &http_route.PathMatch_Exact{Exact: value}}
	}
	return &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: value}}
}

// headerMatches converts conditions on the headers of a request.
func (r *reader) headerMatches(list []namedValueYAML) []*http_route.HeaderMatch {
	matches := make([]*http_route.HeaderMatch, 0, len(list))
	for _, y := range list {
		m := &http_route.HeaderMatch{Name: strings.ToLower(r.headerName(y.At, y.Name))}
		if r.isRegex(y.Type, y.Value) {
			m.Value = &http_route.HeaderMatch_Regex{Regex: y.Value.value}
		} else {
			m.Value = &http_route.HeaderMatch_Exact{Exact: []byte(y.Value.value)}
		}
		matches = append(matches, m)
	}
	return matches
}

// isRegex reports whether kind, the type of a condition, is RegularExpression. If it is, isRegex
// adds an error unless value is a valid regular expression. A missing type means Exact.
func (r *reader) isRegex(kind, value text) bool {
	if r.oneOf("type", kind, exactMatch, regexMatch) != regexMatch {
		return false
	}
	r.check(value.line, checkRegex(value.value))
	return true
}

// checkRegex returns an error unless pattern is a regular expression of Go. Proxies of
// linkerd use the syntax of Rust, which is nearly the same.
func checkRegex(pattern string) error {
	if _, err := syntax.Parse(pattern, syntax.Perl); err != nil {
		return fmt.Errorf("value: %w", err)
	}
	return nil
}

// grpcMatches converts the conditions of a rule of a GRPCRoute. A call must meet one of
// them. If list is empty, all calls match.
func (r *reader) grpcMatches(list []grpcMatchYAML) []*grpc_route.GrpcRouteMatch {
	matches := make([]*grpc_route.GrpcRouteMatch, 0, max(1, len(list)))
	for _, y := range list {
		m := &grpc_route.GrpcRouteMatch{Rpc: &grpc_route.GrpcRpcMatch{}, Headers: r.headerMatches(y.Headers)}
		if y.Method != nil {
			for _, t := range []text{y.Method.Service, y.Method.Method} {
				if strings.ContainsAny(t.value, "/? ") {
					r.failf(t.line, "%q is not the name of a gRPC service or method", t.value)
				}
			}
			m.Rpc.Service, m.Rpc.Method = y.Method.Service.value, y.Method.Method.value
		}
		matches = append(matches, m)
	}
	if len(matches) == 0 {
		matches = append(matches, &grpc_route.GrpcRouteMatch{Rpc: &grpc_route.GrpcRpcMatch{}})
	}
	return matches
}

// filter is a filter of a rule or a backend, converted to messages of the API. Exactly one
// field is set.
type filter struct {
	request  *http_route.RequestHeaderModifier
	response *http_route.ResponseHeaderModifier
	redirect *http_route.RequestRedirect
}

// The values of the field type of a filter, as in the Gateway API.
const (
	requestFilter  = "RequestHeaderModifier"
	responseFilter = "ResponseHeaderModifier"
	redirectFilter = "RequestRedirect"
)

// filters converts the filters of a rule or a backend. It adds an error for a filter with a
// type that is not in allowed.
func (r *reader) filters(list []filterYAML, allowed ...string) []filter {
	var filters []filter
	for _, y := range list {
		if !y.Type.given() {
			r.missing(y.At.n, "the filter has no type")
			continue
		}
		var f filter
		given := map[string]bool{requestFilter: y.Request != nil, responseFilter: y.Response != nil, redirectFilter: y.Redirect != nil}
		kind := r.oneOf("filter type", y.Type, allowed...)
		if kind == y.Type.value && !given[kind] {
			r.missing(y.Type.line, fmt.Sprintf("the filter has no %s%s", strings.ToLower(kind[:1]), kind[1:]))
			continue
		}
		switch {
		case kind == requestFilter && y.Request != nil:
			f.request = &http_route.RequestHeaderModifier{
				Set: r.headers(y.Request.Set), Add: r.headers(y.Request.Add), Remove: r.headerNames(y.Request.Remove),
			}
		case kind == responseFilter && y.Response != nil:
			f.response = &http_route.ResponseHeaderModifier{
				Set: r.headers(y.Response.Set), Add: r.headers(y.Response.Add), Remove: r.headerNames(y.Response.Remove),
			}
		case kind == redirectFilter && y.Redirect != nil:
			f.redirect = r.redirect(*y.Redirect)
		}
		filters = append(filters, f)
	}
	return filters
}

// headers converts the headers that a filter sets or adds. It returns nil if there are
// none.
func (r *reader) headers(list []headerYAML) *http_types.Headers {
	var headers http_types.Headers
	for _, y := range list {
		if !httpguts.ValidHeaderFieldValue(y.Value.value) {
			r.failf(y.Value.line, "value %q is not allowed in a header", y.Value.value)
		}
		headers.Headers = append(headers.Headers, &http_types.Headers_Header{
			Name: strings.ToLower(r.headerName(y.At, y.Name)), Value: []byte(y.Value.value),
		})
	}
	if len(headers.GetHeaders()) == 0 {
		return nil
	}
	return &headers
}

// headerNames converts the names of headers that a filter removes.
func (r *reader) headerNames(list []text) []string {
	names := make([]string, 0, len(list))
	for _, t := range list {
		names = append(names, strings.ToLower(r.headerName(line{t.line}, t)))
	}
	return names
}

// headerName checks the name of a header and returns it. It adds an error if the name is missing or
// invalid. The argument at is the line of the header, which an error about a missing name reports.
func (r *reader) headerName(at line, name text) string {
	switch {
	case name.value == "":
		r.missing(at.n, "the header has no name")
	case !httpguts.ValidHeaderFieldName(name.value):
		r.failf(name.line, "header name %q has characters that are not allowed", name.value)
	}
	return name.value
}

// redirect converts a filter that redirects requests. The default status is 302, as in the
// Gateway API.
func (r *reader) redirect(y redirectYAML) *http_route.RequestRedirect {
	m := &http_route.RequestRedirect{Host: y.Hostname.value, Status: 302}
	if y.Scheme.given() {
		scheme := http_types.Scheme_HTTP
		if r.oneOf("scheme", y.Scheme, "http", "https") == "https" {
			scheme = http_types.Scheme_HTTPS
		}
		m.Scheme = &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: scheme}}
	}
	if y.Hostname.given() {
		r.check(y.Hostname.line, checkName(y.Hostname.value))
	}
	if y.Port.given() {
		m.Port = uint32(r.port(y.Port))
	}
	if y.Status.given() {
		if m.Status = r.number("statusCode", y.Status); !slices.Contains([]uint32{301, 302, 303, 307, 308}, m.GetStatus()) {
			r.failf(y.Status.line, "statusCode %s must be 301, 302, 303, 307 or 308", y.Status.value)
		}
	}
	if y.Path == nil {
		return m
	}
	t := y.Path.Full
	switch r.oneOf("path type", y.Path.Type, "ReplaceFullPath", "ReplacePrefixMatch") {
	case "ReplaceFullPath":
		m.Path = &http_route.PathModifier{Replace: &http_route.PathModifier_Full{Full: t.value}}
	case "ReplacePrefixMatch":
		t = y.Path.Prefix
		m.Path = &http_route.PathModifier{Replace: &http_route.PathModifier_Prefix{Prefix: t.value}}
	}
	if !strings.HasPrefix(t.value, "/") {
		r.failf(max(t.line, y.Path.At.n), "the path %q of a redirect must begin with /", t.value)
	}
	return m
}

// port parses a port from 1 to 65535. For an invalid value it adds an error and returns 0.
func (r *reader) port(t text) uint16 {
	port, err := parsePort(t.value)
	r.check(t.line, err)
	return port
}

var errNoRules = errors.New("the route has no rules")
