package httplayer

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// FromRoundTripper adapts rt to a [Service], for example to use an [http.Transport] below a
// stack. It calls rt with the context of Call. It is always ready, because rt limits its
// own connections. Its errors are not rejections, because rt may have sent the request. A
// nil rt panics.
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
// Admission: the RoundTripper decides. Ready is forwarded to the inner service.
//
// Cancellation: the request has the context of Call.
//
// Body: as the RoundTripper does.
//
// Errors: passed unchanged. A rejection by the inner service stays a rejection. If the
// RoundTripper has read from the request body, the error does not match
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

// lend calls rt with req. If the request is rejected, its body stays open, even if rt has
// closed it.
func lend(ctx context.Context, req *http.Request, rt http.RoundTripper) (*http.Response, error) {
	var body *requestBody
	if ctx != req.Context() || hasBody(req) {
		req = req.WithContext(ctx)
	}
	if hasBody(req) {
		body = &requestBody{wrappedBody: wrappedBody{req.Body}}
		req.Body = body
	}
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
