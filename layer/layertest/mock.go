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

// Mock is a [layer.Service] with a capacity that the test sets. It begins
// without any. Allow adds admissions, and each Call uses one. A Call without an
// admission is rejected at once; a Mock never waits.
//
// The function given to Serve answers admitted requests. Without one, the
// caller of Next does. Use a Mock from any number of goroutines, inside a
// testing/synctest bubble or outside of one.
type Mock[Req, Rsp any] struct {
	mu       sync.Mutex
	allowed  int
	closed   bool
	serve    func(context.Context, Req) (Rsp, error)
	requests []Req
	waiting  []*PendingCall[Req, Rsp] // admitted, and not yet taken by Next

	calls, readies, inFlight, peak int

	// Each is made by its first waiter. A channel made outside a bubble would
	// not block durably in it.
	changed chan struct{} // capacity came, or the end
	arrived chan struct{} // a request was admitted
}

// NewMock returns a Mock without any capacity.
func NewMock[Req, Rsp any]() *Mock[Req, Rsp] { return &Mock[Req, Rsp]{} }

// Allow adds n admissions and wakes every waiting Ready. [Unlimited] never
// ends. It does nothing for n below 1.
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

// Deny takes back every admission that is not used yet.
func (m *Mock[Req, Rsp]) Deny() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allowed = 0
}

// Serve lets f answer the requests that are admitted from now on. It runs in
// the goroutine that calls, so it may wait, panic or call runtime.Goexit. A
// nil f leaves the requests to Next again.
func (m *Mock[Req, Rsp]) Serve(f func(ctx context.Context, req Req) (Rsp, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serve = f
}

// Close refuses everything from now on with an error that matches
// [layer.ErrClosed]. Requests in flight are not disturbed. Closing twice is
// closing once.
func (m *Mock[Req, Rsp]) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	wake(&m.changed)
}

// Ready waits for an admission that is still unused, and leaves it there.
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

// Call uses up an admission and has the request answered, or refuses it. It
// returns the cause of ctx when that ends before the answer comes.
func (m *Mock[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	serve, held, err := m.admit(ctx, req)
	if err != nil {
		return none, err
	}
	defer m.leave()
	if serve != nil {
		return serve(ctx, req)
	}
	select {
	case <-held.answered:
		return held.rsp, held.err
	case <-ctx.Done():
		m.forget(held)
		return none, context.Cause(ctx)
	}
}

// admit decides on one call, and returns the function that answers it.
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
	held := &PendingCall[Req, Rsp]{Req: req, Ctx: ctx, answered: make(chan struct{})}
	m.waiting = append(m.waiting, held)
	wake(&m.arrived)
	return nil, held, nil
}

func (m *Mock[Req, Rsp]) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
}

// forget drops a request whose caller has gone, so that Next never gives it.
func (m *Mock[Req, Rsp]) forget(held *PendingCall[Req, Rsp]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = slices.DeleteFunc(m.waiting, func(h *PendingCall[Req, Rsp]) bool { return h == held })
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
