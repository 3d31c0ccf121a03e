package kube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// invalidBackend is the service that stands in for invalid backends. It responds with the status
// 500, and closes TLSRoutes' connections.
const invalidBackend = "invalid-backend"

// attachment says which host names a copy of a route is for: that of the Gateway's listener, and
// the one that the route serves there, which is the narrower of listener and one of the route's
// own host names.
type attachment struct {
	listener, host string
}

// routes translates GRPCRoutes, HTTPRoutes and TLSRoutes in this order, older routes before newer
// ones, and sets their status.
func (t *translation) routes() {
	routes := slices.Clone(t.Objects.routes)
	slices.SortFunc(routes, func(a, b Route) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), older(&a, &b)) })
	for i := range routes {
		t.route(&routes[i])
	}
}

func (t *translation) route(r *Route) {
	var parents []ParentStatus
	attached := make(map[attachment][]string)
	listeners := make(map[*listener]bool)
	for _, ref := range r.Spec.ParentRefs {
		kind, name := ref.Object(r.Namespace, gatewayGroup, "Gateway")
		if !kind.Equal(GroupKind{Kind: "Gateway"}) || !t.owned[name] {
			continue
		}
		conditions := []Condition{t.attach(r, ref, name, attached, listeners)}
		parents = append(parents, ParentStatus{ControllerName: t.settings.ControllerName, ParentRef: ref, Conditions: conditions})
	}
	isOurs := func(p ParentStatus) bool { return p.ControllerName == t.settings.ControllerName }
	ours := slices.ContainsFunc(r.Status.Parents, isOurs)
	if len(parents) == 0 && !ours {
		return
	}
	resolved, partial := t.rules(r, attached)
	for l := range listeners {
		if partial.Status != "False" {
			l.attached++
		}
	}
	for i := range parents {
		c := &parents[i].Conditions
		switch {
		case partial.Status == "":
		case partial.Status == "False" && (*c)[0].Status == "True":
			(*c)[0] = partial
		case partial.Status == "True":
			*c = append(*c, partial)
		}
		*c = append(*c, resolved)
	}
	t.statuses = append(t.statuses, Status{Kind: r.Kind, Object: nameOf(r), Parents: parents})
}

// attach finds the Gateway's listeners that accept r, adds them to listeners, and returns r's
// condition Accepted for this Gateway. A listener accepts r if it matches the name and port in ref,
// allows r's kind and namespace, and shares a host name with r. If the configuration includes the
// listener, attach also adds the name of its port ([portName]) to attached, under the [attachment]
// of each host name.
func (t *translation) attach(
	r *Route, ref ParentReference, gateway ObjectName, attached map[attachment][]string, listeners map[*listener]bool,
) Condition {
	accepted := isNot("Accepted", "NoMatchingParent", "the Gateway has no such listener")
	for _, l := range t.listeners {
		if l.gateway != gateway || or(ref.SectionName, l.spec.Name) != l.spec.Name || or(ref.Port, l.spec.Port) != l.spec.Port {
			continue
		}
		if !t.allows(l, r.Kind, r.Namespace) {
			if accepted.Reason == "NoMatchingParent" {
				accepted = isNot("Accepted", "NotAllowedByListeners", "no listener allows the kind and the namespace of the route")
			}
			continue
		}
		hosts := r.Spec.Hostnames
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		intersects := false
		for _, h := range hosts {
			host, ok := intersect(l.spec.Hostname, h)
			if !ok {
				continue
			}
			intersects = true
			key := attachment{l.spec.Hostname, host}
			name := portName(l.address)
			if l.serves && !slices.Contains(attached[key], name) {
				attached[key] = append(attached[key], name)
			}
		}
		if !intersects {
			if accepted.Status == "False" {
				accepted = isNot("Accepted", "NoMatchingListenerHostname", "no host name of the route matches the listeners")
			}
			continue
		}
		listeners[l] = true
		accepted = is("Accepted", "")
	}
	return accepted
}

