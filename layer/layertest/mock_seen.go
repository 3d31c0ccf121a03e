package layertest

import (
	"context"
	"slices"
	"sync"
)

// PendingCall is a request that a [Mock] has admitted and that waits for its answer.
type PendingCall[Req, Rsp any] struct {
	Req Req
	Ctx context.Context // what Call was given

	once     sync.Once
	answered chan struct{}
	rsp      Rsp
	err      error
}

// Respond answers the request. Only the first answer counts.
func (h *PendingCall[Req, Rsp]) Respond(rsp Rsp) { h.answer(rsp, nil) }

// Fail answers the request with an error. Only the first answer counts.
func (h *PendingCall[Req, Rsp]) Fail(err error) {
	var none Rsp
	h.answer(none, err)
}

func (h *PendingCall[Req, Rsp]) answer(rsp Rsp, err error) {
	h.once.Do(func() {
		h.rsp, h.err = rsp, err
		close(h.answered)
	})
}

// Next takes the request that was admitted first of those not yet taken. It
// waits for one until ctx is done, and then returns the cause.
func (m *Mock[Req, Rsp]) Next(ctx context.Context) (*PendingCall[Req, Rsp], error) {
	m.mu.Lock()
	for len(m.waiting) == 0 {
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
	held := m.waiting[0]
	m.waiting = slices.Delete(m.waiting, 0, 1)
	return held, nil
}

// Requests returns the requests that were admitted, in their order.
func (m *Mock[Req, Rsp]) Requests() []Req {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Calls returns how many times Call was called, refusals included.
func (m *Mock[Req, Rsp]) Calls() int { return m.count(&m.calls) }

// ReadyCalls returns how many times Ready was called.
func (m *Mock[Req, Rsp]) ReadyCalls() int { return m.count(&m.readies) }

// InFlight returns how many calls are admitted and have not returned.
func (m *Mock[Req, Rsp]) InFlight() int { return m.count(&m.inFlight) }

// MaxInFlight returns the most calls that were in flight at one time.
func (m *Mock[Req, Rsp]) MaxInFlight() int { return m.count(&m.peak) }

func (m *Mock[Req, Rsp]) count(n *int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *n
}
