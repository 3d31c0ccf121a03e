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

// attempt is the context of one call that is sent through gRPC. gRPC calls the balancer's picker with
// this context, and has no other way to pass something between an interceptor and the picker. The
// picker stores its pick in the attempt, or the error if it chose no endpoint. The interceptor reports
// received messages to that pick.
type attempt struct {
	context.Context //nolint:containedctx // it is one

	method    string                    // the full name of the method
	rejection atomic.Pointer[pickError] // error of the last pick; nil if that pick succeeded
	picked    atomic.Pointer[Pick]      // the result of the last pick that was not rejected
	sent      atomic.Bool               // the call may have reached a server
}

// pickError holds the error of a pick, because an atomic.Pointer cannot point to an interface's value.
type pickError struct{ err error }

// attemptKey is the context key under which Value returns the attempt.
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

// attemptFor returns the attempt for the call that info describes, or nil if there is none. A
// call may make another call with its context, for example to get its credentials. For that other
// call, attemptFor returns nil, because the method differs.
func attemptFor(info balancer.PickInfo) *attempt {
	if a := attemptOf(info.Ctx); a != nil && a.method == info.FullMethodName {
		return a
	}
	return nil
}

// data reports a received message to the pick's observers.
func (a *attempt) data() {
	if p := a.picked.Load(); p != nil {
		p.data()
	}
}

// endPick ends the pick of a call with the error err, unless gRPC has ended the pick. Otherwise the
// endpoint's slots would stay taken: gRPC does not end a pick if the server of a unary call sends two
// messages, or if a codec panics.
func (a *attempt) endPick(err error) {
	// gRPC has not ended the pick. BytesSent and BytesReceived make err count as the server's.
	if p := a.picked.Load(); p != nil && !p.ended.Load() {
		p.done(balancer.DoneInfo{Err: err, BytesSent: true, BytesReceived: true})
	}
}

// explain adds the reason for a failure to err, an error from gRPC. If the last pick was rejected and
// the call was not sent, the reason is that rejection, of which gRPC's error has only the text.
// Otherwise explain returns the result of withDetails, which adds the response metadata and a layer's
// time limit.
func (a *attempt) explain(err error, header, trailer metadata.MD) error {
	// Nothing was sent, so the rejection is the reason.
	if r := a.rejection.Load(); r != nil && !a.sent.Load() {
		return &callError{err: err, rejection: r.err}
	}
	return a.withDetails(err, header, trailer)
}

// withDetails returns err with the server's header and trailer, and with a layer's time limit if
// that canceled the call. If there is none of them, it returns err itself.
func (a *attempt) withDetails(err error, header, trailer metadata.MD) error {
	limit := a.limit(err)
	if limit == nil && len(header) == 0 && len(trailer) == 0 {
		return err
	}
	return &callError{err: err, limit: limit, pushback: trailer.Get(pushbackKey), header: header, trailer: trailer}
}

// limit returns the error of a layer's time limit if that limit canceled the call, and otherwise
// nil. After such a cancellation, gRPC returns CANCELLED, and only the context's cause contains
// the limit's error. This error matches [context.DeadlineExceeded].
func (a *attempt) limit(err error) error {
	if status.Code(err) != codes.Canceled {
		return nil
	}
	if cause := context.Cause(a.Context); errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// callError is an error that gRPC returned, with what gRPC leaves out: the balancer's rejection,
// the time limit that ended the call, and the response metadata.
type callError struct {
	err       error
	rejection error    // the error of the balancer, if nothing was sent; or nil
	limit     error    // the time limit of a layer that canceled the call, or nil
	pushback  []string // the values of grpc-retry-pushback-ms in the trailer

	header, trailer metadata.MD // of the response, if any
}

// simplified returns the error for the caller of the interceptor. It returns e if there is a
// rejection, a time limit, or a pushback, which is a wait that the server requests. Otherwise it
// returns gRPC's own error unchanged.
func (e *callError) simplified() error {
	if e.rejection == nil && e.limit == nil && len(e.pushback) == 0 {
		return e.err
	}
	return e
}

// Error returns the text of the status, see GRPCStatus.
func (e *callError) Error() string {
	if e.reason() == nil {
		return e.err.Error()
	}
	return e.GRPCStatus().String()
}

// Unwrap returns the reason, if there is one, and gRPC's error.
func (e *callError) Unwrap() []error {
	if reason := e.reason(); reason != nil {
		return []error{reason, e.err}
	}
	return []error{e.err}
}

// GRPCStatus returns the status of gRPC's error. If a pick was rejected or a time limit expired,
// the message includes the reason. For a time limit, the code is DEADLINE_EXCEEDED, and if the
// endpoints' rate limits rejected the call, it is RESOURCE_EXHAUSTED.
func (e *callError) GRPCStatus() *status.Status {
	// The status is made anew each time, because most errors are never asked for it.
	st := status.Convert(e.err)
	reason := e.reason()
	if reason == nil {
		return st
	}
	message := reasonOnce(st.Message(), reason.Error())
	switch {
	case e.limit != nil:
		return status.New(codes.DeadlineExceeded, message)
	// A client that is rate limited should send less, and not only try again.
	case isRateLimited(e.rejection):
		return status.New(codes.ResourceExhausted, message)
	}
	return withMessage(st, message)
}

// reason returns the pick's rejection, or else the time limit that expired, or nil if there is
// neither.
func (e *callError) reason() error {
	if e.rejection != nil {
		return e.rejection
	}
	return e.limit
}