// rules adds r's rules to the configuration, with a copy for each attachment in attached. Rules
// that [translation.rule] or package config rejects are left out. resolved is r's condition
// ResolvedRefs. partial says what was left out: PartiallyInvalid for some rules, a failed
// Accepted for all, and zero for none.
func (t *translation) rules(r *Route, attached map[attachment][]string) (resolved, partial Condition) {
	resolved = is("ResolvedRefs", "")
	var dropped []string
	for i := range r.Spec.Rules {
		source := ruleName{r.Kind, nameOf(r), i}
		route, err := t.rule(r, &r.Spec.Rules[i], &resolved)
		if text := t.unusable.rules[source]; text != "" {
			err = errors.New(text)
		}
		if err != nil {
			dropped = append(dropped, fmt.Sprintf("Dropped Rule %d: %v", i, err))
			continue
		}
		matches := r.Spec.Rules[i].Matches
		if len(matches) == 0 {
			matches = []RouteMatch{{}}
		}
		for j, m := range matches {
			var match object
			var rank rank
			switch r.Kind {
			case "HTTPRoute":
				match, rank = httpMatch(m)
			case "GRPCRoute":
				match, rank = grpcMatch(m)
			}
			if match != nil { // a TLSRoute matches only host names
				route["matches"] = []object{match}
			}
			rank.created = r.CreationTimestamp.Unix()
			rank.name = nameOf(r).String()
			rank.rule = i
			rank.match = j
			kind := strings.ToLower(strings.TrimSuffix(r.Kind, "Route"))
			route["name"] = fmt.Sprintf("%s.%s.%s.%d.%d", kind, r.Namespace, r.Name, i, j)
			t.add(source, rank, route, attached)
		}
	}
	switch text := strings.Join(dropped, "; "); {
	case len(dropped) == 0:
	case len(dropped) == len(r.Spec.Rules):
		partial = isNot("Accepted", unsupportedValue, text)
	default:
		partial = is("PartiallyInvalid", unsupportedValue)
		partial.Message = text
	}
	return resolved, partial
}

// add adds a copy of route to the configuration for each [attachment] in attached, which maps to
// the listeners that serve it. source is the rule that route comes from. A copy's precedence
// depends on r and on the attachment's host names.
func (t *translation) add(source ruleName, r rank, route object, attached map[attachment][]string) {
	list := "routes"
	if source.kind == "TLSRoute" {
		list = "tcpRoutes"
	}
	for key, ports := range attached {
		r.listener = rankHost(key.listener)
		r.host = rankHost(key.host)
		t.entries = append(t.entries, entry{rank: r, of: source, list: list, ports: ports, host: key.host, route: maps.Clone(route)})
	}
}

// rule translates a rule without its matches. If a reference is invalid, it sets *resolved to a
// failed condition ResolvedRefs. It returns an error if the rule uses something unsupported.
func (t *translation) rule(r *Route, rule *Rule, resolved *Condition) (object, error) {
	route := make(object)
	if rule.SessionPersistence != nil {
		return nil, errors.New("sessionPersistence is not supported")
	}
	for _, f := range rule.Filters {
		if err := t.filter(r, f, route, resolved); err != nil {
			return nil, err
		}
	}
	weights := make(map[string]int)
	var names []string
	for _, b := range rule.BackendRefs {
		if len(b.Filters) > 0 {
			return nil, errors.New("filters of backendRefs are not supported")
		}
		name, problem := t.backend(r, b)
		if problem != nil {
			*resolved = *problem
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		weights[name] += or(b.Weight, 1)
	}
	if route["requestRedirect"] == nil {
		route["backendRefs"] = t.split(names, weights)
	}
	if err := timeouts(rule, route); err != nil {
		return nil, err
	}
	if retry := rule.Retry; retry != nil {
		translated := object{"attempts": or(retry.Attempts, 1)}
		if len(retry.Codes) > 0 {
			translated["codes"] = retry.Codes
		}
		route["retry"] = translated
	}
	return route, nil
}

// split returns a route's backendRefs. If all weights are 0, every request gets the status 500.
func (t *translation) split(names []string, weights map[string]int) []object {
	refs := make([]object, 0, len(names))
	total := 0
	for _, name := range names {
		total += weights[name]
		refs = append(refs, object{"name": name, "weight": weights[name]})
	}
	if total == 0 {
		return []object{{"name": t.invalid()}}
	}
	return refs
}

// invalid adds the service that responds with 500 to the configuration, and returns its name.
func (t *translation) invalid() string {
	t.backends[invalidBackend] = object{"name": invalidBackend, "directResponse": object{"status": 500}}
	return invalidBackend
}

// backend returns the name of the configuration's service for b, a reference in r. If b is
// invalid, it returns [invalidBackend] and a failed condition ResolvedRefs.
func (t *translation) backend(r *Route, b BackendReference) (string, *Condition) {
	kind, name := b.Object(r.Namespace, "", "Service")
	invalid := func(reason, format string, args ...any) (string, *Condition) {
		return t.invalid(), new(isNot("ResolvedRefs", reason, fmt.Sprintf(format, args...)))
	}
	switch {
	case *kind.Group != "" || kind.Kind != "Service":
		return invalid("InvalidKind", "want a Service, not %s", kind.Kind)
	case !t.permits(r.Kind, r.Namespace, "Service", name):
		return invalid("RefNotPermitted", "no ReferenceGrant for Service %s", name)
	case b.Port == nil:
		return invalid("BackendNotFound", "Service %s: want a port", name)
	}
	service, ok := t.service(name, strconv.Itoa(*b.Port))
	if !ok {
		return invalid("BackendNotFound", "no Service %s with port %d", name, *b.Port)
	}
	return service, nil
}

// service adds a Service's port, given by number or name, to the configuration, and returns its
// name there. It returns false if the Service or port does not exist, or if the Service is an
// ExternalName.
func (t *translation) service(name ObjectName, port string) (string, bool) {
	s := t.Objects.services[name]
	if s == nil || s.Spec.Type == "ExternalName" {
		return "", false
	}
	index := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return port == strconv.Itoa(int(p.Port)) || port == p.Name })
	if index < 0 {
		return "", false
	}
	number := s.Spec.Ports[index].Port
	id := fmt.Sprintf("%s.%s.port-%d", name.Name, name.Namespace, number)
	source := object{"name": fmt.Sprintf("%s.%s:%d", name.Name, name.Namespace, number)}
	if k := t.settings.Kubeconfig; k != nil {
		source["kubeconfig"] = k.Path
	}
	t.backends[id] = object{"name": id, "kubernetes": source}
	return id, true
}

