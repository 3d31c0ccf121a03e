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

// invalidBackend is the name of the service of the configuration that replaces a backend
// with an invalid reference. The service responds with the status 500.
const invalidBackend = "invalid-backend"

// attachment has the host names of one copy of a route in the configuration. The field listener
// is the host name of the listener of a Gateway. The field host is the host name that the route
// serves at this listener. This is the narrower of the field listener and a host name of the
// route.
type attachment struct {
	listener, host string
}

// routes translates the HTTPRoutes and GRPCRoutes and sets their status. It translates the
// GRPCRoutes first, and for each kind it begins with the oldest route.
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

// attach finds the listeners of the given Gateway that accept the route r, and returns the
// condition Accepted of r for this Gateway. A listener accepts r if it has the name and the port
// that ref may specify, allows r, and shares a host name with r. attach adds these listeners to
// the map listeners. If the gateway serves a listener, attach also adds its name in the
// configuration to the map attached, for each [attachment].
func (t *translation) attach(
	r *Route, ref ParentReference, gateway ObjectName, attached map[attachment][]string, listeners map[*listener]bool,
) Condition {
	problem := isNot("Accepted", "NoMatchingParent", "the Gateway has no such listener")
	for _, l := range t.listeners {
		if l.gateway != gateway || or(ref.SectionName, l.spec.Name) != l.spec.Name || or(ref.Port, l.spec.Port) != l.spec.Port {
			continue
		}
		if !t.allows(l, r.Kind, r.Namespace) {
			if problem.Reason == "NoMatchingParent" {
				problem = isNot("Accepted", "NotAllowedByListeners", "no listener allows the kind and the namespace of the route")
			}
			continue
		}
		hosts := r.Spec.Hostnames
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		found := false
		for _, h := range hosts {
			host, ok := intersect(l.spec.Hostname, h)
			if !ok {
				continue
			}
			found = true
			at, name := attachment{l.spec.Hostname, host}, portName(l.address)
			if l.serves && !slices.Contains(attached[at], name) {
				attached[at] = append(attached[at], name)
			}
		}
		if !found {
			if problem.Status == "False" {
				problem = isNot("Accepted", "NoMatchingListenerHostname", "no host name of the route matches the listeners")
			}
			continue
		}
		listeners[l] = true
		problem = is("Accepted", "")
	}
	return problem
}

// rules adds the rules of r to the routes of the configuration, with a copy for each attachment
// in the map attached. It leaves out a rule that [translation.rule] or package config rejects.
// The result resolved is the condition ResolvedRefs of r. The result partial is the condition for
// the rules that were left out: PartiallyInvalid for some rules, Accepted with the status False
// for all. It is zero if no rule was left out.
func (t *translation) rules(r *Route, attached map[attachment][]string) (resolved, partial Condition) {
	resolved = is("ResolvedRefs", "")
	var dropped []string
	for i := range r.Spec.Rules {
		of := ruleName{r.Kind, nameOf(r), i}
		route, err := t.rule(r, &r.Spec.Rules[i], &resolved)
		if text := t.unusable.rules[of]; text != "" {
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
			match, rank := httpMatch(m)
			kind := "http"
			if r.Kind == "GRPCRoute" {
				kind = "grpc"
				match, rank = grpcMatch(m)
			}
			rank.created, rank.name, rank.rule, rank.match = r.CreationTimestamp.Unix(), nameOf(r).String(), i, j
			route["name"] = fmt.Sprintf("%s.%s.%s.%d.%d", kind, r.Namespace, r.Name, i, j)
			route["matches"] = []object{match}
			t.add(of, rank, route, attached)
		}
	}
	switch text := strings.Join(dropped, "; "); {
	case len(dropped) == 0:
	case len(dropped) == len(r.Spec.Rules):
		partial = isNot("Accepted", "UnsupportedValue", text)
	default:
		partial = is("PartiallyInvalid", "UnsupportedValue")
		partial.Message = text
	}
	return resolved, partial
}

// add adds a copy of route to the configuration for each [attachment] in the map attached. The
// values of the map are the names of the listeners that serve the copy. The argument source is
// the rule from which the route comes. The precedence of a copy depends on the argument r and on
// the host names of the attachment.
func (t *translation) add(source ruleName, r rank, route object, attached map[attachment][]string) {
	for at, ports := range attached {
		r.listener, r.host = rankHost(at.listener), rankHost(at.host)
		t.entries = append(t.entries, entry{rank: r, of: source, ports: ports, host: at.host, route: maps.Clone(route)})
	}
}

// rule translates a rule of r to a route of the configuration, without the matches of the
// rule. If a reference of the rule is invalid, it sets *resolved to the condition
// ResolvedRefs with the status False. It returns an error if a part of the rule is not
// supported.
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
		to := object{"attempts": or(retry.Attempts, 1)}
		if len(retry.Codes) > 0 {
			to["codes"] = retry.Codes
		}
		route["retry"] = to
	}
	return route, nil
}

// split returns the field backendRefs of a route: the services with the given names and
// their weights. If all weights are 0, all requests get the status 500.
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

// invalid adds the service that responds with the status 500 to the configuration, and
// returns its name.
func (t *translation) invalid() string {
	t.backends[invalidBackend] = object{"name": invalidBackend, "directResponse": object{"status": 500}}
	return invalidBackend
}

// backend returns the name of the service of the configuration to which b, a reference of
// the route r, refers. If b is not valid, it returns [invalidBackend], and the condition
// ResolvedRefs with the status False.
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

