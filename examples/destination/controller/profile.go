package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"google.golang.org/protobuf/types/known/durationpb"
)

// routeLabel is the metric label that contains the name of a route.
const routeLabel = "route"

// compileProfile checks the profile of d and returns it as a message of the API. If the profile has
// no name, the name in the message is the host of t. For an IP address or an absent destination, it
// is empty. If d has no profile, the message has only this name. Clients then balance requests over
// the endpoints, as with linkerd's controller.
func compileProfile(t target, d Destination) (*pb.DestinationProfile, []error) {
	msg := &pb.DestinationProfile{}
	if !t.ip && !d.Absent {
		msg.FullyQualifiedName = t.host
	}
	p := d.Profile
	if p == nil {
		return msg, nil
	}
	var errs []error
	if p.Name != "" {
		errs = append(errs, checkProfileName(p.Name))
		msg.FullyQualifiedName = p.Name
	}
	msg.OpaqueProtocol = p.Opaque
	if p.Endpoint != nil {
		ep := *p.Endpoint
		ep.Addr = unmap(ep.Addr)
		errs = append(errs, within("endpoint", checkEndpoint(ep)...)...)
		msg.Endpoint = endpointMessage(ep)
	}
	for i, r := range p.Routes {
		errs = append(errs, within(fmt.Sprintf("route %d (%q)", i+1, r.Name), checkRoute(r)...)...)
		msg.Routes = append(msg.Routes, routeMessages(r)...)
	}
	for _, s := range p.Splits {
		errs = append(errs, checkSplit(s))
		msg.DstOverrides = append(msg.DstOverrides, &pb.WeightedDst{Authority: s.Authority, Weight: s.Weight})
	}
	if b := p.Budget; b != nil {
		errs = append(errs, checkRatio(b.Ratio), checkMinPerSecond(b.MinPerSecond), checkTTL(b.TTL))
		msg.RetryBudget = &pb.RetryBudget{
			RetryRatio:          float32(b.Ratio),
			MinRetriesPerSecond: b.MinPerSecond,
			Ttl:                 durationpb.New(b.TTL),
		}
	}
	return msg, errs
}

// checkProfileName returns an error unless name is a DNS name.
func checkProfileName(name string) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return nil
}

// checkRoute returns one error for each invalid field of r. The result may also have nil
// elements.
func checkRoute(r Route) []error {
	errs := append(checkMatch(r.Match), checkLabels(r.Labels), checkTimeout(r.Timeout), checkRetries(r))
	if r.Name == "" {
		errs = append(errs, errNoName)
	}
	if _, twice := r.Labels[routeLabel]; twice {
		errs = append(errs, errRouteLabel)
	}
	for _, c := range r.Classes {
		errs = append(errs, checkStatus(c.Min, c.Max))
	}
	return errs
}

var (
	errNoName     = errors.New("the route must have a name")
	errRouteLabel = errors.New(`the label "route" is reserved for the route's name`)
	errNoMatch    = errors.New("the match must have method, path, all, any or not (path /.* matches everything)")
)

// checkRetries returns an error for a route with RetryNonIdempotent but not Retryable.
func checkRetries(r Route) error {
	if r.RetryNonIdempotent && !r.Retryable {
		return errors.New("retry_non_idempotent requires retryable: true")
	}
	return nil
}

// empty reports whether no field of m is set. Such a match is invalid, because clients
// would drop a route with it.
func (m Match) empty() bool {
	return m.Method == "" && m.Path == "" && len(m.All) == 0 && len(m.Any) == 0 && m.Not == nil
}

// checkMatch returns one error for each invalid field of m and of the conditions nested in
// m. The result may also have nil elements.
func checkMatch(m Match) []error {
	errs := []error{checkMethod(m.Method), checkPath(m.Path)}
	if m.empty() {
		errs = append(errs, errNoMatch)
	}
	for _, inner := range slices.Concat(m.All, m.Any) {
		errs = append(errs, checkMatch(inner)...)
	}
	if m.Not != nil {
		errs = append(errs, checkMatch(*m.Not)...)
	}
	return errs
}

