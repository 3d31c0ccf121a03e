package layer

import (
	"context"
	"errors"

	"github.com/gotower/gotower/internal/reqctx"
)

// Service serves requests. Clients, servers, balancers, queues and limits are all
// Services. Both methods must be safe for concurrent use.
type Service[Req, Rsp any] interface {
	// Ready waits until a Call would probably be admitted. It does not reserve capacity for that
	// Call.
	//
	// Ready checks capacity before ctx. Therefore Ready with a ctx that has ended does not wait,
	// see [Poll]. It returns nil when the service is ready. If ctx ends first, it returns an
	// error that matches ctx's cause, and that may also say why the service is not ready. An
	// error that matches [ErrClosed] means that the service will never be ready again.
	//
	// Use Ready in accept loops, for failover, and to wait until an endpoint has recovered. You
	// should not call it before each request.
	Ready(ctx context.Context) error

	// Call serves the request, or rejects it.
	//
	// A rejection is an error that matches [ErrNotReady]. After a rejection the request was not
	// processed, its headers are unchanged and its body is unread, so the caller may send it
	// elsewhere. After any other error the request may have been processed.
	//
	// The response body may be read after Call has returned, so ctx must not end before that body
	// is closed.
	Call(ctx context.Context, req Req) (Rsp, error)
}

// Layer wraps a Service in another one. Applying a layer must not start a goroutine or do I/O.
//
// Embed the inner Service and override Call; Ready is then forwarded:
//
//	type logged struct{ layer.Service[string, string] }
//
//	func (l logged) Call(ctx context.Context, req string) (string, error) {
//		log.Println(req)
//		return l.Service.Call(ctx, req)
//	}
type Layer[Req, Rsp any] func(next Service[Req, Rsp]) Service[Req, Rsp]

// MakeService makes the [Service] of a target. A router calls it for each route, a balancer
// for each endpoint, and a cache for each key. It must return at once. The Service opens
// connections later, in Ready or Call.
type MakeService[T, Req, Rsp any] func(target T) Service[Req, Rsp]

// Func makes a function a [Service]. It is always ready, and rejects a request if its context has
// ended.
type Func[Req, Rsp any] func(ctx context.Context, req Req) (Rsp, error)

// Ready returns nil at once.
func (f Func[Req, Rsp]) Ready(context.Context) error { return nil }

// Call calls f. If ctx has ended, it rejects the request instead.
func (f Func[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "func", "")
	}
	return f(ctx, req)
}

// Poll returns nil if svc is ready now. Otherwise it returns an error that matches
// [ErrNotReady], or [ErrClosed] if svc will never be ready again. It does not wait.
func Poll[Req, Rsp any](svc Service[Req, Rsp]) error {
	return svc.Ready(polled)
}

// polled is the context with which [Poll] calls Ready. It has already ended with the cause
// ErrNotReady.
var polled = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotReady)
	return ctx
}()

// ReadyWhile calls svc.Ready with a new context that ends when ctx or lifetime ends, and returns
// the result. To svc, the end of lifetime looks like a cancellation, so the caller must check
// afterwards whether lifetime has ended. The new context does not carry lifetime's cause, because
// an [ErrClosed] in it would mean that svc is closed.
func ReadyWhile[Req, Rsp any](ctx, lifetime context.Context, svc Service[Req, Rsp]) error {
	// If ctx has ended, this is a Poll, which needs no new context.
	if ctx.Err() != nil {
		return svc.Ready(ctx)
	}
	// Usually the service is ready, and nothing has to wait.
	if err := Poll(svc); err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	waitCtx, leave := context.WithCancel(ctx)
	defer leave()
	// The deferred call removes the registration with lifetime again.
	defer context.AfterFunc(lifetime, leave)()
	return svc.Ready(waitCtx)
}

// wrapper is embedded by the services of this package's layers. It forwards Ready to the inner service,
// and shows that service to [Describe] and [ClassifierOf].
type wrapper[Req, Rsp any] struct{ Service[Req, Rsp] }

func (w wrapper[Req, Rsp]) Next() Service[Req, Rsp] { return w.Service }
