package controller

import (
	"slices"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"golang.org/x/net/http/httpguts"

	"github.com/gotower/gotower/examples/destination/internal/rustregexp"
	"github.com/gotower/gotower/internal/yamlfile"
)

// This file converts what the HTTPRoutes and GRPCRoutes of destinations and servers have in
// common.

// API groups, for metadata.
const (
	gatewayGroup = "gateway.networking.k8s.io"
	policyGroup  = "policy.linkerd.io"
)

// defaultMetadata returns metadata for an object that the controller adds on its own, such as a
// default route. It carries just a name, because no Kubernetes resource is behind it.
func defaultMetadata(name string) *meta.Metadata {
	return &meta.Metadata{Kind: &meta.Metadata_Default{Default: name}}
}

// resourceMetadata returns metadata that identifies a Kubernetes resource.
func resourceMetadata(group, kind, name string) *meta.Metadata {
	return &meta.Metadata{Kind: &meta.Metadata_Resource{Resource: &meta.Resource{Group: group, Kind: kind, Name: name}}}
}

// unique adds a mistake at v if an earlier item uses the name too. names maps each earlier name to its path in the
// file. The caller passes the same map for all items that must differ.
func unique(v yamlfile.Value, name string, names map[string]string) {
	if path, repeated := names[name]; repeated {
		v.Rejectf(name, "the name of %s: want another one", path)
	}
	names[name] = v.Path
}

// hostMatches converts a route's hostnames, which are at v. Each is a DNS name, or *.name for all
// subdomains of name.
func hostMatches(v yamlfile.Value, list []string) []*http_route.HostMatch {
	var hosts []*http_route.HostMatch
	for i, host := range list {
		name, wildcard := strings.CutPrefix(host, "*.")
		check(v.Item(i), host, checkName(name))
		if !wildcard {
			hosts = append(hosts, &http_route.HostMatch{Match: &http_route.HostMatch_Exact{Exact: name}})
			continue
		}
		// A suffix is sent with its labels reversed, the form in which proxies compare it.
		hosts = append(hosts, &http_route.HostMatch{Match: &http_route.HostMatch_Suffix_{
			Suffix: &http_route.HostMatch_Suffix{ReverseLabels: reverseLabels(name)},
		}})
	}
	return hosts
}

// reverseLabels returns a DNS name's labels in reverse order: com, example for example.com.
func reverseLabels(name string) []string {
	labels := strings.Split(name, ".")
	slices.Reverse(labels)
	return labels
}

// Values for a condition's type, as in the Gateway API.
const (
	exactMatch = "Exact"
	regexMatch = "RegularExpression"
)

