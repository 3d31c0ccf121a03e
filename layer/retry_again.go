package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// skip is why a failure is not tried again.
type skip int

const (
	skipTries skip = iota
	skipUnsafe
	skipPushback
	skipDeadline
	skipBudget
	skipBody
	skipNothing // it was no failure, or nobody waits for another try
)

// String is the label of the instrument Skipped.
func (s skip) String() string {
	return [...]string{"tries", "unsafe", "pushback", "deadline", "budget", "body", "nothing"}[s]
}

// say returns what an error tells of a skip that is not plain from the number
// of tries.
func (s skip) say() string {
	switch s {
	case skipPushback:
		return "; told to wait for longer than allowed, or for good"
	case skipDeadline:
		return "; no time before the deadline"
	case skipBudget:
		return "; no budget"
	case skipBody:
		return "; the request body cannot be sent again"
	default:
		return ""
	}
}

// retrying is a request whose first try did not go well.
type retrying[Req, Rsp any] struct {
	*retry[Req, Rsp]
	ctx    *attempt
	req    Req
	replay Replay[Req] // nil where req can be sent as it is

	tries  int
	sent   bool          // one of them at least was not refused
	failed error         // of those, what the last one returned
	waited time.Duration // between tries

	charged bool // the next try was taken from the budget
}

// run takes the outcome of the first try, and makes the others.
func (s *retrying[Req, Rsp]) run(rsp Rsp, err error) (Rsp, error) {
	for {
		refused := errors.Is(err, ErrNotReady)
		if !refused {
			s.count(err)
		}
		pause, why, again := s.weigh(rsp, err, refused)
		if !again {
			return rsp, s.last(err, refused, why)
		}
		if err == nil {
			s.resend.Discard(rsp)
		}
		if gone := s.wait(pause, err); gone != nil {
			return *new(Rsp), gone
		}
		s.tries++
		s.charged = false
		s.retries.inc()
		rsp, err = s.try(s.ctx, s.req)
	}
}

// count notes a try that was not refused. The first of a request pays in to
// the budget.
func (s *retrying[Req, Rsp]) count(err error) {
	if !s.sent {
		s.sent = true
		s.ctx.pay()
	}
	s.failed = err
}

// weigh decides on another try, and makes the request ready for it.
func (s *retrying[Req, Rsp]) weigh(rsp Rsp, err error, refused bool) (pause time.Duration, why skip, again bool) {
	if s.ctx.Err() != nil || !s.mayHelp(rsp, err, refused) {
		return 0, skipNothing, false
	}
	pause, why = s.pause(rsp, err)
	switch {
	case s.tries >= s.policy.Tries:
		why = skipTries
	case !refused && !s.ctx.again:
		why = skipUnsafe
	case why == skipNothing && !refused:
		why = s.takeOut()
	}
	if why != skipNothing {
		s.skipped[why].inc()
		return 0, why, false
	}
	return pause, skipNothing, true
}

// mayHelp reports whether the same request might fare better.
func (s *retrying[Req, Rsp]) mayHelp(rsp Rsp, err error, refused bool) bool {
	switch {
	case refused:
		return !s.policy.PassRefusals && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrFailFast)
	case errors.Is(err, ErrTryTimeout):
		return true
	}
	return s.policy.Outcomes(Outcome[Rsp]{Response: rsp, Err: err, Ended: err == nil && s.whole})
}

// pause is how long to wait before the next try: the back-off, or what the
// service asks for if that is longer.
func (s *retrying[Req, Rsp]) pause(rsp Rsp, err error) (time.Duration, skip) {
	pause := s.policy.Backoff.Delay(s.tries - 1)
	after, asked := s.resend.After(rsp, err)
	if own, ok := RetryAfter(err); ok {
		after, asked = max(after, own), true
	}
	if asked && (after < 0 || after > s.policy.MaxAfter) {
		return 0, skipPushback
	}
	pause = max(pause, after)
	if deadline, ok := s.ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return 0, skipDeadline
	}
	return pause, skipNothing
}

// takeOut withdraws from the budget, and gets the body for the next try.
func (s *retrying[Req, Rsp]) takeOut() skip {
	budget := s.policy.Budget
	granted := budget.Withdraw()
	s.charged = granted
	s.to.Budget.Set(float64(budget.Balance()))
	if !granted {
		return skipBudget
	}
	if s.replay == nil {
		return skipNothing
	}
	next, ok := s.replay.Next()
	if !ok {
		budget.refund()
		return skipBody
	}
	s.req = next
	if r, ok := s.replay.(interface{ Retire() }); ok {
		r.Retire()
	}
	return skipNothing
}

// wait pauses, unless the caller goes.
func (s *retrying[Req, Rsp]) wait(pause time.Duration, after error) error {
	began := time.Now()
	cause := backoff.Sleep(s.ctx, pause)
	s.waited += time.Since(began)
	if cause == nil && s.ctx.Err() != nil {
		cause = context.Cause(s.ctx)
	}
	if cause == nil {
		return nil
	}
	if s.charged {
		s.policy.Budget.refund()
	}
	gone := &Error{Layer: "retry", Target: s.target, Reason: "the caller has gone after " + s.howMany(), Waited: s.waited, Err: cause}
	if after != nil {
		gone.Reason += ": " + after.Error()
	}
	if !s.sent {
		gone.Kind = ErrNotReady
	}
	s.letGo()
	return gone
}

// last is the error to return when there are no more tries.
func (s *retrying[Req, Rsp]) last(err error, refused bool, why skip) error {
	switch {
	case err == nil:
		return nil
	case refused && s.sent:
		// Something was sent, so nobody may take this for a refusal.
		after, _ := RetryAfter(err)
		s.letGo()
		kind := ErrTryRefused
		if errors.Is(err, ErrFailFast) {
			kind = ErrTimeout
		}
		return &Error{
			Layer: "retry", Target: s.target, Kind: kind, Waited: s.waited, After: after, Err: s.failed,
			Reason: fmt.Sprintf("%s, the last refused (%v)", s.howMany(), err),
		}
	case s.tries == 1 && why.say() == "":
		return err
	}
	return &Error{Layer: "retry", Target: s.target, Reason: s.howMany() + why.say(), Waited: s.waited, Err: err}
}

// letGo closes the request body that the last try did not take.
func (s *retrying[Req, Rsp]) letGo() {
	if c, ok := s.replay.(io.Closer); ok && s.sent {
		c.Close()
	}
}

func (s *retrying[Req, Rsp]) howMany() string {
	if s.tries == 1 {
		return "1 try"
	}
	return fmt.Sprintf("%d tries", s.tries)
}
