package layer

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// RetryPolicy says which requests a [Retry] sends again, when, and how often.
// The zero RetryPolicy is ready to use: its zero fields mean the defaults.
type RetryPolicy[Req, Rsp any] struct {
	// Budget bounds the retries of all requests together. Give the same one to
	// layers that are to share it. nil: NewBudget(0, 0, 0), made with the
	// layer; there is no Retry without a budget.
	Budget *Budget

	// Tries is how often a request is sent at the most, the first time
	// included: 1 to 100, default 3.
	MaxAttempts int

	// AttemptTimeout limits one try, up to the head of its response: waiting in queues
	// below and the upload of a body included, so it should leave room for the
	// slowest client that is to be served. What is over it is tried again. 0 is
	// no limit.
	AttemptTimeout time.Duration

	// Backoff is the pause before the second try and those after it. The
	// default is 25 ms to 250 ms with half of it in jitter: short, because a
	// caller waits, and wide, because those who failed together should not come
	// back together. A single field that is 0 gets its default, Jitter excepted.
	Backoff Backoff

	// Body is how many bytes of a request body are kept to be sent again:
	// default 64 KiB. A request whose body is larger is not tried again once
	// more than that was read of it. Less than 0 keeps nothing.
	MaxBodyBytes int64

	// MaxRetryAfter is the longest wait that a service may ask for (Retry-After,
	// pushback): default 5 s. Who asks for more gets no retry, rather than one
	// that comes too soon; less than 0 is none for anybody who asks.
	MaxRetryAfter time.Duration

	// Requests reports whether req may be sent again after a try that failed.
	// nil: the protocol's Resend.Idempotent. Requests that an endpoint refused are
	// sent again whatever it says, because nothing has happened to them.
	CanRetry func(req Req) bool

	// PassRejections returns all refusals at once, as those of limits and queues
	// always are: for a Queue above, which knows better how to wait.
	PassRejections bool

	// Unreached reports of a refusal that it is tried again although PassRejections
	// is set: a connection that could not be made, where nobody stands above who
	// knows of another one. Such a try is taken from the Budget as if it had been
	// sent, and comes when the refusal says that it is worth it, within MaxRetryAfter.
	// It is not asked about [ErrClosed] and [ErrFailFast]. nil: there are none.
	RetryConnectFailure func(refusal error) bool

	// Peek reports whether the trailers of rsp, of which nothing but the head is
	// there, may tell of a failure. Then the response is held back until the first
	// piece of its body is there, as linkerd's proxy does, and it is judged with
	// its trailers if they came with it. That needs a Replayer with a [TrailerPeeker]. It is
	// not done for the last try, nor while the request's body is still being sent,
	// nor where that was too large to be kept, if its [Replay] tells so by a method
	// Whole() bool. nil: responses are judged by their heads.
	Peek func(rsp Rsp) bool

	// Outcomes reports whether another try may help. nil: where the Classifier
	// says Retryable or Throttled. It is not asked about refusals and try
	// timeouts, which are tried again.
	RetryIf func(o Outcome[Rsp]) bool
}

const (
	maxRetryTries     = 100
	defaultRetryTries = 3
	defaultRetryBody  = 64 << 10
	defaultRetryAfter = 5 * time.Second
)

func defaultRetryBackoff() Backoff {
	return Backoff{Min: 25 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 0.5}
}

// Validate returns an error that names the field that is out of range.
func (p RetryPolicy[Req, Rsp]) Validate() error {
	switch {
	case p.MaxAttempts < 0 || p.MaxAttempts > maxRetryTries:
		return fmt.Errorf("RetryPolicy.MaxAttempts is %d, must be 1 to %d", p.MaxAttempts, maxRetryTries)
	case p.AttemptTimeout < 0:
		return fmt.Errorf("RetryPolicy.AttemptTimeout is %v, must be at least 0", p.AttemptTimeout)
	}
	if err := backoff.Check(p.Backoff); err != nil {
		return fmt.Errorf("RetryPolicy.Backoff: %w", err)
	}
	return nil
}

// filled returns p with defaults in place of zero fields.
func (p RetryPolicy[Req, Rsp]) filled() RetryPolicy[Req, Rsp] {
	if p.Budget == nil {
		p.Budget = NewBudget(0, 0, 0)
	}
	p.MaxAttempts = cmp.Or(p.MaxAttempts, defaultRetryTries)
	p.Backoff = retryBackoff(p.Backoff)
	p.MaxBodyBytes = bodyLimit(p.MaxBodyBytes, defaultRetryBody)
	p.MaxRetryAfter = cmp.Or(p.MaxRetryAfter, defaultRetryAfter)
	return p
}

func retryBackoff(b Backoff) Backoff {
	def := defaultRetryBackoff()
	if b == (Backoff{}) {
		return def
	}
	b.Max = cmp.Or(b.Max, max(def.Max, b.Min))
	b.Min = cmp.Or(b.Min, min(def.Min, b.Max))
	return b
}

// bodyLimit returns how many bytes of a body a policy keeps: def for 0, none for
// a negative limit. An int holds it on every platform.
func bodyLimit(limit, def int64) int64 {
	return min(max(cmp.Or(limit, def), 0), math.MaxInt32)
}
