package layer

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/gotower/gotower/internal/backoff"
)

// RetryPolicy configures a [Retry]. Zero fields use their defaults.
type RetryPolicy[Req, Rsp any] struct {
	// Budget limits how many retries all requests together may use. Several layers may share it.
	// The default is NewBudget(0, 0, 0), that is, a budget with all defaults. There is no Retry
	// without a budget.
	Budget *Budget

	// MaxAttempts is how often a request may be attempted, the first time included: 1 to 100,
	// default 3.
	MaxAttempts int

	// AttemptTimeout limits the time for which an attempt waits for its response headers, as
	// [ResponseHeaderTimeout] does: with waiting in queues below, and without the upload of the
	// body. An attempt that exceeds it is canceled and may be retried. 0 means no limit. Above a
	// balancer that picks at random, the layer warns about a limit: see [WithLogger].
	AttemptTimeout time.Duration

	// LastUnlimited exempts the last of several attempts from AttemptTimeout. As no retry can
	// follow, its response may come late. The request context still limits it.
	LastUnlimited bool

	// Backoff is the pause between two attempts. The default is 25 ms to 250 ms with a jitter of
	// 0.5. If only one of Min and Max is 0, that field uses its default.
	Backoff Backoff

	// MaxBodyBytes is how many bytes of a request body are stored for retries: default 64 KiB.
	// Once more of the body has been read, the request is not retried any more. If the value is
	// negative, nothing is stored. The body of a request with GetBody is not stored, and may be
	// of any size.
	MaxBodyBytes int64

	// MaxRetryAfter is the longest wait that a service may request, for example by the
	// header Retry-After: default 5 s. If the service requests a longer wait, the failure
	// is returned. If the value is negative, a service that requests a wait ends the
	// retries.
	// The rejection of an open breaker is not retried if it requests a longer wait than Backoff.
	// Other rejections are retried after Backoff, because another endpoint may admit the request.
	MaxRetryAfter time.Duration

	// CanRetry reports whether req may be sent again after a failed attempt. The default is
	// the method Idempotent of the [Protocol]. Rejected attempts are retried without it,
	// because they were not sent.
	CanRetry func(req Req) bool

	// RetryIf reports whether another attempt may succeed after the outcome o. The default
	// returns true for rejections, attempt timeouts, and outcomes of class Retryable or
	// Throttled. It is not called for [ErrClosed], [ErrFailFast], or rejections by limits and
	// queues.
	RetryIf func(o Outcome[Rsp]) bool
}

// The limit of a RetryPolicy's MaxAttempts, and defaults.
const (
	maxRetryTries     = 100
	defaultRetryTries = 3
	defaultRetryBody  = 64 << 10
	defaultRetryAfter = 5 * time.Second
)

// defaultRetryBackoff returns the Backoff of a policy without one.
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
	// A budget of its own for this layer, with the defaults.
	if p.Budget == nil {
		p.Budget = NewBudget(0, 0, 0) // the defaults
	}
	p.MaxAttempts = cmp.Or(p.MaxAttempts, defaultRetryTries)
	p.Backoff = retryBackoff(p.Backoff)
	p.MaxBodyBytes = bodyLimit(p.MaxBodyBytes, defaultRetryBody)
	p.MaxRetryAfter = cmp.Or(p.MaxRetryAfter, defaultRetryAfter)
	return p
}

// retryBackoff returns b with the defaults of a Retry in place of zero fields.
func retryBackoff(b Backoff) Backoff {
	def := defaultRetryBackoff()
	if b == (Backoff{}) {
		return def
	}
	b.Max = cmp.Or(b.Max, max(def.Max, b.Min))
	b.Min = cmp.Or(b.Min, min(def.Min, b.Max))
	return b
}

// bodyLimit returns how many bytes of a body a layer may store, for the value limit of its policy: 0
// means the default def, and a negative limit means 0. The result fits in an int32.
func bodyLimit(limit, def int64) int64 {
	return min(max(cmp.Or(limit, def), 0), math.MaxInt32)
}
