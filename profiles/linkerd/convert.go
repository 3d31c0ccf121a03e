package linkerd

import (
	"fmt"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/profiles"
)

// convert makes a Profile of a message. What is invalid, or has no counterpart
// in a Profile, is left out and told to drop. Only members of a condition that
// are invalid in themselves, such as a regular expression that does not parse,
// are left for the Router to leave out.
func convert(m *destination.DestinationProfile, drop func(error)) *profiles.Profile {
	p := &profiles.Profile{
		Name:           m.GetFullyQualifiedName(),
		OpaqueProtocol: m.GetOpaqueProtocol(),
	}
	for i, r := range m.GetRoutes() {
		route := convertRoute(r, func(err error) { drop(fmt.Errorf("route %d: %w", i, err)) })
		if err := route.Validate(); err != nil {
			drop(fmt.Errorf("route %d: %w", i, err))
			continue
		}
		p.Routes = append(p.Routes, route)
	}
	for _, d := range m.GetDstOverrides() {
		target := profiles.Target{Authority: d.GetAuthority(), Weight: d.GetWeight()}
		if err := target.Validate(); err != nil {
			drop(err)
			continue
		}
		p.Targets = append(p.Targets, target)
	}
	if e := m.GetEndpoint(); e != nil {
		p.Endpoint = convertEndpoint(e, drop)
	}
	if b := m.GetRetryBudget(); b != nil {
		budget, err := convertBudget(b)
		if err != nil {
			drop(err)
		} else {
			p.RetryBudget = budget
		}
	}
	return p
}

func convertRoute(r *destination.Route, drop func(error)) profiles.Route {
	route := profiles.Route{
		// The controller has no name on the wire but this label.
		Name:      r.GetMetricsLabels()["route"],
		Match:     convertRequestMatch(r.GetCondition(), drop),
		Labels:    r.GetMetricsLabels(),
		Retryable: r.GetIsRetryable(),
		// linkerd's is_retryable applies to all methods.
		RetryNonIdempotent: r.GetIsRetryable(),
	}
	for i, c := range r.GetResponseClasses() {
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
		route.Timeout = timeout
	}
	return route
}

func convertBudget(b *destination.RetryBudget) (*profiles.RetryBudget, error) {
	// Without a ttl, and with one that is no duration, it is 0, which is out
	// of its range.
	ttl, _ := convertDuration(b.GetTtl())
	budget := &profiles.RetryBudget{
		Ratio:        float64(b.GetRetryRatio()),
		MinPerSecond: b.GetMinRetriesPerSecond(),
		TTL:          ttl,
	}
	return budget, budget.Validate()
}

// convertDuration returns 0 with an error for what is no duration, and for one
// below 0.
func convertDuration(d *durationpb.Duration) (time.Duration, error) {
	if err := d.CheckValid(); err != nil {
		return 0, err
	}
	if d.AsDuration() < 0 {
		return 0, fmt.Errorf("%v is below 0", d.AsDuration())
	}
	return d.AsDuration(), nil
}
