package controller

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The default retry budget of linkerd's control plane. A budget in the file has these values for
// the fields that it lacks.
const (
	defaultRatio        = 0.2
	defaultMinPerSecond = 10
	defaultTTL          = 10 * time.Second
)

// profile converts the profile of a destination. It returns nil if y is nil, because the
// destination then has no profile.
func (r *reader) profile(y *profileYAML) *Profile {
	if y == nil {
		return nil
	}
	p := &Profile{
		Name:   y.Name.value,
		Opaque: r.boolean("opaque", y.Opaque, false),
		Budget: r.budget(y.Budget),
	}
	if y.Name.given() {
		r.check(y.Name.line, checkProfileName(p.Name))
	}
	if y.Endpoint != nil {
		ep := r.endpoint(*y.Endpoint)
		p.Endpoint = &ep
	}
	for _, route := range y.Routes {
		p.Routes = append(p.Routes, r.route(route))
	}
	for _, split := range y.Splits {
		p.Splits = append(p.Splits, r.split(split))
	}
	return p
}

// route converts one route of a profile. An error about a missing field reports the line on
// which the route begins.
func (r *reader) route(y routeYAML) Route {
	route := Route{
		Name:      y.Name.value,
		Labels:    r.labels(y.Labels),
		Retryable: r.boolean("retryable", y.Retryable, false),

		RetryNonIdempotent: r.boolean("retry_non_idempotent", y.RetryAll, false),
	}
	r.check(y.RetryAll.line, checkRetries(route))
	if route.Name == "" {
		r.missing(max(y.Name.line, y.At.n), errNoName.Error())
	}
	for key := range y.Labels {
		if key.value == routeLabel {
			r.check(key.line, errRouteLabel)
		}
	}
	if y.Match == nil {
		r.missing(y.At.n, prefixed(errNoMatch, route.Name).Error())
	} else {
		route.Match = r.match(*y.Match)
	}
	if y.Timeout.given() {
		if route.Timeout = r.duration("timeout", y.Timeout); route.Timeout <= 0 {
			r.failf(y.Timeout.line, "timeout %v: want more than 0, or leave it out", route.Timeout)
		}
	}
	for _, class := range y.Classes {
		route.Classes = append(route.Classes, r.class(class))
	}
	return route
}

// match converts the condition of a route, with the conditions nested in it.
func (r *reader) match(y matchYAML) Match {
	m := Match{Method: y.Method.value, Path: y.Path.value}
	r.check(y.Method.line, checkMethod(m.Method))
	r.check(y.Path.line, checkPath(m.Path))
	for _, inner := range y.All {
		m.All = append(m.All, r.match(inner))
	}
	for _, inner := range y.Any {
		m.Any = append(m.Any, r.match(inner))
	}
	if y.Not != nil {
		inner := r.match(*y.Not)
		m.Not = &inner
	}
	if m.empty() {
		r.missing(y.At.n, errNoMatch.Error())
	}
	return m
}

// class converts one response class. The status in y is a number, such as 404, or a range,
// such as 500-599.
func (r *reader) class(y classYAML) ResponseClass {
	if !y.Status.given() {
		r.missing(y.At.n, "the response class has no status")
		return ResponseClass{}
	}
	lowest, highest, isRange := strings.Cut(y.Status.value, "-")
	if !isRange {
		highest = lowest
	}
	c := ResponseClass{Failure: r.boolean("is_failure", y.Failure, false)}
	from, err1 := strconv.ParseUint(strings.TrimSpace(lowest), 10, 32)
	to, err2 := strconv.ParseUint(strings.TrimSpace(highest), 10, 32)
	if err1 != nil || err2 != nil {
		r.failf(y.Status.line, "status %q is neither a number nor a range such as 500-599", y.Status.value)
		return c
	}
	c.Min, c.Max = uint32(from), uint32(to)
	r.check(y.Status.line, checkStatus(c.Min, c.Max))
	return c
}

// split converts one split of a profile. A missing weight is an error, because a share of
// the traffic has no sensible default.
func (r *reader) split(y splitYAML) Split {
	s := Split{Authority: y.Authority.value}
	if !y.Authority.given() {
		r.missing(y.At.n, "the split has no authority")
	} else {
		r.check(y.Authority.line, checkSplit(s))
	}
	if !y.Weight.given() {
		r.missing(y.At.n, "the split has no weight")
	} else {
		s.Weight = r.number("weight", y.Weight)
	}
	return s
}

// budget converts the retry budget of a profile. A missing field gets the default of
// linkerd's control plane. It returns nil if y is nil, which means no retries.
func (r *reader) budget(y *budgetYAML) *RetryBudget {
	if y == nil {
		return nil
	}
	b := &RetryBudget{Ratio: defaultRatio, MinPerSecond: defaultMinPerSecond, TTL: defaultTTL}
	if y.Ratio.given() {
		ratio, err := strconv.ParseFloat(y.Ratio.value, 64)
		if err != nil {
			r.failf(y.Ratio.line, "ratio %q is not a number", y.Ratio.value)
		} else {
			b.Ratio = ratio
			r.check(y.Ratio.line, checkRatio(ratio))
		}
	}
	if y.MinPerSecond.given() {
		b.MinPerSecond = r.number("min_per_second", y.MinPerSecond)
		r.check(y.MinPerSecond.line, checkMinPerSecond(b.MinPerSecond))
	}
	if y.TTL.given() {
		b.TTL = r.duration("ttl", y.TTL)
		r.check(y.TTL.line, checkTTL(b.TTL))
	}
	return b
}

// prefixed returns err with the quoted name in front of its message, or nil if err is nil.
func prefixed(err error, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", name, err)
}
