package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/reqctx"
)

// Lazy is a service that is made at its first use. Concurrent callers share one
// attempt. After a failed attempt the next caller makes another.
//
// The first caller runs mk on its own goroutine. Like every [MakeService], mk
// should return at once; the made service may wait in Ready and Call. Other
// callers wait for mk as long as their contexts allow.
//
// Admission: that of the service. Before, Ready makes it, and repeats failed
// attempts with [DefaultBackoff].
//
// Cancellation: a request whose context has ended makes nothing and is
// rejected. mk does not get a request's context, because all callers share the
// service.
//
// Body: not touched.
//
// Errors: an error of mk, or a nil service, is a rejection: an [Error] of kind
// [ErrNotReady]. If mk's error matches [ErrClosed], Ready returns it and makes
// no further attempt. A panic of mk reaches the caller that ran it; the other
// callers make their own attempts.
//
// Cost: an atomic load; no allocation.
func Lazy[Req, Rsp any](mk func() (Service[Req, Rsp], error), opts ...Option[Rsp]) Service[Req, Rsp] {
	check(mk != nil, "Lazy: nil function")
	return &lazy[Req, Rsp]{mk: mk, target: newOptions(opts).target}
}

type lazy[Req, Rsp any] struct {
	mk     func() (Service[Req, Rsp], error)
	target string
	made   atomic.Pointer[lazyService[Req, Rsp]]

	mu      sync.Mutex
	attempt *lazyAttempt // nil without a running attempt
}

// lazyService is something for an atomic pointer to point to.
type lazyService[Req, Rsp any] struct{ Service[Req, Rsp] }

// lazyAttempt is one attempt to make the service.
type lazyAttempt struct {
	over chan struct{}
	err  error // written before over is closed
}

func (l *lazy[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if svc := l.made.Load(); svc != nil {
		return svc.Service.Call(ctx, req)
	}
	var none Rsp
	if reqctx.Ended(ctx) {
		return none, rejectDone(ctx, "lazy", l.target)
	}
	svc, err := l.service(ctx)
	if err != nil {
		return none, err
	}
	return svc.Call(ctx, req)
}

func (l *lazy[Req, Rsp]) Ready(ctx context.Context) error {
	for failures := 0; ; failures++ {
		svc, err := l.service(ctx)
		if err == nil {
			return svc.Ready(ctx)
		}
		if errors.Is(err, ErrClosed) {
			return err
		}
		if ctx.Err() != nil || backoff.Sleep(ctx, backoff.Default().Delay(failures)) != nil {
			return &Error{Layer: "lazy", Target: l.target, Reason: err.Error(), Err: context.Cause(ctx)}
		}
	}
}

// service returns the service, made if it has to be.
func (l *lazy[Req, Rsp]) service(ctx context.Context) (Service[Req, Rsp], error) {
	for {
		l.mu.Lock()
		if svc := l.made.Load(); svc != nil {
			l.mu.Unlock()
			return svc.Service, nil
		}
		a := l.attempt
		if a == nil {
			a = &lazyAttempt{over: make(chan struct{})}
			l.attempt = a
			l.mu.Unlock()
			return l.make(a)
		}
		l.mu.Unlock()
		select {
		case <-a.over:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			return nil, rejectDone(ctx, "lazy", l.target)
		}
	}
}

// make runs mk for all callers that wait for a.
func (l *lazy[Req, Rsp]) make(a *lazyAttempt) (Service[Req, Rsp], error) {
	var svc Service[Req, Rsp]
	defer func() { // after a panic too, with neither a service nor an error
		l.mu.Lock()
		if svc != nil && a.err == nil {
			l.made.Store(&lazyService[Req, Rsp]{svc})
		}
		l.attempt = nil
		l.mu.Unlock()
		close(a.over)
	}()
	made, err := l.mk()
	if err == nil && made == nil {
		err = errors.New("mk returned no service")
	}
	if err != nil {
		a.err = &Error{Layer: "lazy", Target: l.target, Kind: ErrNotReady, Reason: "it could not be made", Err: err}
		return nil, a.err
	}
	svc = made
	return svc, nil
}

func (l *lazy[Req, Rsp]) Describe() Node {
	svc := l.made.Load()
	n := Node{Name: "lazy", State: State{{"made", svc != nil}}}
	if svc != nil {
		next := Describe(svc.Service)
		n.Next = &next
	}
	return n
}
