package httplayer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
)

// Middleware puts layers in front of any [http.Handler], such as a mux. Each
// handler gets its own instance of the layers; [layer.Stack] has a Layer method
// that makes one layer of a stack. The returned handler is safe for concurrent
// use, starts no goroutine and is a [layer.Describer].
//
// The handler runs on net/http's goroutine and writes to net/http's writer, so
// it can stream, flush, hijack, and send 1xx and trailers. It gets the context
// that the layers made. When it returns, the layers get its status, headers and
// trailers without the body. A response therefore ends when the handler
// returns, and a timeout only ends the handler's context. A handler that
// returns without a response after its context ended has failed with the cause
// of that.
//
// An error of the layers is answered as [Handler] does (see [StatusFromError]).
// If the response has already started, it is aborted. A layer may send its own
// response instead of calling the handler; a 2xx to CONNECT must be a tunnel,
// see [WithConnect]. The handler runs once per request, so retries and hedges
// fail here.
//
// The cost is two allocations per request, and one more if a layer makes a
// context.
func Middleware(l layer.Layer[*http.Request, *http.Response], opts ...HandlerOption) func(http.Handler) http.Handler {
	answer := newHandler(handled{}, opts...)
	return func(h http.Handler) http.Handler {
		if h == nil {
			panic("httplayer: nil handler")
		}
		var svc Service = handled{h}
		if l != nil {
			svc = l(svc)
		}
		return &middleware{svc, answer}
	}
}

type middleware struct {
	svc    Service
	answer *handler // sends responses and errors of the layers
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if twoAuthorities(r) {
		m.answer.fail(w, r, misdirected(r))
		return
	}
	onlyHost(r)
	x, w := serving(w, r)
	rsp, err := m.svc.Call(x, r)
	switch {
	case err == nil && rsp != nil && !x.begun.Load():
		m.sendInstead(w, r, rsp)
		return
	case err == nil && rsp == nil:
		err = errNoResponse
	}
	if rsp != nil && rsp.Body != nil {
		_ = rsp.Body.Close()
	}
	switch {
	case err == nil || x.hijacked:
	case x.status == 0:
		m.answer.fail(x.ResponseWriter, r, err)
	default:
		panic(http.ErrAbortHandler)
	}
}

// Describe returns the layers.
func (m *middleware) Describe() layer.Node { return layer.Describe(m.svc) }

// sendInstead sends a response that a layer returned instead of calling the handler.
func (m *middleware) sendInstead(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	if rsp.Body == nil {
		rsp.Body = http.NoBody
	}
	err := upgradeError(r)
	if err == nil {
		err = checkResponse(r, rsp)
	} else {
		_ = rsp.Body.Close()
	}
	if err != nil {
		m.answer.fail(w, r, err)
		return
	}
	if isGRPC(r) {
		m.answer.prepareGRPC(r, rsp, time.Now(), false)
	}
	setConnection(r, rsp)
	send(w, r, rsp)
}

// handled adapts the handler to a Service.
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
	h.ServeHTTP(x.writer, r)
	if ctx.Err() != nil && x.status == 0 && !x.hijacked {
		return nil, context.Cause(ctx)
	}
	return x.response(), nil
}

// handBack copies the form and the pattern that the handler stored in own to
// the received request. net/http removes the files of a form only from the
// latter.
func handBack(received, own *http.Request) {
	if own.MultipartForm != nil {
		received.MultipartForm = own.MultipartForm
	}
	if own.Pattern != "" {
		received.Pattern = own.Pattern
	}
}

func (h handled) Describe() layer.Node { return layer.Node{Name: "handler"} }

// served is one request of a Middleware. It is the context by which the handler finds its
// writer, and the writer that observes the response.
type served struct {
	context.Context //nolint:containedctx // implements context.Context
	http.ResponseWriter

	received  *http.Request
	writer    http.ResponseWriter // served with the optional interfaces of net/http's writer
	begun     atomic.Bool         // the handler was called
	hijacked  bool
	status    int                // 0 before the headers are written
	observers []responseObserver // set before the handler is called
}

type servingKey struct{}

