package config

import (
	"errors"
	"regexp"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// ListenerHeader is a header that only route conditions see. Its value is the name of the
// listener that received the request, so that a condition can select listeners. The gateway never
// adds it to a request, and ignores it if a client sends it.
const ListenerHeader = "Gateway-Listener"

// Profile returns what package profiles needs to know: the routes and the retry budget.
func (c *Config) Profile() *profiles.Profile {
	p := &profiles.Profile{RetryBudget: &profiles.RetryBudget{
		Ratio:        c.RetryBudget.Percent / 100,
		MinPerSecond: uint32(c.RetryBudget.MinRetryRate),
		TTL:          c.RetryBudget.Interval.D(),
	}, Routes: make([]profiles.Route, 0, len(c.Routes))}
	for i := range c.Routes {
		p.Routes = append(p.Routes, c.Routes[i].Profile())
	}
	return p
}

// tapLabels returns the labels for tap. A route with several services has no label "service", because tap
// has it for each attempt.
func (r *Route) tapLabels() map[string]string {
	labels := map[string]string{"route": string(r.Name)}
	if len(r.BackendRefs) == 1 {
		labels["service"] = string(r.BackendRefs[0].Name)
	}
	return labels
}

// checkProfile reports the mistakes that package profiles finds in the route, as mistakes in n, the
// route's node in the file. Without this check, a router would ignore the invalid parts of the route.
func (r *Route) checkProfile(n node) {
	route := r.Profile()
	route.RequestHeader = r.RequestHeaderModifier.mutation
	route.ResponseHeader = r.ResponseHeaderModifier.mutation
	err := route.Validate()
	if err == nil {
		return
	}
	names := map[string]string{ // maps the fields of a profiles.Route to those of a Route in the file
		"Match": "matches", "Rewrite": "urlRewrite", "Redirect": "requestRedirect",
		"RequestHeader": "requestHeaderModifier", "ResponseHeader": "responseHeaderModifier",
	}
	mistakes, _ := errors.AsType[profiles.FieldErrors](err)
	for _, mistake := range mistakes {
		if name := names[mistake.Field]; name != "" {
			n.at(name).failf("%v", mistake.Err)
		} else {
			n.failf("%v", mistake)
		}
	}
}

// Profile converts r for package profiles. Settings that package profiles does not know, such as CORS,
// and header modifiers, whose values may contain variables, are left out; routeService applies them. The
// results of several calls share what they point to.
func (r *Route) Profile() profiles.Route {
	p := profiles.Route{
		Name: string(r.Name), Match: r.condition, Labels: r.labels,
		Timeout: r.Timeouts.Request.D(), TimeoutAfterBody: true, AttemptTimeout: r.Timeouts.BackendRequest.D(),
		Classes: r.Retry.classes, Limit: r.MaxRequests,
	}
	if r.Retry.Attempts > 0 {
		p.Retry = &profiles.Retry{Max: r.Retry.Attempts, NonIdempotent: r.Retry.NonIdempotent}
	}
	if r.Hedge != nil {
		p.Hedge = r.Hedge.Delay.D()
	}
	if l := r.RateLimit; l != nil && l.Per == "Route" {
		p.Rate = profiles.Rate{PerSecond: l.RequestsPerSecond, Burst: l.Bucket()}
	}
	for _, m := range r.RequestMirrors {
		size := int64(m.MaxBodyBytes)
		// 0 in the file means no limit, which package profiles writes as -1.
		if size == 0 {
			size = -1
		}
		p.Mirrors = append(p.Mirrors, profiles.Mirror{
			Authority: string(m.BackendRef.Name), Fraction: m.Percent / 100, MaxBodyBytes: size,
		})
	}
	for _, f := range r.Faults {
		fault := profiles.Fault{Fraction: f.Percentage / 100, Delay: f.FixedDelay.D(), TTL: f.TTL.D()}
		if f.Abort != nil {
			fault.Status = f.Abort.HTTPStatus
			fault.GRPC = uint32(f.Abort.GRPCStatus)
		}
		p.Faults = append(p.Faults, fault)
	}
	if u := r.URLRewrite; u != nil {
		p.Rewrite = &profiles.Rewrite{Host: string(u.Hostname)}
		p.Rewrite.Path, p.Rewrite.OldPrefix, p.Rewrite.NewPrefix = r.paths(u.Path)
	}
	// A redirect that only has a status leads to the same URL. Package profiles rejects it, and redirectHere applies
	// it.
	if redirect := r.redirect(); redirect != nil && *redirect != (profiles.Redirect{Status: redirect.Status}) {
		p.Redirect = redirect
	}
	return p
}

// redirect converts r's redirect, or returns nil.
func (r *Route) redirect() *profiles.Redirect {
	filter := r.RequestRedirect
	if filter == nil {
		return nil
	}
	redirect := &profiles.Redirect{Status: filter.Status(), Scheme: filter.Scheme, Host: string(filter.Hostname), Port: uint16(filter.Port)}
	redirect.Path, redirect.OldPrefix, redirect.NewPrefix = r.paths(filter.Path)
	return redirect
}

// paths returns either the full path or the prefixes that p replaces.
func (r *Route) paths(p *PathModifier) (full, oldPrefix, newPrefix string) {
	// The order matters: an empty prefix is a valid replacement, so it is a pointer.
	switch {
	case p == nil:
		return "", "", ""
	case p.ReplacePrefixMatch != nil:
		return "", r.Prefix(), string(*p.ReplacePrefixMatch)
	}
	return string(p.ReplaceFullPath), "", ""
}

// classesOf returns the response classes for retry.codes: these statuses are failures, and everything else
// is a success. If codes is empty, it returns nil for the defaults of package profiles.
func classesOf(codes []Status) []profiles.ResponseClass {
	if len(codes) == 0 {
		return nil
	}
	classes := make([]profiles.ResponseClass, 0, len(codes)+1)
	for _, code := range codes {
		classes = append(classes, profiles.ResponseClass{Match: profiles.Status{Min: int(code), Max: int(code)}, Failure: true})
	}
	// The last class catches all other statuses. The first class that matches wins.
	return append(classes, profiles.ResponseClass{Match: profiles.Status{Min: 100, Max: 999}})
}

// convert converts m for package layer.
func (m *HeaderModifier) convert() (c layer.HeaderMutation) {
	for _, h := range m.Add {
		c.Add = append(c.Add, layer.HeaderField{Name: string(h.Name), Value: string(h.Value)})
	}
	for _, h := range m.Set {
		c.Set = append(c.Set, layer.HeaderField{Name: string(h.Name), Value: string(h.Value)})
	}
	for _, name := range m.Remove {
		c.Remove = append(c.Remove, string(name))
	}
	return c
}

// match returns the condition for the whole route, combining listeners, hostnames and matches.
func (r *Route) match() profiles.Match {
	var all profiles.All
	// Each of the three lists is a condition of its own, of which any element may match.
	all = appendAny(all, r.Listeners, func(name Name) profiles.Match {
		return profiles.Header{Name: ListenerHeader, Value: profiles.Exact(name)}
	})
	all = appendAny(all, r.Hostnames, func(name Hostname) profiles.Match { return profiles.Host{Value: name.match()} })
	return appendAny(all, r.Matches, func(m Match) profiles.Match { return m.match(r.CORS != nil) })
}

// appendAny appends to all the condition that match(v) holds for some v in list. An empty list
// adds no condition.
func appendAny[T any](all profiles.All, list []T, match func(T) profiles.Match) profiles.All {
	if len(list) == 0 {
		return all
	}
	conditions := make(profiles.Any, 0, len(list))
	for _, v := range list {
		conditions = append(conditions, match(v))
	}
	return append(all, conditions)
}

// match returns the condition for a host name. A wildcard stands for at least one character.
func (v Hostname) match() profiles.StringMatch {
	if suffix, wild := strings.CutPrefix(string(v), "*"); wild {
		return profiles.Regex(".+" + regexp.QuoteMeta(suffix))
	}
	return profiles.Exact(v)
}

// match converts m for package profiles. If cors is true, the condition also covers the preflight
// request that a browser sends before a request that matches m.
func (m *Match) match(cors bool) profiles.Match {
	var all profiles.All
	// Exactly one field of the path is set.
	switch p := m.Path; {
	case p == nil:
	case p.Exact != "":
		all = append(all, profiles.Path(regexp.QuoteMeta(string(p.Exact))))
	case p.Prefix != "":
		all = append(all, profiles.PathPrefix(p.Prefix))
	case p.Pattern != "":
		all = append(all, profiles.Path(p.Pattern.Regexp()))
	default:
		// The expression must match the whole path, as the other forms do.
		all = append(all, profiles.Path("^(?:"+string(p.RegularExpression)+")$"))
	}
	if m.GRPC != nil {
		all = append(all, profiles.Method("POST"), profiles.GRPC{Service: m.GRPC.Service, Method: m.GRPC.Method})
	}
	all = appendAny(all, m.ClientCIDRs, func(p Prefix) profiles.Match { return profiles.SourceIP{Prefix: p.Prefix} })
	var others profiles.All // conditions that a preflight request cannot meet
	for _, h := range m.Headers {
		others = append(others, h.match(func(v profiles.StringMatch) profiles.Match { return profiles.Header{Name: h.Name, Value: v} }))
	}
	if m.Method != "" {
		others = append(others, profiles.Method(m.Method))
	}
	for _, q := range m.QueryParams {
		all = append(all, q.match(func(v profiles.StringMatch) profiles.Match { return profiles.Query{Name: q.Name, Value: v} }))
	}
	switch {
	case len(others) == 0:
		return all
	// Without CORS, preflight requests are like any others.
	case !cors:
		return append(all, others...)
	}
	// A preflight request has neither the method nor the header fields of the request that follows it.
	preflight := profiles.All{profiles.Method("OPTIONS")}
	if m.Method != "" {
		preflight = append(preflight, profiles.Header{Name: "Access-Control-Request-Method", Value: profiles.Exact(m.Method)})
	} else {
		preflight = append(preflight, profiles.Header{Name: "Access-Control-Request-Method", Value: profiles.AnyValue{}})
	}
	return append(all, profiles.Any{others, preflight})
}

// match converts v for package profiles. with turns a condition on the value alone into one on a
// certain header field or query parameter.
func (v *ValueMatch) match(with func(profiles.StringMatch) profiles.Match) profiles.Match {
	// Exactly one field is set. Present is a pointer, because false is a condition too.
	switch {
	case v.Exact != nil:
		return with(profiles.Exact(*v.Exact))
	case v.Prefix != "":
		return with(profiles.Prefix(v.Prefix))
	case v.RegularExpression != "":
		return with(profiles.Regex(v.RegularExpression))
	case *v.Present:
		return with(profiles.AnyValue{})
	}
	return profiles.Not{Match: with(profiles.AnyValue{})}
}
