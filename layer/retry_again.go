package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/left"
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

	charged bool  // the budget has paid for a try that was not sent yet
	entry   int64 // where it says so
}

// run takes the outcome of the first try, and makes the others. rsp and err are what
// the last one returned, at any time: a panic discards the response.
func (s *retrying[Req, Rsp]) run(got answer[Rsp], rsp *Rsp, err *error) {
	for {
		got.refused = errors.Is(got.err, ErrNotReady)
		switch {
		case !got.refused:
			s.count(got.err)
		case s.unreached(got.err):
			got.unreached, s.charged = true, false // it was that try's
		}
		pause, why, again := s.weigh(got)
		s.explain(got, why, again)
		if !again {
			s.giveBack()
			*rsp, *err = got.ahead, s.last(got, why)
			return
		}
		*rsp = *new(Rsp)
		if got.err == nil {
			s.resend.Drain(got.ahead)
		}
		if *err = s.wait(pause, got.err); *err != nil {
			return
		}
		s.tries++
		s.retries.inc()
		*rsp, *err = s.try(s.ctx, s.req)
		got = s.look(s.ctx, s.replay, s.tries, *rsp, *err)
	}
}

// count notes a try that was not refused. The first of a request pays in to
// the budget.
func (s *retrying[Req, Rsp]) count(err error) {
	if !s.sent {
		s.sent = true
		s.ctx.pay()
	}
	s.failed, s.charged = err, false
}

// weigh decides on another try, and makes the request ready for it.
func (s *retrying[Req, Rsp]) weigh(got answer[Rsp]) (pause time.Duration, why skip, again bool) {
	if s.ctx.Err() != nil || !s.mayHelp(got) {
		return 0, skipNothing, false
	}
	pause, why = s.pause(got.rsp, got.err)
	switch {
	case s.tries >= s.policy.MaxAttempts:
		why = skipTries
	case !got.refused && !s.ctx.again:
		why = skipUnsafe
	case why == skipNothing && (!got.refused || got.unreached):
		why = s.takeOut(got.refused)
	}
	if why != skipNothing {
		s.skipped[why].inc()
		return 0, why, false
	}
	return pause, skipNothing, true
}

// mayHelp reports whether the same request might fare better.
func (s *retrying[Req, Rsp]) mayHelp(got answer[Rsp]) bool {
	switch {
	case got.refused:
		return got.unreached || !s.policy.PassRejections && !forGood(got.err) && !errors.Is(got.err, errShed)
	case errors.Is(got.err, ErrAttemptTimeout):
		return true
	}
	return s.policy.RetryIf(got.outcome())
}

// pause is how long to wait before the next try: the back-off, or what the
// service asks for if that is longer.
func (s *retrying[Req, Rsp]) pause(rsp Rsp, err error) (time.Duration, skip) {
	pause := s.policy.Backoff.Delay(s.tries - 1)
	after, asked := s.resend.RetryAfter(rsp, err)
	if own, ok := RetryAfter(err); ok {
		after, asked = max(after, own), true
	}
	if asked && (after < 0 || after > s.policy.MaxRetryAfter) {
		return 0, skipPushback
	}
	pause = max(pause, after)
	if deadline, ok := s.ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return 0, skipDeadline
	}
	return pause, skipNothing
}

// takeOut withdraws from the budget, and gets the body for the next try, unless
// the last one left it as it was.
func (s *retrying[Req, Rsp]) takeOut(untouched bool) skip {
	s.entry, s.charged = s.policy.Budget.withdraw()
	s.shown.show()
	switch {
	case !s.charged:
		return skipBudget
	case untouched || s.replay == nil:
		return skipNothing
	}
	next, ok := s.replay.Next()
	if !ok {
		return skipBody
	}
	s.req = next
	if r, ok := s.replay.(interface{ Retire() }); ok {
		r.Retire()
	}
	return skipNothing
}

// giveBack returns to the budget what was taken for a try that was not sent.
func (s *retrying[Req, Rsp]) giveBack() {
	if s.charged {
		s.charged = false
		s.policy.Budget.refund(s.entry)
		s.shown.show()
	}
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
	s.giveBack()
	gone := &Error{Layer: "retry", Target: s.target, Reason: left.Why(s.ctx) + " after " + s.howMany(), Waited: s.waited, Err: cause}
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
func (s *retrying[Req, Rsp]) last(got answer[Rsp], why skip) error {
	switch {
	case got.err == nil:
		return nil
	case got.refused && s.sent:
		// Something was sent, so nobody may take this for a refusal.
		after, _ := RetryAfter(got.err)
		s.letGo()
		kind := ErrRetryRejected
		if errors.Is(got.err, ErrFailFast) {
			kind = ErrTimeout
		}
		return &Error{
			Layer: "retry", Target: s.target, Kind: kind, Waited: s.waited, RetryAfter: after, Err: s.failed,
			Reason: fmt.Sprintf("%s, the last refused (%v)", s.howMany(), got.err),
		}
	case s.tries == 1 && why.say() == "":
		return got.err
	}
	e := &Error{Layer: "retry", Target: s.target, Reason: s.howMany() + why.say(), Waited: s.waited, Err: got.err}
	if below := (*Error)(nil); got.unreached && errors.As(got.err, &below) {
		e.Endpoint = below.Endpoint // it is still that one which refuses
	}
	return e
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
