package profiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gotower/gotower/layer"
)

// Fault injects a delay, a response, or both, in order to test the callers. A fault applies at most
// once to each request, before the first attempt. The Timeout of the route includes the delay. The
// metrics for requests count an injected response, but the metrics for attempts do not.
type Fault struct {
	// Fraction is the share of requests that get the fault, 0 to 1. A request gets at most one of
	// a route's faults: with fractions of 0.1 and 0.2, 10 % get the first fault and 20 % the
	// second. A route's fractions may add up to at most 1.
	Fraction float64

	// Delay is the wait before the request is answered or forwarded. A random time of up to
	// Jitter is added.
	Delay, Jitter time.Duration

	// Status is the injected response's HTTP status, 200 to 999. With 0, no response is injected,
	// and the request is forwarded after the delay. GRPC is the gRPC status for a gRPC request, 1
	// to 16. With 0, the gRPC status is derived from Status.
	Status int
	GRPC   uint32

	Message string // text of the injected response; "" means "injected fault"

	// TTL is the time after which the fault ends in this process, so that a forgotten experiment ends. 0
	// means that the fault ends with the route. The TTL starts with the first profile that contains the
	// route, and again if the route or the RetryBudget changes. A delay in progress ends when the TTL is
	// over.
	TTL time.Duration
}

// Validate returns the reason why a Router would leave the fault out of a route, or nil if
// the fault is valid.
func (f Fault) Validate() error {
	switch {
	// Written so that NaN is out of range too.
	case !(f.Fraction >= 0 && f.Fraction <= 1):
		return fmt.Errorf("fraction %v is not from 0 to 1", f.Fraction)
	case f.Delay < 0:
		return fmt.Errorf("delay %v is below 0", f.Delay)
	case f.Jitter < 0:
		return fmt.Errorf("jitter %v is below 0", f.Jitter)
	case f.Status == 0 && f.GRPC == 0 && f.Delay == 0 && f.Jitter == 0:
		return errors.New("no delay and no status")
	case f.TTL < 0:
		return fmt.Errorf("ttl %v is below 0", f.TTL)
	case f.Status != 0 && (f.Status < 200 || f.Status > 999):
		return fmt.Errorf("status %d is not from 200 to 999", f.Status)
	case f.GRPC > maxGRPC:
		return fmt.Errorf("gRPC status %d is not from 1 to %d", f.GRPC, maxGRPC)
	case f.GRPC != 0 && f.Status == 0:
		return fmt.Errorf("gRPC status %d without a status for requests that are not gRPC", f.GRPC)
	}
	return nil
}

// validFaults returns the valid faults, and adds the mistakes in the others to problems.
func validFaults(faults []Fault, problems *FieldErrors) (valid []Fault) {
	// Each fault takes its part of the range from 0 to 1, so the fractions must not exceed 1 together.
	sum := 0.0
	for i, f := range faults {
		err := f.Validate()
		if err == nil && sum+f.Fraction > 1+1e-9 { // 1e-9 compensates for rounding
			err = fmt.Errorf("fraction %v is more than the faults before leave", f.Fraction)
		}
		if problems.add(item("Faults", i), err) {
			continue
		}
		sum += f.Fraction
		valid = append(valid, f)
	}
	return valid
}

// errFault is the error by which layer.FaultInjection reports to faultService that a
// response must be injected. Callers of faultService receive that response, and not
// errFault.
var errFault = errors.New("injected response")

// addFaults returns st with the faults of the route. Their TTL begins when the route was made.
func (a *routeStack[Req, Rsp]) addFaults(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if len(a.route.Faults) == 0 {
		return st
	}
	opts := a.options(a.protocol.Classify)
	return st.With("faults", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		s := &faultService[Req, Rsp]{Service: next, target: a.target, edit: a.protocol, rand: rand.Float64}
		// sum is the end of the range of random numbers that select the fault.
		sum := 0.0
		for _, f := range a.route.Faults {
			sum += f.Fraction
			ends := a.arrival.Add(cmp.Or(f.TTL, math.MaxInt64))
			// After the TTL, requests of this share go on as if there was no fault.
			share := faultShare[Req, Rsp]{Service: next, Fault: f, upTo: sum, ends: ends}
			if remaining := time.Until(ends); remaining > 0 { // the layers may be made later than the TTL
				// faultService has selected the request already, so this layer always applies.
				policy := layer.FaultPolicy[Req]{Fraction: 1, Delay: f.Delay, Jitter: f.Jitter, TTL: remaining}
				if f.Status != 0 {
					policy.Err = errFault
				}
				share.Service = layer.FaultInjection(policy, opts...)(next)
			}
			s.faults = append(s.faults, share)
		}
		return s
	})
}

