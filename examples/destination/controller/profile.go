package controller

import (
	"maps"
	"slices"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"google.golang.org/protobuf/types/known/durationpb"
)

// routeLabel is the metric label for a route's name.
const routeLabel = "route"

// profileMessage returns d's profile as an API message. Unless the profile sets a name, the
// message uses t's host, or no name for an IP address or an absent destination. Without a
// profile, the message contains just that, and clients balance over the endpoints, as they do
// with linkerd's controller.
func profileMessage(t target, d Destination) *pb.DestinationProfile {
	msg := &pb.DestinationProfile{}
	if !t.ip && !d.Absent {
		msg.FullyQualifiedName = t.host
	}
	p := d.Profile
	if p == nil {
		return msg
	}
	if p.Name != "" {
		msg.FullyQualifiedName = p.Name
	}
	msg.OpaqueProtocol = p.Opaque
	if p.Endpoint != nil {
		// Copy, because the address must not change in the caller's configuration.
		ep := *p.Endpoint
		ep.Addr = unmap(ep.Addr)
		msg.Endpoint = endpointMessage(ep)
	}
	for _, r := range p.Routes {
		msg.Routes = append(msg.Routes, routeMessages(r)...)
	}
	for _, s := range p.Splits {
		msg.DstOverrides = append(msg.DstOverrides, &pb.WeightedDst{Authority: s.Authority, Weight: s.Weight})
	}
	if b := p.Budget; b != nil {
		msg.RetryBudget = &pb.RetryBudget{
			RetryRatio:          float32(b.Ratio),
			MinRetriesPerSecond: b.MinPerSecond,
			Ttl:                 durationpb.New(b.TTL),
		}
	}
	return msg
}

// idempotentMethods returns the methods that are idempotent according to RFC 9110, section 9.2.2.
func idempotentMethods() []string {
	return []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"}
}

// routeMessages returns r as API routes, in the order in which clients match them. Usually there
// is one. If r matches several methods but should retry only the idempotent ones, there are two,
// because is_retryable applies to a whole route: the first matches idempotent methods and is
// retryable, and the second takes the rest.
func routeMessages(r Route) []*pb.Route {
	switch {
	// One API route is enough if retries are off, or are allowed for all methods.
	case !r.Retryable || r.RetryNonIdempotent:
		return []*pb.Route{routeMessage(r)}
	// With a method, it is known whether it is idempotent.
	case r.Match.Method != "":
		r.Retryable = slices.Contains(idempotentMethods(), r.Match.Method)
		return []*pb.Route{routeMessage(r)}
	}
	idempotent := r
	methods := Match{}
	for _, method := range idempotentMethods() {
		methods.Any = append(methods.Any, Match{Method: method})
	}
	// Clients use the first route that matches, so the one for idempotent methods comes first.
	idempotent.Match = Match{All: []Match{methods, r.Match}}
	r.Retryable = false
	return []*pb.Route{routeMessage(idempotent), routeMessage(r)}
}

// routeMessage returns r as one API route. Clients use the label with its name in metrics and
// tap.
func routeMessage(r Route) *pb.Route {
	msg := &pb.Route{
		Condition:     matchMessage(r.Match),
		MetricsLabels: map[string]string{routeLabel: r.Name},
		IsRetryable:   r.Retryable,
	}
	// r.Labels does not contain routeLabel, see Route.validate.
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

// matchMessage returns m as an API message. A message holds a single condition, so if several
// fields are set, they are wrapped in an "all".
func matchMessage(m Match) *pb.RequestMatch {
	// parts has one condition for each field that is set.
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

// matchMessages converts each match, for a condition that combines several.
func matchMessages(ms []Match) *pb.RequestMatch_Seq {
	seq := &pb.RequestMatch_Seq{}
	for _, m := range ms {
		seq.Matches = append(seq.Matches, matchMessage(m))
	}
	return seq
}

// methodMessage returns method as an API message. Standard methods must be sent as enum values,
// because clients compare those.
func methodMessage(method string) *http_types.HttpMethod {
	if n, ok := registered(method); ok {
		return &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: n}}
	}
	return &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: method}}
}