// timeouts copies the rule's timeouts to route. It returns an error if backendRequest is not a
// duration.
func timeouts(rule *Rule, route object) error {
	limits := make(object)
	if t := rule.Timeouts.Request; t != "" {
		limits["request"] = t
	}
	if t := rule.Timeouts.BackendRequest; t != "" {
		attempt, err := time.ParseDuration(t)
		if err != nil {
			return fmt.Errorf("timeouts.backendRequest: %w", err)
		}
		limits["backendRequest"] = t
		if rule.Timeouts.Request == "" { // the default request timeout must not cut the attempt short
			limits["request"] = max(attempt, time.Minute).String()
		}
	}
	if len(limits) > 0 {
		route["timeouts"] = limits
	}
	return nil
}

// filter adds one of a rule's filters to route. If it contains an invalid reference, filter sets
// *resolved to a failed condition ResolvedRefs. It returns an error if f is not supported.
func (t *translation) filter(r *Route, f Filter, route object, resolved *Condition) error {
	field := strings.ToLower(f.Type[:min(1, len(f.Type))]) + f.Type[min(1, len(f.Type)):]
	switch {
	case f.Type == "RequestHeaderModifier" && f.RequestHeaderModifier != nil:
		route[field] = toObject(f.RequestHeaderModifier)
	case f.Type == "ResponseHeaderModifier" && f.ResponseHeaderModifier != nil:
		route[field] = toObject(f.ResponseHeaderModifier)
	case f.Type == "RequestRedirect" && f.RequestRedirect != nil:
		redirect := toObject(f.RequestRedirect)
		if code := f.RequestRedirect.StatusCode; code != 0 {
			redirect["statusCode"] = strconv.Itoa(code)
		}
		modifyPath(f.RequestRedirect.Path, redirect)
		route[field] = redirect
	case f.Type == "URLRewrite" && f.URLRewrite != nil:
		rewrite := toObject(f.URLRewrite)
		modifyPath(f.URLRewrite.Path, rewrite)
		route["urlRewrite"] = rewrite
	case f.Type == "RequestMirror" && f.RequestMirror != nil:
		name, problem := t.backend(r, f.RequestMirror.BackendRef)
		if problem != nil {
			*resolved = *problem
			return nil
		}
		percent := float64(or(f.RequestMirror.Percent, 100))
		if p := f.RequestMirror.Fraction; p != nil {
			percent = 100 * float64(p.Numerator) / float64(max(1, or(p.Denominator, 100)))
		}
		if percent > 0 {
			mirrors, _ := route["requestMirrors"].([]object)
			route["requestMirrors"] = append(mirrors, object{"backendRef": object{"name": name}, "percent": percent})
		}
	case f.Type == "CORS" && f.CORS != nil:
		cors := toObject(f.CORS)
		if f.CORS.MaxAge != nil {
			cors["maxAge"] = fmt.Sprintf("%ds", *f.CORS.MaxAge)
		}
		if f.CORS.AllowCredentials && slices.Contains(f.CORS.AllowOrigins, "*") {
			cors["allowOrigins"] = []string{"http://*", "https://*"} // the configuration does not allow "*" with credentials
		}
		route["cors"] = cors
	default:
		return fmt.Errorf("the filter %s is not supported", f.Type)
	}
	return nil
}

