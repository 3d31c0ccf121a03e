package httplayer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// RoundTripper adapts svc to an [http.RoundTripper], such as the Transport of an [http.Client].
// The result calls svc with the request context, and returns svc's errors unchanged. If svc
// returns an error, it closes the request body, even if svc has closed it before. It is safe for
// concurrent use. A nil svc panics.
func RoundTripper(svc Service) http.RoundTripper {
	if svc == nil {
		panic("httplayer: nil service")
	}
	return lending{roundTripper{svc}}
}

// lending is a RoundTripper that sends each request with a body that several endpoints can read: see
// lendBody.
type lending struct{ roundTripper }

// RoundTrip sends a copy of req whose body several endpoints can read, one after the other.
func (l lending) RoundTrip(req *http.Request) (*http.Response, error) {
	if !hasBody(req) {
		return l.roundTripper.RoundTrip(req)
	}
	lent := *req
	lendBody(&lent)
	rsp, err := l.roundTripper.RoundTrip(&lent)
	if rsp != nil && rsp.Request == &lent {
		rsp.Request = req // the caller must not see the copy
	}
	return rsp, err
}

// roundTripper is the RoundTripper that calls svc.
type roundTripper struct{ svc Service }

var errNoResponse = errors.New("httplayer: the service returned neither a response nor an error")

// RoundTrip calls svc with the context of req.
func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.call(req.Context(), req)
}

// call sends req. Unlike a Service, it closes the request body also after an error, as RoundTrip must.
func (t roundTripper) call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := t.svc.Call(ctx, req)
	if err == nil && rsp == nil {
		err = errNoResponse
	}
	if err != nil {
		message.CloseBody(req)
		return nil, err
	}
	if rsp.Body == nil {
		// A response made by hand may lack a body, but net/http requires one.
		rsp.Body = http.NoBody
	}
	return rsp, nil
}

// Transport puts layers in front of an [http.RoundTripper], such as the transport of an
// [http.Client]:
//
//	client.Transport = httplayer.Transport(stack.Layer(), client.Transport)
//
// [Middleware] does the same for a handler.
//
// A nil next means [http.DefaultTransport]. The request that next receives carries the layers'
// context. An error from next is not a rejection, because next may have sent the request. The
// result is safe for concurrent use, starts no goroutine, and is a [layer.Describer].
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

// wrapped is the RoundTripper that [Transport] returns.
type wrapped struct {
	roundTripper
	next http.RoundTripper
}

// CloseIdleConnections calls next.CloseIdleConnections, if next implements it.
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

// Call sends r by the RoundTripper, and forwards its 1xx responses.
func (t transport) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, &layer.Error{Layer: "transport", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
	}
	// net/http's transports report 1xx responses only to the hooks of httptrace.
	if informer, ok := ctx.Value(message.InformerKey).(message.Informer); ok {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			return informer.Inform(status, http.Header(header))
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
// stack. The request that rt receives carries Call's context. Ready always returns nil, because
// rt limits its own connections. An error from rt is not a rejection, because rt may have sent
// the request. A nil rt panics.
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
// Cancellation: the request carries Call's context.
//
// Body: the RoundTripper reads and closes it.
//
// Errors: passed unchanged. A rejection by the service below stays a rejection if the request body is
// unread: the body is then open, although a RoundTripper closes it. If the body was read, the error does
// not match [layer.ErrNotReady].
//
// Cost: one allocation for a request body, and whatever the RoundTripper costs. A nil wrap, or a
// wrap that returns nil, panics.
func RoundTripperLayer(wrap func(next http.RoundTripper) http.RoundTripper) Layer {
	if wrap == nil {
		panic("httplayer: nil function")
	}
	return func(next Service) Service {
		// rt calls next by itself, so that call need not use its argument of type Service.
		rt := wrap(roundTripper{next})
		if rt == nil {
			panic("httplayer: RoundTripperLayer: the function returned nil")
		}
		call := func(ctx context.Context, req *http.Request, _ Service) (*http.Response, error) {
			return lend(ctx, req, rt) // keeps the body of a rejected request open
		}
		return around.Layer("round_tripper", nil, call)(next)
	}
}

// lend sends req with rt, which may return a rejection (layer.ErrNotReady) by the service below. A RoundTripper
// always closes the request body, but a service that rejects a request must leave it open, so lend keeps the body
// open until the result is known. If rt has read some of it, the request cannot be rejected any more, and lend
// returns another error.
func lend(ctx context.Context, req *http.Request, rt http.RoundTripper) (*http.Response, error) {
	// 0: nothing is kept, because there is no second attempt.
	req, body := outgoing(ctx, req, req.Host, 0)
	rejected := false // the body was handed back to the caller
	defer func() {
		if !rejected { // also after a panic
			body.admit()
		}
	}()
	rsp, err := rt.RoundTrip(req)
	if err == nil && rsp == nil {
		err = errNoResponse
	}
	// handBack succeeds if rt has not read the body, even if it has closed it.
	if errors.Is(err, layer.ErrNotReady) {
		if rejected = body.handBack(); !rejected {
			err = &layer.Error{Layer: "round_tripper", Reason: "rejected after the request body was read", Err: errors.New(err.Error())}
		}
	}
	return rsp, err
}
