package grpclayer

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// attempt is the context of one call of gRPC, through which the interceptor and
// the picker share state: gRPC passes neither the reason of a rejection nor the
// first message of a stream between them.
type attempt struct {
	context.Context //nolint:containedctx // it is one

	method  string                  // of the call
	refusal atomic.Pointer[refusal] // of the last pick, if it was refused
	picked  atomic.Pointer[Pick]    // by the last pick, if it was not
	sent    atomic.Bool             // something reached a server, or may have
}

type refusal struct{ err error }

type attemptKey struct{}

// Value finds the attempt itself. One allocation less than context.WithValue.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// attemptOf returns the attempt that ctx is of, or nil.
func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// attemptFor returns the attempt that a pick is for, or nil. A call that is made on
// the way of another, as for its credentials, has that one's context; it is told by
// its method, since it may not have gone through a [Client].
func attemptFor(info balancer.PickInfo) *attempt {
	if a := attemptOf(info.Ctx); a != nil && a.method == info.FullMethodName {
		return a
	}
	return nil
}

// data says that a message came.
func (a *attempt) data() {
	if p := a.picked.Load(); p != nil {
		p.data()
	}
}

// over ends the pick of a unary call that gRPC has left without ending it: where a
// server answers with two messages, and where a codec panics.
func (a *attempt) over(err error) {
	if p := a.picked.Load(); p != nil && !p.ended.Load() {
		p.done(balancer.DoneInfo{Err: err, BytesSent: true, BytesReceived: true})
	}
}

// explain adds the reason and the request to an error of gRPC: see [callError].
func (a *attempt) explain(err error, header, trailer metadata.MD) error {
	if r := a.refusal.Load(); r != nil && !a.sent.Load() {
		return &callError{err: err, refusal: r.err}
	}
	return a.answered(err, header, trailer)
}

// answered is err with what the server said, if it did, and with the time limit
// that it came of.
func (a *attempt) answered(err error, header, trailer metadata.MD) error {
	limit := a.limit(err)
	if limit == nil && len(header) == 0 && len(trailer) == 0 {
		return err
	}
	return &callError{err: err, limit: limit, pushback: trailer.Get(pushbackKey), header: header, trailer: trailer}
}

// limit is the time limit that a CANCELLED of gRPC's comes of, or nil. A limit on
// a part of a call can but cancel its context, and says in the cause what it was:
// gRPC does not look there.
func (a *attempt) limit(err error) error {
	if status.Code(err) != codes.Canceled {
		return nil
	}
	if cause := context.Cause(a.Context); errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// callError is an error of gRPC's with what gRPC does not say.
type callError struct {
	err      error
	refusal  error    // our balancer's, if nothing was sent; then it is one
	limit    error    // that ran out, where gRPC says CANCELLED
	pushback []string // when the server wants to see the call again

	header, trailer metadata.MD // of the answer, if there was one
}

// bare is the error without an answer of which it says nothing more.
func (e *callError) bare() error {
	if e.refusal == nil && e.limit == nil && len(e.pushback) == 0 {
		return e.err
	}
	return e
}

func (e *callError) Error() string {
	if e.reason() == nil {
		return e.err.Error()
	}
	return e.GRPCStatus().String()
}

func (e *callError) Unwrap() []error {
	if reason := e.reason(); reason != nil {
		return []error{reason, e.err}
	}
	return []error{e.err}
}

// GRPCStatus is gRPC's own status. Where gRPC was waiting for a connection, the
// reason is added; where it was a time limit, that is it.
func (e *callError) GRPCStatus() *status.Status {
	st := status.Convert(e.err)
	reason := e.reason()
	if reason == nil {
		return st
	}
	message := reasonOnce(st.Message(), reason.Error())
	if e.limit != nil {
		return status.New(codes.DeadlineExceeded, message)
	}
	return withMessage(st, message)
}

// reason is what gRPC does not say, or nil.
func (e *callError) reason() error {
	if e.refusal != nil {
		return e.refusal
	}
	return e.limit
}
