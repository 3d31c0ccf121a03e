package httplayer

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// FromRoundTripper adapts rt to a [Service], for example to use an [http.Transport] below a
// stack. The request that rt receives has the context of Call. Ready always returns nil,
// because rt limits its own connections. An error of rt is not a rejection, because rt may
// have sent the request. A nil rt panics.
//
// To put a RoundTripper around a Service, use [RoundTripperLayer], which keeps rejections.
func FromRoundTripper(rt http.RoundTripper) Service {
	if rt == nil {
		panic("httplayer: nil RoundTripper")
	}
	return transport{rt}
}

// RoundTripperLayer returns a layer for a function that wraps a RoundTripper:
//
//	httplayer.RoundTripperLayer(func(next http.RoundTripper) http.RoundTripper {
//		return otelhttp.NewTransport(next)
//	})
//
// Admission: the RoundTripper decides. Ready is forwarded to the service below the layer.
//
// Cancellation: the request has the context of Call.
//
// Body: the RoundTripper reads and closes it.
//
// Errors: passed unchanged. A rejection by the service below stays a rejection if the
// request body is unread. If the body was read, the error does not match
// [layer.ErrNotReady].
//
// Cost: one allocation for a request body, and the cost of the RoundTripper. A nil wrap, or
// a wrap that returns nil, panics.
func RoundTripperLayer(wrap func(next http.RoundTripper) http.RoundTripper) Layer {
	if wrap == nil {
		panic("httplayer: nil function")
	}
	return func(next Service) Service {
		rt := wrap(roundTripper{next})
		if rt == nil {
			panic("httplayer: RoundTripperLayer: the function returned nil")
		}
		call := func(ctx context.Context, req *http.Request, _ Service) (*http.Response, error) {
			return lend(ctx, req, rt)
		}
		return &around{next, "round_tripper", nil, call}
	}
}

// lend sends req by rt, which may return a rejection by the service below. In this case the body of
// req stays open, because lend ignores a Close by rt. If rt has read the body before the rejection,
// lend returns an error that is not a rejection.
func lend(ctx context.Context, req *http.Request, rt http.RoundTripper) (*http.Response, error) {
	req, body := outgoing(ctx, req, req.Host)
	rejected := false
	defer func() {
		if !rejected { // also after a panic
			body.admit()
		}
	}()
	rsp, err := rt.RoundTrip(req)
	if err == nil && rsp == nil {
		err = errNoResponse
	}
	if errors.Is(err, layer.ErrNotReady) {
		if rejected = body.withdraw(); !rejected {
			err = &layer.Error{Layer: "round_tripper", Reason: "rejected after the request body was read", Err: errors.New(err.Error())}
		}
	}
	return rsp, err
}