func (x *served) Value(key any) any {
	if _, ok := key.(servingKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serving returns the exchange of a request and a writer with the optional
// interfaces of w, because handlers assert them. Writers other than net/http's
// get the common ones, and the rest through http.ResponseController.
func serving(w http.ResponseWriter, r *http.Request) (*served, http.ResponseWriter) {
	_, flushes := w.(http.Flusher)
	_, hijacks := w.(http.Hijacker)
	_, pushes := w.(http.Pusher)
	_, readsFrom := w.(io.ReaderFrom)
	_, notifies := w.(closeNotifier)
	h1 := hijacks && readsFrom
	switch {
	case !flushes:
		out := new(served)
		return out.serve(out, w, r)
	case h1 && notifies:
		out := new(servedByH1Notifying)
		return out.serve(out, w, r)
	case h1:
		out := new(servedByH1)
		return out.serve(out, w, r)
	case pushes && notifies:
		out := new(servedByH2Notifying)
		return out.serve(out, w, r)
	case pushes:
		out := new(servedByH2)
		return out.serve(out, w, r)
	case notifies:
		out := new(servedNotifying)
		return out.serve(out, w, r)
	}
	out := new(servedFlushing)
	return out.serve(out, w, r)
}

// serve initializes an exchange whose handler writes to writer.
func (x *served) serve(writer, w http.ResponseWriter, r *http.Request) (*served, http.ResponseWriter) {
	x.Context, x.ResponseWriter, x.received, x.writer = r.Context(), w, r, writer
	return x, writer
}

// closeNotifier is the deprecated http.CloseNotifier. Some frameworks assert it
// and panic without it.
type closeNotifier interface{ CloseNotify() <-chan bool }

// Unwrap gives http.ResponseController access to the server's writer.
func (x *served) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *served) WriteHeader(status int) {
	if x.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		x.status = status
		x.begin()
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *served) Write(p []byte) (int, error) {
	x.implicit()
	n, err := x.ResponseWriter.Write(p)
	x.data(int64(n), p[:max(n, 0)])
	return n, err
}

// WriteString avoids a copy of s in net/http.
func (x *served) WriteString(s string) (int, error) {
	x.implicit()
	n, err := io.WriteString(x.ResponseWriter, s)
	x.dataString(n, s)
	return n, err
}

// implicit records status 200 for a response that starts without WriteHeader.
func (x *served) implicit() {
	if x.status == 0 {
		x.status = http.StatusOK
		x.begin()
	}
}

// FlushError is used by http.ResponseController instead of unwrapping.
func (x *served) FlushError() error {
	x.implicit()
	return http.NewResponseController(x.ResponseWriter).Flush()
}

func (x *served) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	x.hijacked = x.hijacked || err == nil
	return conn, rw, err
}

// servedFlushing is for writers that flush.
type servedFlushing struct{ served }

func (x *servedFlushing) Flush() { _ = x.FlushError() }

// servedByH1 is for net/http's HTTP/1.1 writer.
type servedByH1 struct{ servedFlushing }

func (x *servedByH1) Hijack() (net.Conn, *bufio.ReadWriter, error) { return x.hijack() }

// ReadFrom lets net/http send files without copying.
func (x *servedByH1) ReadFrom(src io.Reader) (int64, error) {
	x.implicit()
	n, err := io.Copy(x.ResponseWriter, src)
	x.data(n, nil)
	return n, err
}

// servedByH2 is for net/http's HTTP/2 writer.
type servedByH2 struct{ servedFlushing }

func (x *servedByH2) Push(target string, opts *http.PushOptions) error {
	pusher, ok := x.ResponseWriter.(http.Pusher)
	if !ok {
		return http.ErrNotSupported
	}
	return pusher.Push(target, opts)
}

// Writers that also implement CloseNotify.
type (
	servedNotifying     struct{ servedFlushing }
	servedByH1Notifying struct{ servedByH1 }
	servedByH2Notifying struct{ servedByH2 }
)

func (x *servedNotifying) CloseNotify() <-chan bool     { return x.closeNotify() }
func (x *servedByH1Notifying) CloseNotify() <-chan bool { return x.closeNotify() }
func (x *servedByH2Notifying) CloseNotify() <-chan bool { return x.closeNotify() }

func (x *served) closeNotify() <-chan bool {
	if w, ok := x.ResponseWriter.(closeNotifier); ok {
		return w.CloseNotify()
	}
	return nil // unreachable: serving checked the writer
}

// response returns the handler's response without its body.
func (x *served) response() *http.Response {
	r, header := x.received, x.Header()
	rsp := &http.Response{
		StatusCode: x.code(), Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: header, Body: http.NoBody, Request: r, Trailer: trailer(header),
	}
	rsp.Status = http.StatusText(rsp.StatusCode)
	return rsp
}

// code returns the status that the client receives. The status of a hijacked connection is
// unknown and assumed.
func (x *served) code() int {
	switch {
	case x.status != 0:
		return x.status
	case x.hijacked && x.received.Method != http.MethodConnect:
		return http.StatusSwitchingProtocols
	}
	return http.StatusOK // a tunnel, or net/http's default
}

// trailer returns the trailers that a handler set: announced ones and those
// with net/http's prefix. It returns nil without any.
func trailer(header http.Header) http.Header {
	var found http.Header
	add := func(name string, values []string) {
		if found == nil {
			found = make(http.Header)
		}
		found[http.CanonicalHeaderKey(name)] = values
	}
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			if values := header.Values(strings.TrimSpace(name)); len(values) > 0 {
				add(strings.TrimSpace(name), values)
			}
		}
	}
	for key, values := range header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	return found
}
