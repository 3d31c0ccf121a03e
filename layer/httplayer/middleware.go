package httplayer

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Middleware returns a function that puts layers in front of an [http.Handler], such as a
// mux. Each handler has its own instance of the layers. For several layers, pass the result
// of the method Layer of a [layer.Stack]. The returned handler is safe for concurrent use,
// starts no goroutine and is a [layer.Describer].
//
// The handler runs on the goroutine of the server and writes to the writer of the server. It can
// stream, flush, hijack, and send 1xx responses and trailers. Its request has the context of the
// layers. When the handler returns, the layers receive its status, headers and trailers, without
// the body. For the layers, the response has then ended. A layer with a timeout can end the context
// of the handler, but not its response. If the handler returns without a response after its context
// has ended, the layers receive the cause as an error.
//
// An error of a layer is answered as by [Handler] (see [StatusFromError]). If the response has
// already started, it is aborted. A layer may return its own response instead of calling the
// handler. A 2xx response to CONNECT must be a tunnel; see [WithConnect]. A retry or hedge fails,
// because the handler runs only once per request.
//
// The cost is two allocations per request, and one more if a layer makes a context.
func Middleware(l layer.Layer[*http.Request, *http.Response], opts ...HandlerOption) func(http.Handler) http.Handler {
	own := newHandler(handled{}, opts...)
	return func(h http.Handler) http.Handler {
		if h == nil {
			panic("httplayer: nil handler")
		}
		var svc Service = handled{h}
		if l != nil {
			svc = l(svc)
		}
		return &middleware{svc, own}
	}
}

type middleware struct {
	svc Service
	own *handler // sends the responses and errors of the layers
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if twoAuthorities(r) {
		m.own.answer(w, r, nil, misdirected(r))
		return
	}
	delete(r.Header, "Host") // an HTTP/2 server stores it in addition to r.Host
	x := serving(w, r)
	rsp, err := m.svc.Call(x, r)
	switch {
	case rsp == nil && err == nil:
		err = errNoResponse
	case rsp != nil && rsp.Body == nil:
		rsp.Body = http.NoBody
	}
	if !x.begun.Load() || err != nil && x.status == 0 {
		m.own.answer(w, r, rsp, cmp.Or(err, upgradeError(r)))
		return
	}
	if rsp != nil {
		_ = rsp.Body.Close()
	}
	if err != nil && !x.hijacked {
		panic(http.ErrAbortHandler)
	}
}

// Describe shows the layers.
func (m *middleware) Describe() layer.Node { return layer.Describe(m.svc) }

// handled is the Service below the layers. It calls the handler.
type handled struct{ http.Handler }

var errRanBefore = errors.New("httplayer: a handler runs once a request")

func (h handled) Ready(context.Context) error { return nil }

func (h handled) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	x, ok := ctx.Value(servingKey{}).(*served)
	switch {
	case !ok:
		return nil, errors.New("httplayer: the context is not that of the request")
	case ctx.Err() != nil:
		return nil, &layer.Error{Layer: "handler", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
	case x.begun.Swap(true):
		return nil, errRanBefore
	}
	if ctx != context.Context(x) {
		r = r.WithContext(ctx)
	}
	if r != x.received {
		defer handBack(x.received, r)
	}
	h.ServeHTTP(x, r)
	if ctx.Err() != nil && x.status == 0 {
		return nil, context.Cause(ctx)
	}
	return x.response(), nil
}

// handBack copies MultipartForm and Pattern, if they are set, from own to received. The argument
// received is the request of the server, and own is the copy that the handler has used. Without the
// copied form, net/http would not remove the temporary files of the form.
func handBack(received, own *http.Request) {
	received.MultipartForm = cmp.Or(own.MultipartForm, received.MultipartForm)
	received.Pattern = cmp.Or(own.Pattern, received.Pattern)
}

func (h handled) Describe() layer.Node { return layer.Node{Name: "handler"} }

