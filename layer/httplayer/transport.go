package httplayer

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

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
