package layer

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
)

// Lazy returns a service that mk makes at its first use. Like every [MakeService], mk
// should return at once, because other callers wait for it. Use [Reconnect] if making the
// service may fail.
//
// Admission: the made service decides. Ready makes the service, then waits for it.
//
// Cancellation: a request is rejected, and does not make the service, if its context has ended.
//
// Body: not touched.
//
// Errors: passed unchanged. If mk panics, the panic reaches the caller that ran mk. The
// next caller runs mk again. Lazy panics if mk returns nil.
//
// Cost: an atomic load; no allocation.
//
// It panics if mk is nil.
func Lazy[Req, Rsp any](mk func() Service[Req, Rsp], opts ...Option[Rsp]) Service[Req, Rsp] {
	check(mk != nil, "Lazy: nil function")
	return &lazy[Req, Rsp]{mk: mk, target: newOptions(opts).target}
}

type lazy[Req, Rsp any] struct {
	mk     func() Service[Req, Rsp]
	target string

	mu   sync.Mutex
	made atomic.Pointer[Service[Req, Rsp]]
}

func (l *lazy[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if l.made.Load() == nil && reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "lazy", l.target)
	}
	return l.service().Call(ctx, req)
}

func (l *lazy[Req, Rsp]) Ready(ctx context.Context) error { return l.service().Ready(ctx) }

func (l *lazy[Req, Rsp]) service() Service[Req, Rsp] {
	if svc := l.made.Load(); svc != nil {
		return *svc
	}
	return l.make()
}

func (l *lazy[Req, Rsp]) make() Service[Req, Rsp] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if svc := l.made.Load(); svc != nil {
		return *svc
	}
	svc := l.mk()
	check(svc != nil, "Lazy: the function returned no service")
	l.made.Store(&svc)
	return svc
}

func (l *lazy[Req, Rsp]) Describe() Node {
	svc := l.made.Load()
	n := Node{Name: "lazy", State: State{{"made", svc != nil}}}
	if svc != nil {
		n.Next = new(Describe(*svc))
	}
	return n
}
