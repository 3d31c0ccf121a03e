package httplayer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
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
		return &roundTripperLayer{Service: next, rt: rt}
	}
}

type roundTripperLayer struct {
	Service
	rt http.RoundTripper
}

func (l *roundTripperLayer) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	var body *lentBody
	if ctx != req.Context() || hasBody(req) {
		own := req.WithContext(ctx)
		if hasBody(req) {
			body = &lentBody{ReadCloser: req.Body}
			own.Body = body
		}
		req = own
	}
	rejected := false
	defer func() {
		if body != nil {
			body.settle(rejected)
		}
	}()
	rsp, err := l.rt.RoundTrip(req)
	if err == nil && rsp == nil {
		err = errNoResponse
	}
	if errors.Is(err, layer.ErrNotReady) {
		if rejected = body == nil || !body.wasRead(); !rejected {
			err = &layer.Error{Layer: "round_tripper", Reason: "rejected after the request body was read", Err: errors.New(err.Error())}
		}
	}
	return rsp, err
}

func (l *roundTripperLayer) Next() Service { return l.Service }

func (l *roundTripperLayer) Describe() layer.Node { return layer.Node{Name: "round_tripper"} }

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// lentBody is a request body that a RoundTripper may close even if the request is rejected.
// Until settle is called, Close has no effect on an unread body.
type lentBody struct {
	io.ReadCloser
	mu                    sync.Mutex
	read, closed, settled bool
}

// Pending returns the number of bytes that Read can return without waiting. If eof is true,
// the body ends after these bytes.
func (b *lentBody) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

func (b *lentBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	closed := b.closed
	b.read = true
	b.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.ReadCloser.Read(p)
}

func (b *lentBody) Close() error {
	b.mu.Lock()
	b.closed = true
	now := b.read || b.settled
	b.mu.Unlock()
	if now {
		return b.ReadCloser.Close()
	}
	return nil
}

func (b *lentBody) wasRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read
}

// settle is called when the outcome of the request is known. If the RoundTripper has closed
// the body before reading it, settle now closes it, unless the request was rejected. After
// settle, Close has its usual effect.
func (b *lentBody) settle(rejected bool) {
	b.mu.Lock()
	now := b.closed && !b.read && !b.settled && !rejected
	b.settled = true
	b.mu.Unlock()
	if now {
		_ = b.ReadCloser.Close()
	}
}
