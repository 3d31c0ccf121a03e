package simulation

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/layer"
)

// call is a request of a caller, with all of its attempts. Its random numbers are drawn when
// it arrives, so that they are the same for every policy.
type call struct {
	tier, client int
	size         float64 // standard normal: the amount of work
	kind         float64 // 0 to 1: streams, expensive requests, impatient callers
	luck         float64 // 0 to 1: random failures

	sent     time.Duration
	head     time.Duration // 0 without a response
	ended    time.Duration
	err      error
	over     bool
	attempts []*request
	tried    *layer.Attempts
	done     func(err error) // of a call between two tiers
}

func (c *call) end(now time.Duration, err error) {
	c.over, c.ended, c.err = true, now, err
	if c.done != nil {
		c.done(err)
	}
}

// latency is the time to the headers. A failure counts as the deadline at least, because a
// fast failure is not a fast response.
func (c *call) latency(deadline time.Duration) time.Duration {
	if c.err != nil {
		return max(c.ended-c.sent, deadline)
	}
	return c.head - c.sent
}

func (c *call) good(deadline time.Duration) bool { return c.err == nil && c.head-c.sent <= deadline }

// request is one attempt. The real balancer gets it as the request and as the response.
type request struct {
	*call
	ctx      callerContext
	sent     time.Duration
	to       int // the backend, or -1 for a rejection
	nth      int // its number among the requests of the backend
	inFlight int // requests at the backend when it arrived
	working  bool
	began    time.Duration // of its work
	over     bool
	head     time.Duration
	err      error

	// The callbacks of the policy.
	onHead func(now time.Duration)
	onEnd  func(now time.Duration, err error)
}

// callerContext is a context that ends without a goroutine or a timer.
type callerContext struct {
	context.Context // has the values
	err             error
}

func (c *callerContext) Err() error { return c.err }

// answer is the result of a request, relative to its start at a worker.
type answer struct {
	head, end time.Duration
	err       error
}

// The errors of a backend: it is unavailable, or the application has failed.
var (
	errBackend     = errors.New("unavailable")
	errApplication = errors.New("internal")
)
