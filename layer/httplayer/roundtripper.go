package httplayer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// RoundTripper adapts svc to an [http.RoundTripper], such as the Transport of an
// [http.Client]. The result calls svc with the context of the request, and returns the
// errors of svc unchanged. If svc returns an error, the result closes the body of the
// request, even if svc has closed it before. It is safe for concurrent use. A nil svc panics.
func RoundTripper(svc Service) http.RoundTripper {
	if svc == nil {
		panic("httplayer: nil service")
	}
	return roundTripper{svc}
}

type roundTripper struct{ svc Service }

var errNoResponse = errors.New("httplayer: the service returned neither a response nor an error")

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	rsp, err := t.svc.Call(req.Context(), req)
	if err == nil && rsp == nil {
		err = errNoResponse
	}
	if err != nil {
		message.CloseBody(req)
		return nil, err
	}
	if rsp.Body == nil {
		// A response made by hand may have a nil body, one of net/http may not.
		rsp.Body = http.NoBody
	}
	return rsp, nil
}

// Transport puts layers in front of an [http.RoundTripper], such as the transport of an
// [http.Client]. [Middleware] does the same for a handler:
//
//	client.Transport = httplayer.Transport(stack.Layer(), client.Transport)
//
// A nil next means [http.DefaultTransport]. The request that next receives has the context
// of the layers. An error of next is not a rejection, because next may have sent the
// request. The result is safe for concurrent use, starts no goroutine, and is a
// [layer.Describer].
func Transport(l layer.Layer[*http.Request, *http.Response], next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport //nolint:forbidigo // the same default as http.Client
	}
	var svc Service = transport{next}
	if l != nil {
		svc = l(svc)
	}
	return &wrapped{roundTripper{svc}, next}
}

type wrapped struct {
	roundTripper
	next http.RoundTripper
}

// CloseIdleConnections calls CloseIdleConnections of next, if next has that method.
// [http.Client.CloseIdleConnections] calls it.
func (w *wrapped) CloseIdleConnections() {
	if c, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Describe shows the layers.
func (w *wrapped) Describe() layer.Node { return layer.Describe(w.svc) }

// transport is the Service that calls an http.RoundTripper.
type transport struct{ http.RoundTripper }

func (transport) Ready(context.Context) error { return nil }

func (t transport) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, &layer.Error{Layer: "transport", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
	}
	if to, ok := ctx.Value(message.InformerKey).(message.Informer); ok {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			return to.Inform(status, http.Header(header))
		}})
	}
	if ctx != r.Context() {
		r = r.WithContext(ctx)
	}
	return t.RoundTrip(r)
}

func (transport) Classifier() layer.Classifier[*http.Response] { return Classify }

func (transport) Describe() layer.Node { return layer.Node{Name: "transport"} }

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
