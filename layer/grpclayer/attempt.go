package grpclayer

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// attempt is the context of one call as it is given to gRPC, on which the
// interceptor and the picker meet: gRPC lets neither the reason of a refusal
// nor the first message of a stream through from one to the other.
type attempt struct {
	context.Context //nolint:containedctx // it is one

	refusal atomic.Pointer[refusal] // of the last pick, if it was refused
	picked  atomic.Pointer[Picked]  // by the last pick, if it was not
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

// data says that a message came.
func (a *attempt) data() {
	if p := a.picked.Load(); p != nil {
		p.data()
	}
}

// explain makes of the error that gRPC gave one that says why, and what is
// known of the request: see [callError].
func (a *attempt) explain(err error, header, trailer metadata.MD) error {
	r := a.refusal.Load()
	pushback := trailer.Get(pushbackKey)
	switch {
	case r != nil && !a.sent.Load():
		return &callError{err: err, refusal: r.err}
	case len(header) > 0 || len(trailer) > 0:
		return &callError{err: err, pushback: pushback, header: header, trailer: trailer}
	}
	return err
}

// callError is an error of gRPC's with what gRPC does not say.
type callError struct {
	err      error
	refusal  error    // our balancer's, if nothing was sent; then it is one
	pushback []string // when the server wants to see the call again

	header, trailer metadata.MD // of the answer, if there was one
}

// bare is the error without an answer of which it says nothing more.
func (e *callError) bare() error {
	if e.refusal == nil && len(e.pushback) == 0 {
		return e.err
	}
	return e
}

func (e *callError) Error() string {
	if e.refusal == nil {
		return e.err.Error()
	}
	return e.GRPCStatus().String()
}

func (e *callError) Unwrap() []error {
	if e.refusal == nil {
		return []error{e.err}
	}
	return []error{e.refusal, e.err}
}

// GRPCStatus is gRPC's own status. Where gRPC was waiting for a connection, the
// reason is added.
func (e *callError) GRPCStatus() *status.Status {
	st := status.Convert(e.err)
	if e.refusal == nil {
		return st
	}
	return withMessage(st, reasonOnce(st.Message(), e.refusal.Error()))
}
