package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/backoff"
)

// Lazy is a service that is made when it is first used. All who come while it
// is made share that one attempt; after an attempt that failed, the next one
// who comes makes another.
//
// The first caller makes it, in its own goroutine. Like every [MakeService], mk
// returns at once: what has to wait, waits in the Ready or the Call of what it
// makes. Where it takes its time all the same, those who came later wait for
// it as long as their context allows, and the first one until it is done.
//
// Admission: that of the service, once there is one. Before, Ready makes it,
// and tries again while that fails, after 100 ms at first and at most after a
// minute (see [DefaultBackoff]).
//
// Cancellation: a request whose context is done makes nothing and is refused.
// mk does not get the context of the request that happens to be first: what it
// makes is for all.
//
// Body: not touched.
//
// Errors: an error of mk, or a nil service, is a refusal: an [Error] of kind
// [ErrNotReady], the same one for all who shared the attempt. Where mk's error
// matches [ErrClosed], Ready returns it and tries no more. A panic of mk goes to
// the caller whose goroutine it was; the others try for themselves.
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
	attempt *lazyAttempt // nil while nobody makes it
}

// lazyService is something for an atomic pointer to point to.
type lazyService[Req, Rsp any] struct{ Service[Req, Rsp] }

// lazyAttempt is shared by all who come while it lasts.
type lazyAttempt struct {
	over chan struct{}
	err  error // written before over is closed
}

func (l *lazy[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if svc := l.made.Load(); svc != nil {
		return svc.Service.Call(ctx, req)
	}
	var none Rsp
	if gone(ctx) {
		return none, refuseDone(ctx, "lazy", l.target)
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
			return nil, refuseDone(ctx, "lazy", l.target)
		}
	}
}

// make runs mk on behalf of all who wait for a.
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
