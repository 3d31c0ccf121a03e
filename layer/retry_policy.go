package layer

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// RetryPolicy configures a [Retry]. A zero field has its default.
type RetryPolicy[Req, Rsp any] struct {
	// Budget limits the number of retries for all requests together. Several layers may
	// share it. The default is NewBudget(0, 0, 0), which has the default of each argument.
	// A Retry always has a budget.
	Budget *Budget

	// MaxAttempts is the largest number of attempts of a request, the first one included: 1
	// to 100, default 3.
	MaxAttempts int

	// AttemptTimeout limits the time from the start of an attempt to its response headers.
	// It includes waiting in queues below and the upload of the body. An attempt that
	// exceeds it is canceled and may be retried. 0 means no limit.
	AttemptTimeout time.Duration

	// Backoff is the pause between two attempts. The default is 25 ms to 250 ms with a
	// jitter of 0.5. If only Min or Max is 0, that field has its default.
	Backoff Backoff

	// MaxBodyBytes is the number of bytes of a request body that are stored for retries:
	// default 64 KiB. When more of the body has been read, the request is not retried any
	// more. If the value is negative, nothing is stored. The body of a request with GetBody
	// is not stored, and may have any size.
	MaxBodyBytes int64

	// MaxRetryAfter is the longest wait that a service may request, for example by the
	// header Retry-After: default 5 s. If the service requests a longer wait, the failure
	// is returned. If the value is negative, a service that requests a wait ends the
	// retries.
	MaxRetryAfter time.Duration

	// CanRetry reports whether req may be sent again after a failed attempt. The default is
	// the method Idempotent of the [Replayer]. Rejected attempts are retried without it,
	// because they were not sent.
	CanRetry func(req Req) bool

	// RetryIf reports whether another attempt may succeed after the outcome o. The default
	// returns true for rejections, attempt timeouts, and outcomes of class Retryable or
	// Throttled. It is not called for [ErrClosed], [ErrFailFast], and rejections of limits
	// and queues.
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

// Validate returns an error that names the first field that is out of range, or nil.
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

// filled returns p with the defaults in place of zero fields.
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

// bodyLimit returns the largest size of a body that a layer stores, for the limit that its policy
// sets. A limit of 0 means the default def, and a negative limit means 0. The result fits in an
// int32.
func bodyLimit(limit, def int64) int64 {
	return min(max(cmp.Or(limit, def), 0), math.MaxInt32)
}
