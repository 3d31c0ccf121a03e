package config

import (
	"regexp"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// ListenerHeader is the name of a header that exists only in the conditions of routes. Its
// value is the name of the listener that received the request. The gateway does not add
// the header to the request itself. A header of this name from a client has no effect on
// routes.
const ListenerHeader = "Gateway-Listener"

// Authority returns the authority by which a profile refers to the service with the name v.
// It is the name with the port 80.
func (v Name) Authority() string { return string(v) + ":80" }

// Profile returns the part of the configuration for package profiles: the routes and the
// retry budget.
func (c *Config) Profile() *profiles.Profile {
	p := &profiles.Profile{RetryBudget: &profiles.RetryBudget{
		Ratio:        c.RetryBudget.Percent / 100,
		MinPerSecond: uint32(c.RetryBudget.MinRetryRate),
		TTL:          c.RetryBudget.Interval.D(),
	}}
	for _, r := range c.Routes {
		route := r.profile()
		route.Labels = map[string]string{VersionLabel: r.version}
		p.Routes = append(p.Routes, route)
	}
	return p
}

// VersionLabel is the name of a label that each route of the profile has. The value of the
// label is [Route.Version].
const VersionLabel = "version"

// problems returns the mistakes that package profiles finds in the route. A router would
// ignore the invalid parts of the route. The result is nil for a valid route.
func (r *Route) problems() (texts []string) {
	route := r.profile()
	route.Name = "" // the mistake has the place of the route
	err := (&profiles.Profile{Routes: []profiles.Route{route}}).Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			texts = append(texts, strings.TrimPrefix(e.Error(), "route 0: "))
		}
	}
	return texts
}

// profile converts r to a route of package profiles. The result omits the settings that
// package profiles does not have, such as CORS.
func (r *Route) profile() profiles.Route {
	p := profiles.Route{
		Name: string(r.Name), Match: r.match(),
		Timeout: r.Timeouts.Request.D(), AttemptTimeout: r.Timeouts.BackendRequest.D(),
		Retryable: r.Retry.Attempts > 0, RetryNonIdempotent: r.Retry.NonIdempotent, MaxRetries: r.Retry.Attempts,
		Classes: r.classes(), Limit: r.MaxRequests,
		RequestHeader: r.RequestHeaderModifier.mutation(), ResponseHeader: r.ResponseHeaderModifier.mutation(),
	}
	if r.Hedge != nil {
		p.Hedge = r.Hedge.Delay.D()
	}
	if l := r.RateLimit; l != nil && l.Per == "Route" {
		p.Rate = profiles.Rate{PerSecond: l.RequestsPerSecond, Burst: l.Bucket()}
	}
	for _, m := range r.RequestMirrors {
		size := int64(m.MaxBodyBytes)
		if size == 0 {
			size = -1
		}
		p.Mirrors = append(p.Mirrors, profiles.Mirror{
			Authority: m.BackendRef.Name.Authority(), Fraction: m.Percent / 100, MaxBodyBytes: size,
		})
	}
	for _, f := range r.Faults {
		fault := profiles.Fault{Fraction: f.Percentage / 100, Delay: f.FixedDelay.D(), TTL: f.TTL.D()}
		if f.Abort != nil {
			fault.Status, fault.GRPC = f.Abort.HTTPStatus, uint32(f.Abort.GRPCStatus)
		}
		p.Faults = append(p.Faults, fault)
	}
	if to := r.redirect(); to != nil && *to != (profiles.Redirect{Status: to.Status}) {
		p.Redirect = to
	}
	return p
}

func (r *Route) redirect() *profiles.Redirect {
	to := r.RequestRedirect
	if to == nil {
		return nil
	}
	redirect := &profiles.Redirect{Status: to.Status(), Scheme: to.Scheme, Host: string(to.Hostname), Port: uint16(to.Port)}
	if to.Path != nil && to.Path.ReplacePrefixMatch != nil {
		redirect.OldPrefix, redirect.NewPrefix = r.Prefix(), string(*to.Path.ReplacePrefixMatch)
	} else if to.Path != nil {
		redirect.Path = string(to.Path.ReplaceFullPath)
	}
	return redirect
}

// classes returns the response classes of the route. If retry.codes has the status of a
// response, the response is a failure. All other responses are successes. If retry.codes is
// empty, classes returns nil, and the default of package profiles applies.
func (r *Route) classes() []profiles.ResponseClass {
	if len(r.Retry.Codes) == 0 {
		return nil
	}
	var classes []profiles.ResponseClass
	for _, code := range r.Retry.Codes {
		classes = append(classes, profiles.ResponseClass{Match: profiles.Status{Min: int(code), Max: int(code)}, Failure: true})
	}
	return append(classes, profiles.ResponseClass{Match: profiles.Status{Min: 100, Max: 999}})
}

// mutation converts m to the header changes of package layer.
func (m *HeaderModifier) mutation() (c layer.HeaderMutation) {
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

// match returns the condition that a request must meet to use the route. It combines the
// fields listeners, hostnames and matches.
func (r *Route) match() profiles.Match {
	var all profiles.All
	all = appendAny(all, r.Listeners, func(name Name) profiles.Match {
		return profiles.Header{Name: ListenerHeader, Value: profiles.Exact(name)}
	})
	all = appendAny(all, r.Hostnames, func(name Hostname) profiles.Match { return profiles.Host{Value: name.match()} })
	return appendAny(all, r.Matches, func(m Match) profiles.Match { return m.match(r.CORS != nil) })
}

// appendAny appends one condition to the list in the argument all, and returns the new list. This
// condition holds if match(v) holds for at least one item v of list. If list is empty, appendAny
// appends nothing.
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

func (v Hostname) match() profiles.StringMatch {
	if below, wild := strings.CutPrefix(string(v), "*"); wild {
		return profiles.Regex(".+" + regexp.QuoteMeta(below))
	}
	return profiles.Exact(v)
}

// match returns m as a condition of package profiles. If cors is true, the condition also
// holds for the preflight request that a browser sends before a request that matches m.
func (m *Match) match(cors bool) profiles.Match {
	var all profiles.All
	switch p := m.Path; {
	case p == nil:
	case p.Exact != "":
		all = append(all, profiles.Path(regexp.QuoteMeta(string(p.Exact))))
	case p.Prefix != "":
		all = append(all, profiles.PathPrefix(p.Prefix))
	case p.Pattern != "":
		all = append(all, profiles.Path(p.Pattern.Regexp()))
	default:
		all = append(all, profiles.Path("^(?:"+string(p.RegularExpression)+")$"))
	}
	if m.GRPC != nil {
		all = append(all, profiles.Method("POST"), profiles.GRPC{Service: m.GRPC.Service, Method: m.GRPC.Method})
	}
	var others profiles.All // conditions that a preflight request does not meet
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
	case !cors:
		return append(all, others...)
	}
	preflight := profiles.All{profiles.Method("OPTIONS")}
	if m.Method != "" {
		preflight = append(preflight, profiles.Header{Name: "Access-Control-Request-Method", Value: profiles.Exact(m.Method)})
	} else {
		preflight = append(preflight, profiles.Header{Name: "Access-Control-Request-Method", Value: profiles.AnyValue{}})
	}
	return append(all, profiles.Any{others, preflight})
}

// match returns v as a condition of package profiles on one header field or query parameter. The
// argument with is a function that makes this condition from a condition on the value alone.
func (v *ValueMatch) match(with func(profiles.StringMatch) profiles.Match) profiles.Match {
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
