package layertest

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
)

// Unlimited, passed to [Mock.Allow], admits any number of calls.
const Unlimited = math.MaxInt

// Mock is a [layer.Service] with a capacity that the test sets. The capacity is zero at
// first. Allow adds admissions, and each admitted Call uses one. A Call without capacity
// is rejected at once.
//
// The function set by Serve returns the response to an admitted request. Without such a
// function, Call waits until its context ends. A Mock is safe for concurrent use, inside
// and outside of testing/synctest bubbles.
type Mock[Req, Rsp any] struct {
	changed notify.Broadcast // wakes the waiting calls of Ready

	mu       sync.Mutex
	allowed  int // unused admissions; Unlimited for any number
	closed   bool
	serve    func(context.Context, Req) (Rsp, error) // nil means to wait until the context ends
	requests []Req                                   // the admitted ones

	calls, readies int // numbers of calls of Call and Ready
	inFlight, peak int // admitted calls that have not returned, and their maximum
}

// NewMock returns a Mock with a capacity of zero: it rejects every call until Allow is called.
func NewMock[Req, Rsp any]() *Mock[Req, Rsp] { return &Mock[Req, Rsp]{} }

// Allow adds n admissions and wakes every waiting Ready. With [Unlimited] all calls are
// admitted. If n is below 1, it does nothing.
func (m *Mock[Req, Rsp]) Allow(n int) {
	if n < 1 {
		return
	}
	m.mu.Lock()
	// The comparison cannot overflow, as the sum could.
	if m.allowed > Unlimited-n {
		m.allowed = Unlimited
	} else {
		m.allowed += n
	}
	m.mu.Unlock()
	m.changed.Wake()
}

// Deny removes all unused admissions.
func (m *Mock[Req, Rsp]) Deny() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed = 0
}

// Serve sets the function that responds to the requests that are admitted from now on. Call runs f
// on its caller's goroutine, so f may wait, panic or call runtime.Goexit.
func (m *Mock[Req, Rsp]) Serve(f func(ctx context.Context, req Req) (Rsp, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serve = f
}

// Close makes the Mock reject all further calls with an error that matches
// [layer.ErrClosed]. Requests in flight continue. Further calls of Close do nothing.
func (m *Mock[Req, Rsp]) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.changed.Wake()
}

// Ready waits until there is capacity, but does not use it. It returns an error if ctx
// ends first or the Mock is closed.
func (m *Mock[Req, Rsp]) Ready(ctx context.Context) error {
	m.mu.Lock()
	m.readies++
	m.mu.Unlock()
	closed := false // what the function saw last
	err := m.changed.Wait(ctx, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		// The mock may change once mu is free, so the result depends on what was seen here.
		closed = m.closed
		return closed || m.allowed > 0
	})
	if closed {
		return &layer.Error{Layer: "mock", Kind: layer.ErrClosed}
	}
	return err
}

// Call uses an admission and returns what the function set by Serve returns. Without capacity, or
// if ctx has ended, it rejects the request.
func (m *Mock[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	serve, err := m.admit(ctx, req)
	if err != nil {
		return zero, err
	}
	defer m.leave()
	if serve != nil {
		return serve(ctx, req)
	}
	// Without a function to serve, the mock hangs until the caller gives up.
	<-ctx.Done()
	return zero, context.Cause(ctx)
}

// admit uses an admission for one call and returns the function of Serve, or returns the
// rejection.
func (m *Mock[Req, Rsp]) admit(ctx context.Context, req Req) (func(context.Context, Req) (Rsp, error), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	switch {
	case ctx.Err() != nil:
		return nil, &layer.Error{Layer: "mock", Kind: layer.ErrNotReady, Reason: "canceled by the caller", Err: context.Cause(ctx)}
	case m.closed:
		return nil, &layer.Error{Layer: "mock", Kind: layer.ErrClosed}
	case m.allowed == 0:
		return nil, &layer.Error{Layer: "mock", Kind: layer.ErrNotReady, Reason: "nothing allowed"}
	case m.allowed != Unlimited:
		m.allowed--
	}
	m.requests = append(m.requests, req)
	m.inFlight++
	m.peak = max(m.peak, m.inFlight)
	return m.serve, nil
}

// leave counts an admitted call as returned, for InFlight.
func (m *Mock[Req, Rsp]) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
}

// Requests returns the admitted requests, in the order of their admission.
func (m *Mock[Req, Rsp]) Requests() []Req {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Calls returns how often Call was called, including rejected calls.
func (m *Mock[Req, Rsp]) Calls() int { return m.count(&m.calls) }

// ReadyCalls returns how often Ready was called.
func (m *Mock[Req, Rsp]) ReadyCalls() int { return m.count(&m.readies) }

// InFlight returns how many admitted calls have not returned.
func (m *Mock[Req, Rsp]) InFlight() int { return m.count(&m.inFlight) }

// MaxInFlight returns the largest number of calls that were in flight at the same time.
func (m *Mock[Req, Rsp]) MaxInFlight() int { return m.count(&m.peak) }

// count returns the counter n, which mu guards.
func (m *Mock[Req, Rsp]) count(n *int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *n
}
