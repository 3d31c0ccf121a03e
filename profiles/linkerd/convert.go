package linkerd

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/policyroute"
	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// convert converts a message to a Profile. It calls drop with an error for each part that it leaves
// out. It does not leave out invalid members of conditions, because the Router leaves these out.
func convert(m *destination.DestinationProfile, drop func(error)) *profiles.Profile {
	p := &profiles.Profile{
		Name:           m.GetFullyQualifiedName(),
		OpaqueProtocol: m.GetOpaqueProtocol(),
		Distribution:   profiles.RandomAvailable,
	}
	for i, r := range m.GetRoutes() {
		route := convertRoute(r, func(err error) { drop(fmt.Errorf("route %d: %w", i, err)) })
		// The Router would leave this route out, but could not name its place in the message.
		if err := profiles.ValidateMatch(route.Match); err != nil {
			drop(fmt.Errorf("route %d: %w", i, err))
			continue
		}
		p.Routes = append(p.Routes, route)
	}
	for _, d := range m.GetDstOverrides() {
		target := profiles.Target{Authority: d.GetAuthority(), Weight: d.GetWeight()}
		// Such a target would never be reached.
		if err := authority.CheckTarget(target.Authority); err != nil {
			drop(err)
			continue
		}
		p.Targets = append(p.Targets, target)
	}
	if e := m.GetEndpoint(); e != nil {
		p.Endpoint = convertEndpoint(e, drop)
	}
	if b := m.GetRetryBudget(); b != nil {
		ttl, _ := convertDuration(b.GetTtl()) // 0 if invalid, which Validate rejects
		budget := &profiles.RetryBudget{
			Ratio: float64(b.GetRetryRatio()), MinPerSecond: b.GetMinRetriesPerSecond(), TTL: ttl,
		}
		if err := budget.Validate(); err != nil {
			drop(fmt.Errorf("retry budget: %w", err))
		} else {
			p.RetryBudget = budget
		}
	}
	return p
}

// convertRoute converts a route. It calls drop with an error for each part that it leaves out, such as an
// invalid timeout. The caller must check the route's condition, which may be invalid.
func convertRoute(r *destination.Route, drop func(error)) profiles.Route {
	route := profiles.Route{
		Name:   r.GetMetricsLabels()["route"], // the only name in a message
		Match:  convertRequestMatch(r.GetCondition(), drop),
		Labels: r.GetMetricsLabels(),
	}
	if r.GetIsRetryable() {
		route.Retry = &profiles.Retry{NonIdempotent: true} // linkerd retries all methods
	}
	for i, c := range r.GetResponseClasses() {
		// An invalid class is left out, so that linkerd's rules apply to its responses.
		class := profiles.ResponseClass{Match: convertResponseMatch(c.GetCondition(), drop), Failure: c.GetIsFailure()}
		if err := class.Validate(); err != nil {
			drop(fmt.Errorf("response class %d: %w", i, err))
			continue
		}
		route.Classes = append(route.Classes, class)
	}
	if d := r.GetTimeout(); d != nil {
		timeout, err := convertDuration(d)
		if err != nil {
			drop(fmt.Errorf("timeout: %w", err))
		}
		route.Timeout = timeout // 0 after an error, which means no timeout
	}
	return route
}

// convertDuration converts d. It returns 0 and an error if d is invalid or negative.
func convertDuration(d *durationpb.Duration) (time.Duration, error) {
	// CheckValid also rejects a duration that does not fit.
	if err := d.CheckValid(); err != nil {
		return 0, err
	}
	if d.AsDuration() < 0 {
		return 0, fmt.Errorf("%v is below 0", d.AsDuration())
	}
	return d.AsDuration(), nil
}

// convertRequestMatch converts m to a condition. If m is empty, it returns nil, so that the route
// is invalid. It calls drop with an error for each part that it leaves out.
func convertRequestMatch(m *destination.RequestMatch, drop func(error)) profiles.Match {
	switch m := m.GetMatch().(type) {
	case *destination.RequestMatch_All:
		return profiles.All(convertMembers(m.All.GetMatches(), convertRequestMatch, drop))
	case *destination.RequestMatch_Any:
		return profiles.Any(convertMembers(m.Any.GetMatches(), convertRequestMatch, drop))
	case *destination.RequestMatch_Not:
		return convertNot(convertRequestMatch(m.Not, drop))
	case *destination.RequestMatch_Path:
		return profiles.Path(m.Path.GetRegex())
	case *destination.RequestMatch_Method:
		return policyroute.Method(m.Method, drop)
	}
	return nil
}

// convertResponseMatch converts m to a condition on responses. If m is empty, it returns nil. It calls drop
// with an error for each part that it leaves out.
func convertResponseMatch(m *destination.ResponseMatch, drop func(error)) profiles.Match {
	switch m := m.GetMatch().(type) {
	case *destination.ResponseMatch_All:
		return profiles.All(convertMembers(m.All.GetMatches(), convertResponseMatch, drop))
	case *destination.ResponseMatch_Any:
		return profiles.Any(convertMembers(m.Any.GetMatches(), convertResponseMatch, drop))
	case *destination.ResponseMatch_Not:
		return convertNot(convertResponseMatch(m.Not, drop))
	case *destination.ResponseMatch_Status:
		// The values fit into 32 bits, the size of int on some machines, or are invalid.
		return profiles.Status{
			Min: int(min(m.Status.GetMin(), math.MaxInt32)),
			Max: int(min(m.Status.GetMax(), math.MaxInt32)),
		}
	}
	return nil
}

// convertMembers converts the members of a condition with the function convert. It leaves out empty
// members, and calls drop with an error for each.
func convertMembers[M any](members []M, convert func(M, func(error)) profiles.Match, drop func(error)) []profiles.Match {
	converted := make([]profiles.Match, 0, len(members))
	for _, m := range members {
		c := convert(m, drop)
		// The kind of the member is unknown, or it is invalid. The others still apply.
		if c == nil {
			drop(errors.New("member of a condition: empty"))
			continue
		}
		converted = append(converted, c)
	}
	return converted
}

// convertNot returns the negation of m, or nil if m is nil, because an empty condition stays invalid.
func convertNot(m profiles.Match) profiles.Match {
	if m == nil {
		return nil
	}
	return profiles.Not{Match: m}
}

// convertEndpoint converts a profile's endpoint. It returns nil if the address is invalid. It
// calls drop for each part that it leaves out.
func convertEndpoint(m *destination.WeightedAddr, drop func(error)) *resolve.Endpoint {
	e, ok := wire.Endpoint(m, drop)
	if !ok {
		return nil
	}
	return &e
}
