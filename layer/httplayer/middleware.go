package httplayer

import (
	"context"
	"net/http"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// FromHandler adapts an [http.Handler], such as a mux, to a [Service]. The handler runs on its own goroutine.
// It can stream, flush, hijack, and send 1xx responses and trailers. Its writer supports all
// [http.ResponseController] methods. The request that it receives looks as in net/http's server.
//
// Call returns when the handler flushes, has written more than 4 KiB, or returns. From then on the handler
// waits for whatever reads the response body. The body ends when the handler has returned. If Call's context
// ends or the body is closed earlier, the handler context ends, and its reads and writes fail. A hijacked
// connection is in memory. The response on it is parsed, and after a 101 or a 2xx for CONNECT it is the
// response body, which may also be over HTTP/2.
//
// Admission: every request is admitted, unless its context has ended. Errors: the reason why the context
// ended, if the handler has sent nothing. A panic before the response reaches the caller, and a later one
// aborts the response. The cost is a goroutine and about 13 allocations per request. A nil h panics.
func FromHandler(h http.Handler) Service {
	if h == nil {
		panic("httplayer: nil handler")
	}
	return &handled{http.Server{Handler: h}} //nolint:gosec // it serves no connections
}

// handled is the Service that FromHandler returns. server holds the handler, and is the value of
// http.ServerContextKey in its contexts.
type handled struct{ server http.Server }

func (*handled) Ready(context.Context) error { return nil }

// Call runs the handler. It returns the response when the handler sends its headers or returns.
func (h *handled) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, &layer.Error{Layer: "handler", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
	}
	rsp, err := message.Handle(ctx, &h.server, r)
	if err == nil && rsp.StatusCode != http.StatusSwitchingProtocols {
		// A handler asks by this field to close the client's connection. The mark passes that to setConnection.
		if message.Listed(rsp.Header["Connection"], "close") {
			rsp.Header[message.CloseClient] = []string{"close"}
		}
		delete(rsp.Header, "Connection")
	}
	return rsp, err
}

func (*handled) Classifier() layer.Classifier[*http.Response] { return Classify }

func (*handled) Describe() layer.Node { return layer.Node{Name: "handler"} }

// Middleware returns a function that puts layers in front of an [http.Handler] in a net/http server. It
// is short for a [Handler] with the layers and [FromHandler], and with [WithConnect]. For several
// layers, pass what a [layer.Stack]'s Layer method returns. Each handler gets its own instance of the
// layers. A [Server] needs no Middleware:
//
//	httplayer.NewServer(stack.Service(httplayer.FromHandler(mux)))
func Middleware(l Layer, opts ...HandlerOption) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		svc := FromHandler(h)
		if l != nil {
			svc = l(svc)
		}
		return Handler(svc, append([]HandlerOption{WithConnect()}, opts...)...)
	}
}