// modifyPath replaces action's path, in a redirect or a rewrite, by the translation of p, or
// removes it if p is nil. The Gateway API allows paths without a leading "/", which modifyPath
// adds.
func modifyPath(p *PathModifier, action object) {
	delete(action, "path")
	switch {
	case p == nil:
	case p.ReplaceFullPath != nil:
		action["path"] = object{"replaceFullPath": encodedPath("/" + strings.TrimPrefix(*p.ReplaceFullPath, "/"))}
	case p.ReplacePrefixMatch != nil:
		action["path"] = object{"replacePrefixMatch": encodedPath("/" + strings.TrimPrefix(*p.ReplacePrefixMatch, "/"))}
	}
}

// encodedPath percent-encodes path, unless that has been done already.
func encodedPath(path string) string {
	if u, err := url.ParseRequestURI(path); err == nil && u.EscapedPath() == path {
		return path
	}
	return (&url.URL{Path: path}).EscapedPath()
}

// toObject returns v, a struct or a pointer to one, as JSON would encode it, without zero fields.
func toObject(v any) object {
	var o object
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		panic("kube: " + err.Error()) // v was decoded from JSON
	}
	maps.DeleteFunc(o, func(_ string, v any) bool { return v == nil || v == "" || v == 0.0 || v == any(false) })
	return o
}

// Ranks of path match types. Higher ones take precedence. The Gateway API leaves the rank of
// regular expressions open.
const (
	rankPrefix = iota
	rankRegex
	rankExact
)

// httpMatch translates an HTTPRoute's match, and returns the [rank] that decides the route's
// precedence. The caller fills in the rank's fields that do not depend on m.
func httpMatch(m RouteMatch) (object, rank) {
	path := encodedPath("/")
	kind := "PathPrefix"
	if m.Path != nil {
		path = or(m.Path.Value, "/")
		kind = cmp.Or(m.Path.Type, kind)
	}
	match := make(object)
	r := rank{path: len(path)}
	switch kind {
	case "Exact":
		match["path"], r.pathType = object{"exact": encodedPath(path)}, rankExact
	case "RegularExpression":
		match["path"], r.pathType = object{"regularExpression": path}, rankRegex
	default:
		match["path"] = object{"prefix": encodedPath(path)}
	}
	if m.Method.HTTP != "" {
		match["method"], r.method = m.Method.HTTP, 1
	}
	if len(m.Headers) > 0 {
		match["headers"] = valueMatches(m.Headers)
	}
	if len(m.QueryParams) > 0 {
		match["queryParams"] = valueMatches(m.QueryParams)
	}
	r.headers = len(m.Headers)
	r.query = len(m.QueryParams)
	return match, r
}

func valueMatches(list []ValueMatch) []object {
	matches := make([]object, 0, len(list))
	for _, v := range list {
		field := "exact"
		if v.Type == "RegularExpression" {
			field = "regularExpression"
		}
		matches = append(matches, object{"name": v.Name, field: or(v.Value, "")})
	}
	return matches
}

// grpcMatch translates a GRPCRoute's match, and returns the [rank] that decides the route's
// precedence. The caller fills in the rank's fields that do not depend on m.
func grpcMatch(m RouteMatch) (object, rank) {
	service := m.Method.Service
	method := m.Method.Method
	r := rank{grpc: true, path: len(service), method: len(method), headers: len(m.Headers)}
	names := make(object)
	match := object{"grpc": names}
	if m.Method.Type == "RegularExpression" {
		expression := "/(?:" + cmp.Or(service, "[^/]+") + ")/(?:" + cmp.Or(method, "[^/]+") + ")"
		match = object{"path": object{"regularExpression": expression}, "method": "POST"}
	}
	if service != "" {
		names["service"] = service
	}
	if method != "" {
		names["method"] = method
	}
	if len(m.Headers) > 0 {
		match["headers"] = valueMatches(m.Headers)
	}
	return match, r
}
