package profiles

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/gotower/gotower/layer"
)

// Fault is a failure that is made, to see how those that ask bear it: a delay,
// an answer in the place of the targets', or both. A request meets it once,
// whatever its retries: they are below it. Timeout covers the delay; it counts
// as a request of its route, and the answer as a response, but not as a try.
type Fault struct {
	// Share of the requests, 0 to 1. Those of a route's faults come one after
	// the other: with 0.1 and 0.2, one in ten meets the first and two in ten the
	// second. They are not more than 1 together.
	Fraction float64

	Delay, Jitter time.Duration // before the answer or the forwarding; up to Jitter more, at random

	// Status is the HTTP status of the answer, 400 to 599; 0 forwards the
	// request after the delay. GRPC, 1 to 16, is the status in answers to gRPC
	// requests; 0 is the one that gRPC has for Status.
	Status int
	GRPC   uint32

	// TTL is how long the fault lasts from when a profile first has it, in this
	// process. It must be there: what nobody ends must end by itself. It goes on
	// while profiles have the same fault on a route with the same name and
	// condition, whatever else they change; once one is without it, it begins
	// anew with the next that has it. A delay ends with it.
	TTL time.Duration
}

// Validate says why a Router would leave the fault out, or returns nil.
func (f Fault) Validate() error {
	if err := f.problem(); err != nil {
		return fmt.Errorf("fault: %w", err)
	}
	return nil
}

func (f Fault) problem() error {
	switch {
	case !(f.Fraction >= 0 && f.Fraction <= 1):
		return fmt.Errorf("share %v is not from 0 to 1", f.Fraction)
	case f.Delay < 0:
		return fmt.Errorf("delay %v is below 0", f.Delay)
	case f.Jitter < 0:
		return fmt.Errorf("jitter %v is below 0", f.Jitter)
	case f.Status == 0 && f.GRPC == 0 && f.Delay == 0 && f.Jitter == 0:
		return errors.New("a delay or a status must say what is injected")
	case f.TTL <= 0:
		return fmt.Errorf("ttl %v is not above 0: a fault that nobody ends must end by itself", f.TTL)
	}
	return f.answerProblem()
}

func (f Fault) answerProblem() error {
	switch {
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d is not from 400 to 599", f.Status)
	case f.GRPC > maxGRPC:
		return fmt.Errorf("gRPC status %d is not from 1 to %d", f.GRPC, maxGRPC)
	case f.GRPC != 0 && f.Status == 0:
		return fmt.Errorf("gRPC status %d without a status, which requests that are not gRPC are answered with", f.GRPC)
	}
	return nil
}

// maxGRPC is the last status that gRPC has, UNAUTHENTICATED.
const maxGRPC = 16

// validFaults returns the faults that hold, and an error for each other one.
func validFaults(faults []Fault) (valid []Fault, problems []error) {
	sum := 0.0
	for i, f := range faults {
		err := f.problem()
		if err == nil && sum+f.Fraction > 1+1e-9 { // tenths add up to a little more than 1
			err = fmt.Errorf("share %v is more than those before leave", f.Fraction)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("fault %d: %w", i, err))
			continue
		}
		sum += f.Fraction
		valid = append(valid, f)
	}
	return valid, problems
}

// faultLives is when faults began, by what they are and where. It outlives the
// stacks of routes: what else changes in a profile must not give a fault a new
// lease of life. The Router's mu guards it.
type faultLives map[string]time.Time

func faultKey(r Route, f Fault) string {
	return string(appendValue(nil, reflect.ValueOf(struct {
		Name  string
		Match Match
		Fault Fault
	}{r.Name, r.Match, f})))
}

// left returns how much is left of the time of each fault of a route. That of
// a new one begins now.
func (l faultLives) left(r Route) []time.Duration {
	left := make([]time.Duration, len(r.Faults))
	for i, f := range r.Faults {
		key := faultKey(r, f)
		began, ok := l[key]
		if !ok {
			began = time.Now()
			l[key] = began
		}
		left[i] = max(f.TTL-time.Since(began), 0)
	}
	return left
}

// keep forgets the faults that p has not.
func (l faultLives) keep(p *Profile) {
	if len(l) == 0 {
		return
	}
	has := make(map[string]bool)
	for _, r := range p.Routes {
		for _, f := range r.Faults {
			has[faultKey(r, f)] = true
		}
	}
	for key := range l {
		if !has[key] {
			delete(l, key)
		}
	}
}

// keepFaults tells WithRouteLayers which profile has come.
func (r *Router[Req, Rsp]) keepFaults(p *Profile) {
	if r.standard != nil {
		r.standard.faults.keep(p)
	}
}

// errFault is what a fault with an answer injects; it does not leave here.
var errFault = errors.New("an answer that is made up")