// idempotentMethods returns the methods that RFC 9110, section 9.2.2, defines as
// idempotent.
func idempotentMethods() []string {
	return []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"}
}

// routeMessages returns the routes of the API for r, in the order in which clients match them.
// Usually the result has one route. If r applies to several methods but retries only the
// idempotent methods, the result has two routes. The first route matches only idempotent
// methods, and only this route is retryable. One route is not enough, because is_retryable
// applies to all requests of a route.
func routeMessages(r Route) []*pb.Route {
	switch {
	case !r.Retryable || r.RetryNonIdempotent:
		return []*pb.Route{routeMessage(r)}
	case r.Match.Method != "":
		r.Retryable = slices.Contains(idempotentMethods(), r.Match.Method)
		return []*pb.Route{routeMessage(r)}
	}
	idempotent := r
	methods := Match{}
	for _, method := range idempotentMethods() {
		methods.Any = append(methods.Any, Match{Method: method})
	}
	idempotent.Match = Match{All: []Match{methods, r.Match}}
	r.Retryable = false
	return []*pb.Route{routeMessage(idempotent), routeMessage(r)}
}

// routeMessage returns r as one route of the API. Its labels contain the name of the route,
// which clients use in metrics and tap.
func routeMessage(r Route) *pb.Route {
	msg := &pb.Route{
		Condition:     matchMessage(r.Match),
		MetricsLabels: map[string]string{routeLabel: r.Name},
		IsRetryable:   r.Retryable,
	}
	maps.Copy(msg.GetMetricsLabels(), r.Labels)
	for _, c := range r.Classes {
		msg.ResponseClasses = append(msg.ResponseClasses, &pb.ResponseClass{
			Condition: &pb.ResponseMatch{Match: &pb.ResponseMatch_Status{Status: &pb.HttpStatusRange{Min: c.Min, Max: c.Max}}},
			IsFailure: c.Failure,
		})
	}
	if r.Timeout > 0 {
		msg.Timeout = durationpb.New(r.Timeout)
	}
	return msg
}

// matchMessage returns m as a message of the API. If several fields of m are set, the
// message is an "all" with one message for each field, because a message has a single
// condition.
func matchMessage(m Match) *pb.RequestMatch {
	var parts []*pb.RequestMatch
	if m.Method != "" {
		parts = append(parts, &pb.RequestMatch{Match: &pb.RequestMatch_Method{Method: methodMessage(m.Method)}})
	}
	if m.Path != "" {
		parts = append(parts, &pb.RequestMatch{Match: &pb.RequestMatch_Path{Path: &pb.PathMatch{Regex: m.Path}}})
	}
	if len(m.All) > 0 {
		parts = append(parts, &pb.RequestMatch{Match: &pb.RequestMatch_All{All: matchMessages(m.All)}})
	}
	if len(m.Any) > 0 {
		parts = append(parts, &pb.RequestMatch{Match: &pb.RequestMatch_Any{Any: matchMessages(m.Any)}})
	}
	if m.Not != nil {
		parts = append(parts, &pb.RequestMatch{Match: &pb.RequestMatch_Not{Not: matchMessage(*m.Not)}})
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &pb.RequestMatch{Match: &pb.RequestMatch_All{All: &pb.RequestMatch_Seq{Matches: parts}}}
}

func matchMessages(ms []Match) *pb.RequestMatch_Seq {
	seq := &pb.RequestMatch_Seq{}
	for _, m := range ms {
		seq.Matches = append(seq.Matches, matchMessage(m))
	}
	return seq
}

// methodMessage returns method as a message of the API. A standard method becomes an enum
// value, because clients compare it with enum values.
func methodMessage(method string) *http_types.HttpMethod {
	if n, ok := registered(method); ok {
		return &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: n}}
	}
	return &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: method}}
}
