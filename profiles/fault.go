package profiles

import (
	"errors"
	"fmt"
	"time"
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
