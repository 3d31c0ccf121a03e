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

// attempt is the context of one call of gRPC. The interceptor and the picker share
// state through it, because gRPC passes neither the reason of a rejection nor the first
// message of a stream between them.
type attempt struct {
	context.Context //nolint:containedctx // it is one

	method    string                    // of the call
	rejection atomic.Pointer[pickError] // of the last pick, if it was rejected
	picked    atomic.Pointer[Pick]      // of the last pick, if it was not rejected
	sent      atomic.Bool               // the call may have reached a server
}

type pickError struct{ err error }

type attemptKey struct{}

// Value returns the attempt itself for attemptKey. It avoids an allocation.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// attemptOf returns the attempt of ctx, or nil.
func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// attemptFor returns the attempt of a pick, or nil. A call that is made within another
// one, such as by its credentials, inherits the context of that call. The method
// differs.
func attemptFor(info balancer.PickInfo) *attempt {
	if a := attemptOf(info.Ctx); a != nil && a.method == info.FullMethodName {
		return a
	}
	return nil
}

// data reports a received message to the pick.
func (a *attempt) data() {
	if p := a.picked.Load(); p != nil {
		p.data()
	}
}

// endPick ends the pick of a unary call that gRPC has not ended: after two messages of
// a server, or a panic of a codec.
func (a *attempt) endPick(err error) {
	if p := a.picked.Load(); p != nil && !p.ended.Load() {
		p.done(balancer.DoneInfo{Err: err, BytesSent: true, BytesReceived: true})
	}
}

// explain adds the reason of a rejection to an error of gRPC, see [callError].
func (a *attempt) explain(err error, header, trailer metadata.MD) error {
	if r := a.rejection.Load(); r != nil && !a.sent.Load() {
		return &callError{err: err, rejection: r.err}
	}
	return a.withDetails(err, header, trailer)
}

// withDetails returns err with the metadata of the server and the expired time limit, if any.
func (a *attempt) withDetails(err error, header, trailer metadata.MD) error {
	limit := a.limit(err)
	if limit == nil && len(header) == 0 && len(trailer) == 0 {
		return err
	}
	return &callError{err: err, limit: limit, pushback: trailer.Get(pushbackKey), header: header, trailer: trailer}
}

// limit returns the time limit of a layer that made gRPC return CANCELLED, or nil. Such
// a limit cancels the context of the call, and only the cause of the context names it.
func (a *attempt) limit(err error) error {
	if status.Code(err) != codes.Canceled {
		return nil
	}
	if cause := context.Cause(a.Context); errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// callError is an error of gRPC with more details.
type callError struct {
	err       error
	rejection error    // the rejection of the balancer, if nothing was sent
	limit     error    // the expired limit of a CANCELLED
	pushback  []string // grpc-retry-pushback-ms

	header, trailer metadata.MD // of the response, if any
}

// simplified returns the error of gRPC if there are no details.
func (e *callError) simplified() error {
	if e.rejection == nil && e.limit == nil && len(e.pushback) == 0 {
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

// GRPCStatus returns gRPC's status with the reason of a rejection, or
// DEADLINE_EXCEEDED for an expired limit.
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

// reason returns the rejection or the expired limit, or nil.
func (e *callError) reason() error {
	if e.rejection != nil {
		return e.rejection
	}
	return e.limit
}
