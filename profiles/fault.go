package profiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gotower/gotower/layer"
)

// Fault injects a delay, a response, or both, in order to test the callers. A fault applies at most
// once to each request, before the first attempt. The Timeout of the route includes the delay. The
// metrics for requests count an injected response, but the metrics for attempts do not.
type Fault struct {
	// Fraction is the share of the requests that get the fault, 0 to 1. A request gets at
	// most one fault of a route: with fractions of 0.1 and 0.2, 10 % get the first fault
	// and 20 % the second. The sum of the fractions of a route is at most 1.
	Fraction float64

	// Delay is the wait before the request is answered or forwarded. A random time of up to
	// Jitter is added.
	Delay, Jitter time.Duration

	// Status is the HTTP status of the injected response, 400 to 599. With 0, no response is
	// injected, and the request is forwarded after the delay. GRPC is the gRPC status of the
	// response to a gRPC request, 1 to 16. With 0, the gRPC status is derived from Status.
	Status int
	GRPC   uint32

	Message string // text of the injected response; "" means "injected fault"

	// TTL is the time after which the fault ends in this process. It must be more than 0.
	// The TTL starts with the first profile that has the route, and again after a change of
	// the route or the RetryBudget. A delay in progress ends when the TTL is over.
	TTL time.Duration
}

// Validate returns the reason why a Router would leave the fault out of a route, or nil if
// the fault is valid.
func (f Fault) Validate() error {
	if err := f.problem(); err != nil {
		return fmt.Errorf("fault: %w", err)
	}
	return nil
}

func (f Fault) problem() error {
	switch {
	case !(f.Fraction >= 0 && f.Fraction <= 1):
		return fmt.Errorf("fraction %v is not from 0 to 1", f.Fraction)
	case f.Delay < 0:
		return fmt.Errorf("delay %v is below 0", f.Delay)
	case f.Jitter < 0:
		return fmt.Errorf("jitter %v is below 0", f.Jitter)
	case f.Status == 0 && f.GRPC == 0 && f.Delay == 0 && f.Jitter == 0:
		return errors.New("no delay and no status")
	case f.TTL <= 0:
		return fmt.Errorf("ttl %v is not above 0: a fault must end by itself", f.TTL)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d is not from 400 to 599", f.Status)
	case f.GRPC > maxGRPC:
		return fmt.Errorf("gRPC status %d is not from 1 to %d", f.GRPC, maxGRPC)
	case f.GRPC != 0 && f.Status == 0:
		return fmt.Errorf("gRPC status %d without a status for requests that are not gRPC", f.GRPC)
	}
	return nil
}

// errFault is the error by which layer.FaultInjection reports to faultService that a
// response must be injected. Callers of faultService receive that response, and not
// errFault.
var errFault = errors.New("injected response")

func (a *routeStack[Req, Rsp]) addFaults(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if len(a.route.Faults) == 0 {
		return st
	}
	opts := a.options(a.layers.classify)
	return st.With("faults", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		s := &faultService[Req, Rsp]{Service: next, target: a.target, edit: a.layers.edit, rand: rand.Float64}
		sum := 0.0
		for _, f := range a.route.Faults {
			sum += f.Fraction
			policy := layer.FaultPolicy[Req]{Fraction: 1, Delay: f.Delay, Jitter: f.Jitter, TTL: f.TTL}
			if f.Status != 0 {
				policy.Err = errFault
			}
			s.faults = append(s.faults, faultShare[Req, Rsp]{
				Service: layer.FaultInjection(policy, opts...)(next), Fault: f, upTo: sum, ends: time.Now().Add(f.TTL),
			})
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

func (s *faultService[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	drawn := s.rand()
	for i := range s.faults {
		if f := &s.faults[i]; drawn < f.upTo {
			return s.inject(ctx, f, req)
		}
	}
	return s.Service.Call(ctx, req)
}

func (s *faultService[Req, Rsp]) inject(ctx context.Context, f *faultShare[Req, Rsp], req Req) (Rsp, error) {
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

func (f *faultShare[Req, Rsp]) explain(ctx context.Context) {
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		why.Add(f.node())
	}
}

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

func (s *faultService[Req, Rsp]) Next() layer.Service[Req, Rsp] { return s.Service }

// Describe returns each fault as a child, with the number of its injections.
func (s *faultService[Req, Rsp]) Describe() layer.Node {
	n := layer.Node{Name: "faults"}
	for _, f := range s.faults {
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