// allPaths returns the condition for a rule without matches. It matches all requests.
func allPaths() *http_route.HttpRouteMatch {
	return &http_route.HttpRouteMatch{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/"}}}
}

// httpMatches converts an HTTP rule's conditions, of which a request must meet one. With an empty
// list, every request matches.
func httpMatches(list []httpMatchYAML) []*http_route.HttpRouteMatch {
	matches := make([]*http_route.HttpRouteMatch, 0, max(1, len(list)))
	for _, y := range list {
		// The condition starts as one that all requests meet, and becomes narrower.
		m := allPaths()
		if y.Path != nil {
			m.Path = y.Path.message()
		}
		if y.Method != "" {
			check(y.At.At("method"), y.Method, checkMethod(y.Method))
			m.Method = methodMessage(y.Method)
		}
		m.Headers = headerMatches(y.Headers)
		for _, q := range y.QueryParams {
			p := &http_route.QueryParamMatch{Name: q.Name}
			if q.isRegex() {
				p.Value = &http_route.QueryParamMatch_Regex{Regex: q.Value}
			} else {
				p.Value = &http_route.QueryParamMatch_Exact{Exact: q.Value}
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

// message converts a condition on the path.
func (y *pathYAML) message() *http_route.PathMatch {
	value := y.Value
	// A regular expression need not begin with "/", so it is checked alone.
	if y.Type == regexMatch {
		check(y.At.At("value"), value, rustregexp.Check(value))
		return &http_route.PathMatch{Kind: &http_route.PathMatch_Regex{Regex: value}}
	}
	if !strings.HasPrefix(value, "/") || strings.ContainsAny(value, "?#") {
		y.At.At("value").Rejectf(value, "want a path that begins with /, without a query")
	}
	if y.Type == exactMatch {
		return &http_route.PathMatch{Kind: &http_route.PathMatch_Exact{Exact: value}}
	}
	// PathPrefix is the default type.
	return &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: value}}
}

// headerMatches converts conditions on headers.
func headerMatches(list []namedValueYAML) []*http_route.HeaderMatch {
	matches := make([]*http_route.HeaderMatch, 0, len(list))
	for _, y := range list {
		m := &http_route.HeaderMatch{Name: headerName(y.At.At("name"), y.Name)}
		// isRegex also checks the regular expression.
		if y.isRegex() {
			m.Value = &http_route.HeaderMatch_Regex{Regex: y.Value}
		} else {
			checkHeaderValue(y.At.At("value"), y.Value)
			m.Value = &http_route.HeaderMatch_Exact{Exact: []byte(y.Value)}
		}
		matches = append(matches, m)
	}
	return matches
}

// isRegex reports whether y's value is a regular expression, and checks it if so.
func (y *namedValueYAML) isRegex() bool {
	if y.Type == regexMatch {
		check(y.At.At("value"), y.Value, rustregexp.Check(y.Value))
	}
	return y.Type == regexMatch
}

// grpcMatches converts a gRPC rule's conditions, of which a call must meet one. With an empty
// list, every call matches.
func grpcMatches(list []grpcMatchYAML) []*grpc_route.GrpcRouteMatch {
	matches := make([]*grpc_route.GrpcRouteMatch, 0, max(1, len(list)))
	for _, y := range list {
		m := &grpc_route.GrpcRouteMatch{Rpc: &grpc_route.GrpcRpcMatch{}, Headers: headerMatches(y.Headers)}
		if y.Method != nil {
			// Both names follow the same rule, and the map's key names the field in the error.
			for field, name := range map[string]string{"service": y.Method.Service, "method": y.Method.Method} {
				if strings.ContainsAny(name, "/? ") {
					y.Method.At.At(field).Rejectf(name, "want the name of a gRPC service or method, without /")
				}
			}
			m.Rpc.Service = y.Method.Service
			m.Rpc.Method = y.Method.Method
		}
		matches = append(matches, m)
	}
	if len(matches) == 0 {
		matches = append(matches, &grpc_route.GrpcRouteMatch{Rpc: &grpc_route.GrpcRpcMatch{}})
	}
	return matches
}

// filter is a rule's or backend's filter as an API message. Exactly one field is set.
type filter struct {
	request  *http_route.RequestHeaderModifier
	response *http_route.ResponseHeaderModifier
	redirect *http_route.RequestRedirect
}

// Values for a filter's type, as in the Gateway API.
const (
	requestFilter  = "RequestHeaderModifier"
	responseFilter = "ResponseHeaderModifier"
	redirectFilter = "RequestRedirect"
)

// filters converts a rule's or backend's filters. A type that is not in allowed is a mistake in the file.
func filters(list []filterYAML, allowed ...string) []filter {
	// The result keeps the length of list even after a mistake, because it is not used then.
	filters := make([]filter, 0, len(list))
	for _, y := range list {
		var f filter
		fields := map[string]bool{requestFilter: y.Request != nil, responseFilter: y.Response != nil, redirectFilter: y.Redirect != nil}
		// The field for a type has the same name, but begins with a lower-case letter.
		field := strings.ToLower(y.Type[:min(1, len(y.Type))]) + y.Type[min(1, len(y.Type)):]
		// The order matters: the type must be allowed before its field is checked.
		switch {
		case !slices.Contains(allowed, y.Type):
			y.At.At("type").Rejectf(y.Type, "want one of %s", strings.Join(allowed, ", "))
		case !fields[y.Type]:
			y.At.At(field).Failf("missing: a filter with the type %s requires it", y.Type)
		case y.Type == requestFilter:
			f.request = &http_route.RequestHeaderModifier{
				Set: headers(y.Request.Set), Add: headers(y.Request.Add), Remove: y.Request.removed(),
			}
		case y.Type == responseFilter:
			f.response = &http_route.ResponseHeaderModifier{
				Set: headers(y.Response.Set), Add: headers(y.Response.Add), Remove: y.Response.removed(),
			}
		case y.Type == redirectFilter:
			f.redirect = y.Redirect.message()
		}
		filters = append(filters, f)
	}
	return filters
}

// headers converts the headers that a filter sets or adds. It returns nil if there are none.
func headers(list []headerYAML) *http_types.Headers {
	var headers http_types.Headers
	for _, y := range list {
		checkHeaderValue(y.At.At("value"), y.Value)
		headers.Headers = append(headers.Headers, &http_types.Headers_Header{
			Name: headerName(y.At.At("name"), y.Name), Value: []byte(y.Value),
		})
	}
	if len(headers.GetHeaders()) == 0 {
		return nil
	}
	return &headers
}

// checkHeaderValue adds a mistake at v if value is not a valid value of a header field.
func checkHeaderValue(v yamlfile.Value, value string) {
	if !httpguts.ValidHeaderFieldValue(value) {
		v.Rejectf(value, "want a header value without control characters")
	}
}

// removed returns the names of the headers to remove.
func (y *modifierYAML) removed() []string {
	names := make([]string, 0, len(y.Remove))
	for i, name := range y.Remove {
		names = append(names, headerName(y.At.At("remove").Item(i), name))
	}
	return names
}

// headerName returns a header's name in lower case. It adds a mistake at v if the name is invalid.
func headerName(v yamlfile.Value, name string) string {
	if !httpguts.ValidHeaderFieldName(name) {
		v.Rejectf(name, "want the name of a header, such as x-user")
	}
	return strings.ToLower(name)
}

// message converts a redirect. The status defaults to 302, as in the Gateway API; the decoder has set it already.
func (y *redirectYAML) message() *http_route.RequestRedirect {
	m := &http_route.RequestRedirect{Port: uint32(y.Port), Status: y.Status}
	if y.Scheme != "" {
		scheme := http_types.Scheme_HTTP
		if y.Scheme == "https" {
			scheme = http_types.Scheme_HTTPS
		}
		m.Scheme = &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: scheme}}
	}
	if y.Hostname != nil {
		check(y.At.At("hostname"), *y.Hostname, checkName(*y.Hostname))
		m.Host = *y.Hostname
	}
	// The Gateway API permits more codes than HTTP clients follow, so they are listed.
	if !slices.Contains([]uint32{301, 302, 303, 307, 308}, y.Status) {
		y.At.At("statusCode").Rejectf(y.Status, "want 301, 302, 303, 307 or 308")
	}
	if y.Path == nil {
		return m
	}
	field := "replaceFullPath"
	path := y.Path.Full
	if y.Path.Type == "ReplacePrefixMatch" {
		field = "replacePrefixMatch"
		path = y.Path.Prefix
		m.Path = &http_route.PathModifier{Replace: &http_route.PathModifier_Prefix{Prefix: path}}
	} else {
		m.Path = &http_route.PathModifier{Replace: &http_route.PathModifier_Full{Full: path}}
	}
	if !strings.HasPrefix(path, "/") {
		y.Path.At.At(field).Rejectf(path, "want a path that begins with /")
	}
	return m
}
