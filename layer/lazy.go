package layer

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
)

// Lazy returns a service that mk makes on first use. Like every [MakeService], mk should return
// at once, because other callers wait for it. Use [Reconnect] if making the service may fail.
//
// Admission: the service that mk made decides. Ready makes the service, then waits for it.
//
// Cancellation: a request is rejected, and does not make the service, if its context has ended.
//
// Body: not touched.
//
// Errors: passed unchanged. If mk panics, the panic reaches the caller that ran mk. The next
// caller runs mk again. Lazy panics if mk returns nil.
//
// Cost: an atomic load; no allocation.
//
// It panics if mk is nil.
func Lazy[Req, Rsp any](mk func() Service[Req, Rsp], opts ...Option[Rsp]) Service[Req, Rsp] {
	check(mk != nil, "Lazy: nil function")
	l := &lazy[Req, Rsp]{mk: mk}
	if len(opts) > 0 { // without an allocation for a router's many routes
		l.target = newOptions(opts).target
	}
	return l
}

// lazy is the service that [Lazy] returns.
type lazy[Req, Rsp any] struct {
	mk     func() Service[Req, Rsp]
	target string

	mu  sync.Mutex
	svc atomic.Pointer[Service[Req, Rsp]]
}

// Call calls the service, which the first call makes.
func (l *lazy[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if l.svc.Load() == nil && reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "lazy", l.target)
	}
	return l.service().Call(ctx, req)
}

// Ready calls Ready of the service, which it makes if necessary.
func (l *lazy[Req, Rsp]) Ready(ctx context.Context) error { return l.service().Ready(ctx) }

// service returns the service, and makes it if it does not exist yet.
func (l *lazy[Req, Rsp]) service() Service[Req, Rsp] {
	if svc := l.svc.Load(); svc != nil {
		return *svc
	}
	return l.make()
}

// make makes the service and returns it. If another goroutine is making it already, make waits for the lock and
// returns what that goroutine has made.
func (l *lazy[Req, Rsp]) make() Service[Req, Rsp] {
	l.mu.Lock()
	defer l.mu.Unlock()
	// It was made during the wait for the lock.
	if svc := l.svc.Load(); svc != nil {
		return *svc
	}
	svc := l.mk()
	check(svc != nil, "Lazy: the function returned no service")
	l.svc.Store(&svc)
	return svc
}

// Describe returns whether the service was made, and the service.
func (l *lazy[Req, Rsp]) Describe() Node {
	svc := l.svc.Load()
	n := Node{Name: "lazy", State: State{{"made", svc != nil}}}
	if svc != nil {
		n.Next = new(Describe(*svc))
	}
	return n
}