// served is the state of one request of a Middleware or AccessLog. It is the ResponseWriter
// of the handler, and notifies the observers of the response. In a Middleware it is also the
// context of the request, so that the service below the layers can find it.
type served struct {
	context.Context //nolint:containedctx // implements context.Context
	http.ResponseWriter

	received  *http.Request
	begun     atomic.Bool // the handler was called
	hijacked  bool
	status    int                                      // 0 before the headers are written or Hijack
	observers []layer.ResponseObserver[*http.Response] // none is added after the handler was called
}

type servingKey struct{}

func (x *served) Value(key any) any {
	if _, ok := key.(servingKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serving returns a new state for the request r. The handler gets the state as its ResponseWriter,
// which passes the response to w. Like the writer of a [Server], the state has the methods of all
// optional interfaces, such as [http.Hijacker]. If w lacks such a method, the call fails with an
// error that matches [http.ErrNotSupported].
func serving(w http.ResponseWriter, r *http.Request) *served {
	return &served{Context: r.Context(), ResponseWriter: w, received: r}
}

// Unwrap returns the writer of the server. http.ResponseController calls it.
func (x *served) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *served) WriteHeader(status int) {
	if status >= 200 && status <= 999 || status == http.StatusSwitchingProtocols {
		x.start(status)
	}
	x.ResponseWriter.WriteHeader(status)
}

// start records the status of the response and notifies the observers, unless the response
// has started.
func (x *served) start(status int) {
	if x.status != 0 {
		return
	}
	x.status = status
	for _, o := range x.observers {
		o.ResponseStarted(x.response())
	}
}

func (x *served) Write(p []byte) (int, error) {
	x.start(http.StatusOK)
	n, err := x.ResponseWriter.Write(p)
	x.data(int64(n), p[:max(n, 0)])
	return n, err
}

// WriteString is part of [io.StringWriter]. It avoids a copy of s in net/http.
func (x *served) WriteString(s string) (int, error) {
	x.start(http.StatusOK)
	n, err := io.WriteString(x.ResponseWriter, s)
	if len(x.observers) > 0 { // only then copy s
		x.data(int64(n), []byte(s[:max(n, 0)]))
	}
	return n, err
}

// FlushError flushes the writer of the server. http.ResponseController calls it.
func (x *served) FlushError() error {
	x.start(http.StatusOK)
	return http.NewResponseController(x.ResponseWriter).Flush()
}

// Flush is part of [http.Flusher]. It does nothing if the writer of the server has no Flush.
func (x *served) Flush() { _ = x.FlushError() }

// Hijack takes over the connection of the client, as an [http.Hijacker]. The status is then 200
// for CONNECT and otherwise 101, unless the handler has set one.
func (x *served) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	switch x.hijacked = x.hijacked || err == nil; {
	case err != nil || x.status != 0:
	case x.received.Method == http.MethodConnect:
		x.status = http.StatusOK
	default:
		x.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// ReadFrom is part of [io.ReaderFrom]. It lets the server send files without copying them.
func (x *served) ReadFrom(src io.Reader) (int64, error) {
	x.start(http.StatusOK)
	n, err := io.Copy(x.ResponseWriter, src)
	x.data(n, nil)
	return n, err
}

// response returns the response that the layers receive. It has the status, the headers and
// the trailers that the handler has written, and an empty body.
func (x *served) response() *http.Response {
	rsp := newResponse(x.received, x.code(), x.Header())
	rsp.Trailer = message.HandlerTrailer(rsp.Header)
	return rsp
}

// code returns the status of the response, which is 200 if the handler has not set one.
func (x *served) code() int { return cmp.Or(x.status, http.StatusOK) }

// data calls ResponseData of all observers in x.observers for n bytes of the body. The
// argument p has these bytes, or is nil if they are not available. For the method HEAD, data
// does nothing, because the response has no body.
func (x *served) data(n int64, p []byte) {
	if n <= 0 || x.received.Method == http.MethodHead {
		return
	}
	for _, h := range x.observers {
		h.ResponseData(int(n), p)
	}
}
