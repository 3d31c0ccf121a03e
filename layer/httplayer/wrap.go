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

// FromRoundTripper adapts rt to a [Service], such as an [http.Transport] below a
// stack. It calls rt with the context of Call. It is always ready, and rt limits
// its own connections. It panics if rt is nil.
//
// Its errors are not rejections, because rt may have sent the request. To wrap a
// Service in a RoundTripper use [RoundTripperLayer], which keeps rejections.
func FromRoundTripper(rt http.RoundTripper) Service {
	if rt == nil {
		panic("httplayer: nil RoundTripper")
	}
	return transport{rt}
}

// RoundTripperLayer is a layer of any function that wraps a RoundTripper:
//
//	httplayer.RoundTripperLayer(func(next http.RoundTripper) http.RoundTripper {
//		return otelhttp.NewTransport(next)
//	})
//
// Admission: as the RoundTripper does. Ready is forwarded to the inner service.
//
// Cancellation: the request has the context of Call.
//
// Body: as the RoundTripper does.
//
// Errors: passed unchanged. A rejection by the inner service stays a rejection, unless
// the RoundTripper has read from the request body: then it is an error of another kind.
//
// Cost: one allocation for a request body, and that of the RoundTripper.
//
// It panics if wrap is nil or returns nil.
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

// lentBody is a request body that a RoundTripper may close although the request was
// rejected. A Close before the first Read waits until the outcome is known.
type lentBody struct {
	io.ReadCloser
	mu                    sync.Mutex
	read, closed, settled bool
}

// Pending reports what Read returns without waiting.
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

// settle ends the delay of Close. If the RoundTripper has closed the body, settle closes
// it, unless the request was rejected.
func (b *lentBody) settle(rejected bool) {
	b.mu.Lock()
	now := b.closed && !b.read && !b.settled && !rejected
	b.settled = true
	b.mu.Unlock()
	if now {
		_ = b.ReadCloser.Close()
	}
}