// service adds a Service to the configuration, and returns its name there. port is the
// number or the name of a port of the Service. It returns false if the Service or the port
// does not exist, or if the Service is of the type ExternalName.
func (t *translation) service(name ObjectName, port string) (string, bool) {
	s := t.Objects.services[name]
	if s == nil || s.Spec.Type == "ExternalName" {
		return "", false
	}
	at := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return port == strconv.Itoa(int(p.Port)) || port == p.Name })
	if at < 0 {
		return "", false
	}
	number := s.Spec.Ports[at].Port
	id := fmt.Sprintf("%s.%s.port-%d", name.Name, name.Namespace, number)
	source := object{"name": fmt.Sprintf("%s.%s:%d", name.Name, name.Namespace, number)}
	if k := t.settings.Kubeconfig; k != nil {
		source["kubeconfig"] = k.Path
	}
	t.backends[id] = object{"name": id, "kubernetes": source}
	return id, true
}

// timeouts sets the field timeouts of route to the timeouts of rule. It returns an error if
// the timeout of a backend request is not a duration.
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
		if rule.Timeouts.Request == "" { // the default must not be shorter
			limits["request"] = max(attempt, time.Minute).String()
		}
	}
	if len(limits) > 0 {
		route["timeouts"] = limits
	}
	return nil
}

// filter adds the filter f, which belongs to a rule of r, to the argument route. If f has
// an invalid reference, it sets *resolved to the condition ResolvedRefs with the status
// False. It returns an error if f is not supported.
func (t *translation) filter(r *Route, f Filter, route object, resolved *Condition) error {
	field := strings.ToLower(f.Type[:min(1, len(f.Type))]) + f.Type[min(1, len(f.Type)):]
	switch {
	case f.Type == "RequestHeaderModifier" && f.RequestHeaderModifier != nil:
		route[field] = toObject(f.RequestHeaderModifier)
	case f.Type == "ResponseHeaderModifier" && f.ResponseHeaderModifier != nil:
		route[field] = toObject(f.ResponseHeaderModifier)
	case f.Type == "RequestRedirect" && f.RequestRedirect != nil:
		to := toObject(f.RequestRedirect)
		if code := f.RequestRedirect.StatusCode; code != 0 {
			to["statusCode"] = strconv.Itoa(code)
		}
		modifyPath(f.RequestRedirect.Path, to)
		route[field] = to
	case f.Type == "URLRewrite" && f.URLRewrite != nil:
		to := toObject(f.URLRewrite)
		modifyPath(f.URLRewrite.Path, to)
		route["urlRewrite"] = to
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
		to := toObject(f.CORS)
		if f.CORS.MaxAge != nil {
			to["maxAge"] = fmt.Sprintf("%ds", *f.CORS.MaxAge)
		}
		if f.CORS.AllowCredentials && slices.Contains(f.CORS.AllowOrigins, "*") {
			to["allowOrigins"] = []string{"http://*", "https://*"} // the file has no "*" with credentials
		}
		route["cors"] = to
	default:
		return fmt.Errorf("the filter %s is not supported", f.Type)
	}
	return nil
}

// modifyPath replaces the field path of action, which is a redirect or a rewrite, by the
// translation of p. If p is nil, it removes the field. It adds a "/" at the start of a path
// if necessary, because the Gateway API allows paths without it.
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

// encodedPath returns path with percent-encoding. A path that is already encoded does not
// change.
func encodedPath(path string) string {
	if u, err := url.ParseRequestURI(path); err == nil && u.EscapedPath() == path {
		return path
	}
	return (&url.URL{Path: path}).EscapedPath()
}

// toObject returns the fields of v as JSON encodes them, without those that are null, "", 0
// or false. v must be a struct or a pointer to one.
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

// The ranks of the types of path matches. A higher rank takes precedence. The Gateway API
// does not specify the rank of regular expressions.
const (
	rankPrefix = iota
	rankRegex
	rankExact
)

// httpMatch translates m, a match of an HTTPRoute, to a match in the configuration. It also
// returns a [rank], which determines the precedence of the route. The caller sets the fields of
// the rank that do not depend on m.
func httpMatch(m RouteMatch) (object, rank) {
	path := encodedPath("/")
	kind := "PathPrefix"
	if m.Path != nil {
		path, kind = or(m.Path.Value, "/"), cmp.Or(m.Path.Type, kind)
	}
	match, r := make(object), rank{path: len(path)}
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
	r.headers, r.query = len(m.Headers), len(m.QueryParams)
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

// grpcMatch translates m, a match of a GRPCRoute, to a match in the configuration. It also
// returns a [rank], which determines the precedence of the route. The caller sets the fields of
// the rank that do not depend on m.
func grpcMatch(m RouteMatch) (object, rank) {
	service, method := m.Method.Service, m.Method.Method
	r := rank{grpc: true, path: len(service), method: len(method), headers: len(m.Headers)}
	to := make(object)
	match := object{"grpc": to}
	if m.Method.Type == "RegularExpression" {
		expression := "/(?:" + cmp.Or(service, "[^/]+") + ")/(?:" + cmp.Or(method, "[^/]+") + ")"
		match = object{"path": object{"regularExpression": expression}, "method": "POST"}
	}
	if service != "" {
		to["service"] = service
	}
	if method != "" {
		to["method"] = method
	}
	if len(m.Headers) > 0 {
		match["headers"] = valueMatches(m.Headers)
	}
	return match, r
}
