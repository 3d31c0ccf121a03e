package layertest

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/gotower/gotower/layer"
)

// Unlimited, given to [Mock.Allow], lets every call in.
const Unlimited = math.MaxInt

// Mock is a [layer.Service] with a capacity that the test sets. The capacity is zero at first.
// Allow adds admissions, and each Call uses one. A Call without capacity is rejected at once.
//
// The function of Serve, or else the caller of Next, responds to admitted requests. A Mock is
// safe for concurrent use, inside and outside of testing/synctest bubbles.
type Mock[Req, Rsp any] struct {
	mu       sync.Mutex
	allowed  int
	closed   bool
	serve    func(context.Context, Req) (Rsp, error)
	requests []Req
	pending  []*PendingCall[Req, Rsp] // admitted, and not yet returned by Next

	calls, readies, inFlight, peak int

	// The first waiter makes the channel, because a channel made outside a
	// synctest bubble does not block durably in it.
	changed chan struct{} // closed by new capacity and by Close
	arrived chan struct{} // closed when a request is admitted
}

// NewMock returns a Mock without any capacity.
func NewMock[Req, Rsp any]() *Mock[Req, Rsp] { return &Mock[Req, Rsp]{} }

// Allow adds n admissions and wakes every waiting Ready. [Unlimited] admits all
// calls. It does nothing for n below 1.
func (m *Mock[Req, Rsp]) Allow(n int) {
	if n < 1 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.allowed > Unlimited-n {
		m.allowed = Unlimited
	} else {
		m.allowed += n
	}
	wake(&m.changed)
}

// Deny removes all unused admissions.
func (m *Mock[Req, Rsp]) Deny() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed = 0
}

// Serve sets the function that responds to requests admitted from now on. It
// runs in the goroutine of the caller, so it may wait, panic or call
// runtime.Goexit. With a nil f, Next returns the requests.
func (m *Mock[Req, Rsp]) Serve(f func(ctx context.Context, req Req) (Rsp, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serve = f
}

// Close rejects all further calls with an error that matches [layer.ErrClosed].
// Requests in flight continue. Further calls of Close do nothing.
func (m *Mock[Req, Rsp]) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	wake(&m.changed)
}

// Ready waits for capacity, and does not use it.
func (m *Mock[Req, Rsp]) Ready(ctx context.Context) error {
	m.mu.Lock()
	m.readies++
	for {
		if m.closed {
			m.mu.Unlock()
			return &layer.Error{Layer: "mock", Kind: layer.ErrClosed}
		}
		if m.allowed > 0 {
			m.mu.Unlock()
			return nil
		}
		changed := await(&m.changed)
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		m.mu.Lock()
	}
}

// Call uses an admission and waits for the response, or rejects the request. It
// returns the cause of ctx if that ends before the response arrives.
func (m *Mock[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	serve, pending, err := m.admit(ctx, req)
	if err != nil {
		return zero, err
	}
	defer m.leave()
	if serve != nil {
		return serve(ctx, req)
	}
	select {
	case <-pending.done:
		return pending.rsp, pending.err
	case <-ctx.Done():
		m.forget(pending)
		return zero, context.Cause(ctx)
	}
}

// admit decides on one call, and returns the function or the PendingCall that responds to it.
func (m *Mock[Req, Rsp]) admit(ctx context.Context, req Req) (func(context.Context, Req) (Rsp, error), *PendingCall[Req, Rsp], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	switch {
	case ctx.Err() != nil:
		return nil, nil, &layer.Error{Layer: "mock", Kind: layer.ErrNotReady, Reason: "canceled by the caller", Err: context.Cause(ctx)}
	case m.closed:
		return nil, nil, &layer.Error{Layer: "mock", Kind: layer.ErrClosed}
	case m.allowed == 0:
		return nil, nil, &layer.Error{Layer: "mock", Kind: layer.ErrNotReady, Reason: "nothing allowed"}
	case m.allowed != Unlimited:
		m.allowed--
	}
	m.requests = append(m.requests, req)
	m.inFlight++
	m.peak = max(m.peak, m.inFlight)
	if m.serve != nil {
		return m.serve, nil, nil
	}
	pending := &PendingCall[Req, Rsp]{Req: req, Ctx: ctx, done: make(chan struct{})}
	m.pending = append(m.pending, pending)
	wake(&m.arrived)
	return nil, pending, nil
}

func (m *Mock[Req, Rsp]) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
}

// forget removes a canceled request, so that Next does not return it.
func (m *Mock[Req, Rsp]) forget(canceled *PendingCall[Req, Rsp]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = slices.DeleteFunc(m.pending, func(p *PendingCall[Req, Rsp]) bool { return p == canceled })
}

// await returns the channel that wake will close.
func await(c *chan struct{}) <-chan struct{} {
	if *c == nil {
		*c = make(chan struct{})
	}
	return *c
}

func wake(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// PendingCall is an admitted request of a [Mock] that waits for its response.
type PendingCall[Req, Rsp any] struct {
	Req Req
	Ctx context.Context // of Call

	once sync.Once
	done chan struct{}
	rsp  Rsp
	err  error
}

// Respond ends the call with rsp, unless it has ended.
func (p *PendingCall[Req, Rsp]) Respond(rsp Rsp) { p.end(rsp, nil) }

// Fail ends the call with err, unless it has ended.
func (p *PendingCall[Req, Rsp]) Fail(err error) {
	var zero Rsp
	p.end(zero, err)
}

func (p *PendingCall[Req, Rsp]) end(rsp Rsp, err error) {
	p.once.Do(func() {
		p.rsp, p.err = rsp, err
		close(p.done)
	})
}

// Next removes and returns the oldest pending request. It waits for one until
// ctx ends, and then returns the cause.
func (m *Mock[Req, Rsp]) Next(ctx context.Context) (*PendingCall[Req, Rsp], error) {
	m.mu.Lock()
	for len(m.pending) == 0 {
		arrived := await(&m.arrived)
		m.mu.Unlock()
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	next := m.pending[0]
	m.pending = slices.Delete(m.pending, 0, 1)
	return next, nil
}

// Requests returns the admitted requests in order of admission.
func (m *Mock[Req, Rsp]) Requests() []Req {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Calls returns the number of calls of Call, including rejected ones.
func (m *Mock[Req, Rsp]) Calls() int { return m.count(&m.calls) }

// ReadyCalls returns the number of calls of Ready.
func (m *Mock[Req, Rsp]) ReadyCalls() int { return m.count(&m.readies) }

// InFlight returns the number of admitted calls that have not returned.
func (m *Mock[Req, Rsp]) InFlight() int { return m.count(&m.inFlight) }

// MaxInFlight returns the maximum of calls that were in flight at one time.
func (m *Mock[Req, Rsp]) MaxInFlight() int { return m.count(&m.peak) }

func (m *Mock[Req, Rsp]) count(n *int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *n
}
