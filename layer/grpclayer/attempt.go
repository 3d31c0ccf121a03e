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

// attempt is the context of one call that is sent through gRPC. The picker stores its pick in the
// attempt, or the error if it chose no endpoint. The interceptor reports received messages to that
// pick. A context is used, because gRPC passes no other values from the interceptor to the picker.
type attempt struct {
	context.Context //nolint:containedctx // it is one

	method    string                    // the full name of the method
	rejection atomic.Pointer[pickError] // error of the last pick; nil if that pick succeeded
	picked    atomic.Pointer[Pick]      // the result of the last pick that was not rejected
	sent      atomic.Bool               // the call may have reached a server
}

type pickError struct{ err error }

type attemptKey struct{}

// Value returns the attempt itself for attemptKey, and for other keys the value of the
// parent. So the attempt needs no context.WithValue, which would allocate.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// attemptOf returns the attempt that ctx carries, or nil.
func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// attemptFor returns the attempt of the call that info describes, or nil if the call has none. A
// call may make another call with its context, for example to get its credentials. For the other
// call, attemptFor returns nil, because that call has another method.
func attemptFor(info balancer.PickInfo) *attempt {
	if a := attemptOf(info.Ctx); a != nil && a.method == info.FullMethodName {
		return a
	}
	return nil
}

// data reports a received message to the observers of the pick.
func (a *attempt) data() {
	if p := a.picked.Load(); p != nil {
		p.data()
	}
}

// endPick ends the pick of a call with the error err, unless gRPC has ended the pick. gRPC
// does not end a pick if the server of a unary call sends two messages, or if a codec
// panics.
func (a *attempt) endPick(err error) {
	if p := a.picked.Load(); p != nil && !p.ended.Load() {
		p.done(balancer.DoneInfo{Err: err, BytesSent: true, BytesReceived: true})
	}
}

// explain adds the reason for a failure to err, an error of gRPC. If the last pick was rejected and
// the call was not sent, the reason is that rejection. Otherwise explain returns the result of
// withDetails, which adds the metadata of the response and the time limit of a layer.
func (a *attempt) explain(err error, header, trailer metadata.MD) error {
	if r := a.rejection.Load(); r != nil && !a.sent.Load() {
		return &callError{err: err, rejection: r.err}
	}
	return a.withDetails(err, header, trailer)
}

// withDetails returns err with the header and trailer of the server. If the time limit of a
// layer canceled the call, the result includes that limit. Without a header, a trailer and
// a limit, it returns err itself.
func (a *attempt) withDetails(err error, header, trailer metadata.MD) error {
	limit := a.limit(err)
	if limit == nil && len(header) == 0 && len(trailer) == 0 {
		return err
	}
	return &callError{err: err, limit: limit, pushback: trailer.Get(pushbackKey), header: header, trailer: trailer}
}

// limit returns the error of a layer's time limit if that limit canceled the call, and otherwise
// nil. After such a cancellation, gRPC returns CANCELLED, and only the cause of the context has the
// error of the limit. This error matches [context.DeadlineExceeded].
func (a *attempt) limit(err error) error {
	if status.Code(err) != codes.Canceled {
		return nil
	}
	if cause := context.Cause(a.Context); errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// callError is an error that gRPC returned, with the facts that gRPC's error does not have:
// the rejection by the balancer, the time limit that ended the call, and the metadata of the
// response.
type callError struct {
	err       error
	rejection error    // the error of the balancer, if nothing was sent; or nil
	limit     error    // the time limit of a layer that canceled the call, or nil
	pushback  []string // the values of grpc-retry-pushback-ms in the trailer

	header, trailer metadata.MD // of the response, if any
}

// simplified returns the error for the caller of the interceptor. It returns e if e has a
// rejection, a time limit, or a pushback, which is a wait that the server requests.
// Otherwise it returns the unchanged error of gRPC.
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

// GRPCStatus returns the status of the error of gRPC. If a pick was rejected or a time
// limit expired, the message includes the reason. For a time limit, the code is
// DEADLINE_EXCEEDED.
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

// reason returns the rejection of the pick, or else the time limit that expired. It returns
// nil if e has neither.
func (e *callError) reason() error {
	if e.rejection != nil {
		return e.rejection
	}
	return e.limit
}
