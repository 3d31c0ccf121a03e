package simulation

import (
	"context"
	"errors"
	"time"
)

// request is one request and its response: the real balancer is given it as
// both.
type request struct {
	ctx    context.Context
	cancel context.CancelFunc

	// Drawn when it arrives, so that it is the same under every policy.
	sent      time.Duration
	client    int
	size      float64 // standard normal: how much work it is
	stream    bool
	impatient bool // its caller leaves

	to      int // the backend, or -1: refused
	nth     int // of that backend's requests, from 0
	answer  answer
	working bool // it holds a worker

	over bool
	head time.Duration
	end  time.Duration
	err  error

	// What the policy wants to hear.
	onHead func(now time.Duration)
	onEnd  func(now time.Duration, err error)
}

// answer is what a backend makes of a request, from when a worker takes it.
type answer struct {
	head, end time.Duration
	err       error
}

var errBackend = errors.New("unavailable")

// latency is what the caller waited for the head. A failure is no fast answer:
// it counts as the deadline at the least, and is never good.
func (r *request) latency(deadline time.Duration) time.Duration {
	if r.err != nil {
		return max(r.end-r.sent, deadline)
	}
	return r.head - r.sent
}

func (r *request) good(deadline time.Duration) bool { return r.err == nil && r.head-r.sent <= deadline }
