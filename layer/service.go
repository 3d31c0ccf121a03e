package layer

import (
	"context"
	"errors"
)

// Service serves requests. It is the one interface of this library: clients,
// servers, balancers, queues and limits are all Services.
//
// A Service is shared by every goroutine that wants to call it; both methods
// are safe for concurrent use. Nothing is reserved between them.
type Service[Req, Rsp any] interface {
	// Ready waits until a Call made now would probably be admitted. It
	// reserves nothing: a nil answer is a hint, and only Call decides.
	//
	// Ready looks at capacity before it looks at ctx, so a ctx that is
	// already done makes it a poll (see [Poll]). It returns nil; an error that
	// matches the cause of ctx, and may say why the service is not ready; or
	// one that matches [ErrClosed]: it will never be ready again. Use it in
	// accept loops, for fail-over, and to learn when an endpoint is back;
	// never before each request.
	Ready(ctx context.Context) error

	// Call admits the request and serves it, or refuses it untouched.
	//
	// A refusal is an error that matches [ErrNotReady]. It promises that the
	// request is as it was: no byte of its body read, no header changed,
	// nothing sent; the caller may send it elsewhere. Any other error means
	// that the request may have been processed.
	//
	// What Call returns may outlive it: a response body is read after Call
	// returned, so ctx must stay alive until that body was closed.
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

// MakeService builds the Service of a target: a router has one made for each route, a
// balancer one for each endpoint, a cache one for each key. It must return at
// once; what has to wait (a dial, a look-up) waits in Ready or Call.
type MakeService[T, Req, Rsp any] func(target T) Service[Req, Rsp]

// Func is a function as a Service. It is always ready, and refuses a request
// whose context is done.
type Func[Req, Rsp any] func(ctx context.Context, req Req) (Rsp, error)

// Ready returns nil.
func (f Func[Req, Rsp]) Ready(context.Context) error { return nil }

// Call runs f, unless ctx is done.
func (f Func[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if gone(ctx) {
		var none Rsp
		return none, refuseDone(ctx, "func", "")
	}
	return f(ctx, req)
}

// Poll says whether svc is ready now, without waiting: nil, an error that
// matches [ErrNotReady] and may say why, or one that matches [ErrClosed].
func Poll[Req, Rsp any](svc Service[Req, Rsp]) error {
	return svc.Ready(polled)
}

// polled is done before it is ever used: Ready of a ready service returns nil
// all the same, and Ready of any other returns its cause.
var polled = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotReady)
	return ctx
}()

// readyWhile is Ready of svc, for no longer than life goes on: svc may wait for
// something else. Whoever calls it looks at life when it returns. What svc hears is
// not why life ended: that may match [ErrClosed], and what is below may be shared,
// and is not closed.
func readyWhile[Req, Rsp any](ctx, life context.Context, svc Service[Req, Rsp]) error {
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

// isBare reports whether err is no more than a value: nothing of ours, nor around
// another. The cause that polled has is one, and does not say why.
func isBare(err error) bool {
	_, ours := errors.AsType[*Error](err)
	return !ours && errors.Unwrap(err) == nil
}
