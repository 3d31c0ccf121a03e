package layer

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
)

// Lazy returns a service that mk makes at its first use. Like every [MakeService], mk
// should return at once, because other callers wait for it. Use [Reconnect] if making
// the service may fail.
//
// Admission: the service decides. Ready makes the service.
//
// Cancellation: a request whose context has ended is rejected and does not make the service.
//
// Body: not touched.
//
// Errors: passed unchanged. A panic of mk reaches the caller that called it, and the
// next caller calls mk again. Lazy panics if mk returns nil.
//
// Cost: an atomic load; no allocation.
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

func (l *lazy[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if reqctx.Ended(ctx) {
		var zero Rsp
		return zero, rejectDone(ctx, "lazy", l.target)
	}
	return l.service().Call(ctx, req)
}

func (l *lazy[Req, Rsp]) Ready(ctx context.Context) error { return l.service().Ready(ctx) }

func (l *lazy[Req, Rsp]) service() Service[Req, Rsp] {
	if svc := l.made.Load(); svc != nil {
		return *svc
	}
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