// faultService sends a fraction of the requests through each fault, and the other requests
// directly to the service below.
type faultService[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	target string
	edit   layer.Editor[Req, Rsp] // nil if no fault has a response
	faults []faultShare[Req, Rsp]
	rand   func() float64 // returns a number from 0 to below 1
}

// faultShare is a fault and the service that injects it. A request gets the fault if its random
// number is below the field upTo, but not below that of the previous fault.
type faultShare[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	Fault
	upTo float64   // a random number below upTo, but not below the previous upTo, selects the fault
	ends time.Time // when the TTL of the fault is over
}

// Call draws a random number, which selects a fault or none, and sends req through it.
func (s *faultService[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	// One number decides between all faults and none.
	drawn := s.rand()
	for i := range s.faults {
		if f := &s.faults[i]; drawn < f.upTo {
			return s.inject(ctx, f, req)
		}
	}
	return s.Service.Call(ctx, req)
}

// inject sends req through the fault f. If f has a status, inject returns the fault's response in place
// of errFault. If ctx ends during the injected delay, it returns an Error of the layer fault.
func (s *faultService[Req, Rsp]) inject(ctx context.Context, f *faultShare[Req, Rsp], req Req) (Rsp, error) {
	// A fault without a response is explained before the delay; one with a response only if it is injected.
	if f.Status == 0 && ctx.Err() == nil && time.Now().Before(f.ends) {
		f.explain(ctx)
	}
	rsp, err := f.Service.Call(ctx, req)
	switch {
	case err == nil:
	case errors.Is(err, errFault):
		f.explain(ctx)
		return s.edit.NewResponse(req, layer.DirectResponse{
			Status: f.Status, GRPC: f.GRPC, Message: cmp.Or(f.Message, "injected fault"),
		}), nil
	case errors.Is(err, layer.ErrInjected) && ctx.Err() != nil:
		// Layers above treat this error like that of a slow target.
		err = &layer.Error{Layer: "fault", Target: s.target, Reason: "canceled during the injected delay", Err: context.Cause(ctx)}
	}
	return rsp, err
}

// explain adds the fault to the request's explanation, if there is one.
func (f *faultShare[Req, Rsp]) explain(ctx context.Context) {
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		explanation.Add(f.node())
	}
}

// node returns the node of the fault, for Describe.
func (f *faultShare[Req, Rsp]) node() layer.Node {
	n := layer.Node{Name: "fault", State: layer.State{{Key: "fraction", Value: f.Fraction}}}
	if f.Status != 0 {
		n.State = append(n.State, layer.Attr{Key: "status", Value: f.Status})
	}
	if f.Delay > 0 {
		n.State = append(n.State, layer.Attr{Key: "delay", Value: f.Delay})
	}
	if f.Jitter > 0 {
		n.State = append(n.State, layer.Attr{Key: "jitter", Value: f.Jitter})
	}
	return n
}

// Next returns the service that gets the requests without a fault.
func (s *faultService[Req, Rsp]) Next() layer.Service[Req, Rsp] { return s.Service }

// Describe returns each fault as a child, with the number of its injections.
func (s *faultService[Req, Rsp]) Describe() layer.Node {
	n := layer.Node{Name: "faults"}
	for _, f := range s.faults {
		// FaultInjection counts how often it was applied.
		child, state := f.node(), layer.Describe(f.Service).State
		for _, key := range []string{"ends_in", "injected"} {
			if v := state.Get(key); v != nil {
				child.State = append(child.State, layer.Attr{Key: key, Value: v})
			}
		}
		n.Children = append(n.Children, child)
	}
	return n
}