// faults adds Faults: to each an instance of [layer.FaultInjection], which knows its
// time, and delays.
func (a *acting[Req, Rsp]) faults(st layer.Stack[Req, Rsp]) layer.Stack[Req, Rsp] {
	if len(a.route.Faults) == 0 {
		return st
	}
	opts := a.options(a.errs, nil)
	sum := 0.0
	ways := make([]faultWay[Req, Rsp], len(a.route.Faults))
	for i, f := range a.route.Faults {
		sum += f.Fraction
		policy := layer.FaultPolicy[Req]{Fraction: 1, Delay: f.Delay, Jitter: f.Jitter, TTL: a.lives[i]}
		if f.Status != 0 {
			policy.Err = errFault
		}
		ways[i] = faultWay[Req, Rsp]{
			fault: f, upTo: sum, ends: time.Now().Add(a.lives[i]),
			answer: layer.DirectResponse{Status: f.Status, GRPC: f.GRPC, Message: "injected fault"},
		}
		if a.lives[i] > 0 {
			ways[i].inject = layer.FaultInjection(policy, opts...)
		}
	}
	return st.With("faults", func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		s := &faulty[Req, Rsp]{Service: next, target: a.target, edit: a.standard.edit, rand: rand.Float64}
		for _, w := range ways {
			w.Service = next
			if w.inject != nil {
				w.Service = w.inject(next)
			}
			s.ways = append(s.ways, w)
		}
		return s
	})
}

// faulty has a share of the requests go through faults.
type faulty[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	target string
	edit   layer.Editor[Req, Rsp] // nil if no fault answers
	ways   []faultWay[Req, Rsp]
	rand   func() float64
}

// faultWay is a fault, and the way through it.
type faultWay[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	fault  Fault
	upTo   float64               // numbers below this, and not below that of the way before, are its share
	inject layer.Layer[Req, Rsp] // nil if its time is over
	answer layer.DirectResponse
	ends   time.Time
}

func (s *faulty[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	drawn := s.rand()
	for i := range s.ways {
		if w := &s.ways[i]; drawn < w.upTo {
			return s.through(ctx, w, req)
		}
	}
	return s.Service.Call(ctx, req)
}

func (s *faulty[Req, Rsp]) through(ctx context.Context, w *faultWay[Req, Rsp], req Req) (Rsp, error) {
	if w.fault.Status == 0 {
		s.explainDelay(ctx, w)
	}
	rsp, err := w.Service.Call(ctx, req)
	switch {
	case err == nil:
	case errors.Is(err, errFault):
		s.explain(ctx, w)
		return s.edit.NewResponse(req, w.answer), nil
	case errors.Is(err, layer.ErrInjected) && ctx.Err() != nil:
		// To those above it is a target that was too slow, and counts as one.
		err = &layer.Error{Layer: "fault", Target: s.target, Reason: "gone during the injected delay", Err: context.Cause(ctx)}
	}
	return rsp, err
}

// explainDelay comes before the request is forwarded, where nobody says whether it
// was delayed.
func (s *faulty[Req, Rsp]) explainDelay(ctx context.Context, w *faultWay[Req, Rsp]) {
	if layer.PickInfoFromContext(ctx).Explanation != nil && ctx.Err() == nil && time.Now().Before(w.ends) {
		s.explain(ctx, w)
	}
}

func (s *faulty[Req, Rsp]) explain(ctx context.Context, w *faultWay[Req, Rsp]) {
	why := layer.PickInfoFromContext(ctx).Explanation
	if why == nil {
		return
	}
	n := layer.Node{Name: "fault", State: layer.State{{Key: "status", Value: w.fault.Status}, {Key: "share", Value: w.fault.Fraction}}}
	if w.fault.Delay > 0 {
		n.State = append(n.State, layer.Attr{Key: "delay", Value: w.fault.Delay})
	}
	if w.fault.Jitter > 0 {
		n.State = append(n.State, layer.Attr{Key: "jitter", Value: w.fault.Jitter})
	}
	why.Add(n)
}

func (s *faulty[Req, Rsp]) Next() layer.Service[Req, Rsp] { return s.Service }

// Describe shows each fault as a child: what it does, and how often it did.
func (s *faulty[Req, Rsp]) Describe() layer.Node {
	n := layer.Node{Name: "faults"}
	for _, w := range s.ways {
		child := layer.Node{Name: "fault", State: layer.State{
			{Key: "share", Value: w.fault.Fraction}, {Key: "delay", Value: w.fault.Delay}, {Key: "status", Value: w.fault.Status},
		}}
		of := layer.Describe(w.Service)
		for _, key := range []string{"ends_in", "injected"} {
			if v := of.State.Get(key); of.Name == "chaos" && v != nil {
				child.State = append(child.State, layer.Attr{Key: key, Value: v})
			}
		}
		n.Children = append(n.Children, child)
	}
	return n
}
