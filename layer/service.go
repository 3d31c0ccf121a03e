package layer

import (
	"context"
	"errors"

	"github.com/gotower/gotower/internal/reqctx"
)

// Service serves requests. It is the one interface of this library: clients,
// servers, balancers, queues and limits are all Services.
//
// All goroutines may share a Service; both methods are safe for concurrent use.
// Nothing is reserved between them.
type Service[Req, Rsp any] interface {
	// Ready waits until a Call would probably be admitted. It reserves nothing:
	// only Call decides.
	//
	// Ready looks at capacity before it looks at ctx, so a ctx that has ended
	// makes it a poll (see [Poll]). It returns nil, or an error that matches
	// the cause of ctx and may give a reason. An error that matches [ErrClosed]
	// means never ready again. Use Ready in accept loops, for failover, and to
	// learn when an endpoint has recovered; never before each request.
	Ready(ctx context.Context) error

	// Call admits and serves the request, or rejects it untouched.
	//
	// A rejection is an error that matches [ErrNotReady]. It promises that no
	// byte of the request's body was read, no header was changed and nothing
	// was sent, so the caller may send the request elsewhere. Any other error
	// means that the request may have been processed.
	//
	// The result may outlive Call: a response body is read after Call returned,
	// so ctx must stay alive until that body is closed.
	Call(ctx context.Context, req Req) (Rsp, error)
}

// Layer wraps a Service in another one. Applying a layer starts no goroutine
// and does no I/O.
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

// MakeService builds the Service of a target. A router calls it for each route,
// a balancer for each endpoint, a cache for each key. It must return at once;
// dials and look-ups belong into Ready or Call.
type MakeService[T, Req, Rsp any] func(target T) Service[Req, Rsp]

// Func adapts a function to a Service. It is always ready, and rejects a
// request whose context has ended.
type Func[Req, Rsp any] func(ctx context.Context, req Req) (Rsp, error)

// Ready returns nil.
func (f Func[Req, Rsp]) Ready(context.Context) error { return nil }

// Call runs f, unless ctx has ended.
func (f Func[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if reqctx.Ended(ctx) {
		var zero Rsp
		return zero, rejectDone(ctx, "func", "")
	}
	return f(ctx, req)
}

// Poll returns nil if svc is ready now, else an error that matches
// [ErrNotReady] with the reason, or [ErrClosed]. It does not wait.
func Poll[Req, Rsp any](svc Service[Req, Rsp]) error {
	return svc.Ready(polled)
}

// polled is a context that has ended. With it, Ready of a ready service returns
// nil and Ready of any other returns its cause.
var polled = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotReady)
	return ctx
}()

// ReadyWhile returns the error of svc.Ready, which it ends when life ends. It is for a
// service that may end before svc does: the caller checks life afterwards. svc does not
// see the cause of life, because it may match [ErrClosed] and svc may be shared and open.
func ReadyWhile[Req, Rsp any](ctx, life context.Context, svc Service[Req, Rsp]) error {
	if ctx.Err() != nil {
		return svc.Ready(ctx)
	}
	if err := Poll(svc); err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	until, leave := context.WithCancel(ctx)
	defer leave()
	defer context.AfterFunc(life, leave)()
	return svc.Ready(until)
}

// isBare reports whether err is a plain value that wraps nothing, such as the
// cause of polled.
func isBare(err error) bool {
	_, ours := errors.AsType[*Error](err)
	return !ours && errors.Unwrap(err) == nil
}
