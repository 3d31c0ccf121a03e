package layer

import (
	"context"
	"errors"
)

// TrailerPeeker is what a [Replayer] may have beside its methods, for protocols in which a
// response can fail after its head: [Retry] uses it where [RetryPolicy] asks
// for it.
type TrailerPeeker[Rsp any] interface {
	// Peek waits for the first piece of the body of rsp, and reports whether
	// the response is whole: whether its end came in place of that piece, or
	// right after it. Then rsp can be judged with its trailers. The response to
	// hand on is ahead, which has all of the body still to be read, and trailers
	// not before that was. Where rsp is not whole, only ahead may be looked at: the
	// end of rsp may be coming at that moment. Peek ends when ctx does.
	Peek(ctx context.Context, rsp Rsp) (ahead Rsp, whole bool)
}

// answer is what came of a try.
type answer[Rsp any] struct {
	rsp   Rsp  // to judge
	ended bool // with its trailers
	ahead Rsp  // the same response, to hand on
	err   error

	refused   bool
	unreached bool // and tried again all the same
}

func (a answer[Rsp]) outcome() Outcome[Rsp] {
	return Outcome[Rsp]{Response: a.rsp, Err: a.err, Ended: a.err == nil && a.ended}
}

// look takes what a try returned, and looks ahead in it where its trailers would
// be reason for another try.
func (r *retry[Req, Rsp]) look(a *attempt, replay Replay[Req], tries int, rsp Rsp, err error) answer[Rsp] {
	got := answer[Rsp]{rsp: rsp, ended: r.whole, ahead: rsp, err: err}
	if err != nil || r.peek == nil || !a.again || tries >= r.policy.MaxAttempts || !r.policy.Peek(rsp) {
		return got
	}
	// One who is still sending may be waiting for the head before he goes on; and
	// where the body cannot be sent again, there is nothing to look for.
	if body, ok := replay.(interface{ Whole() bool }); ok && !body.Whole() {
		return got
	}
	if got.ahead, got.ended = r.peek.Peek(a, rsp); !got.ended {
		got.rsp = got.ahead // the other one is still being read
	}
	return got
}

// unreached reports whether a refusal is tried again although others are passed.
func (s *retrying[Req, Rsp]) unreached(refusal error) bool {
	return s.policy.PassRejections && s.policy.RetryConnectFailure != nil && !forGood(refusal) && s.policy.RetryConnectFailure(refusal)
}

// forGood reports whether the next try would be refused as this one was.
func forGood(refusal error) bool {
	return errors.Is(refusal, ErrClosed) || errors.Is(refusal, ErrFailFast)
}
