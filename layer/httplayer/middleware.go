package httplayer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/layer"
)

// Middleware puts layers in front of any [http.Handler], such as a mux: limits
// and shedding, deadlines, drain, metrics. Each handler gets layers, and a
// state, of its own; a [layer.Stack] is made into one layer by its Layer
// method. The handler returned is safe for concurrent use, starts nothing, and
// is a [layer.Describer].
//
// The handler below runs where net/http called, and writes to net/http's own
// writer: it can stream, flush, hijack, send 1xx and trailers as ever. It gets
// the context that the layers made. When it returns, the layers get its
// response: status, header and trailer, and no body, for that has gone out.
// So a response ends when the handler returns. A time limit ends the context
// of a handler, which has to look at it; one on the head, or on silence, runs
// until the handler returns too. A handler that returns when its context is
// done, and has written nothing, has failed with the cause of that.
//
// An error of the layers is answered as [Handler] does (see [StatusFromError]), if
// the response has not begun; else it is aborted, so that nobody takes it for
// complete. A response that layers put in the place of a handler that did not
// run is sent as it is, but that a 2xx to CONNECT has to be a tunnel, see
// [WithConnect]. One in the place of a response that the handler wrote
// comes too late and is closed. An HTTP/2 request whose path is a URL is malformed,
// and answered with 400 before the layers see it; a field Host beside :authority
// is dropped. The handler runs once a request: a retry or a
// hedge here gets an error, and belongs elsewhere. Panics pass through.
//
// It costs two allocations a request, and one more where a layer makes a
// context.
func Middleware(l layer.Layer[*http.Request, *http.Response], opts ...HandlerOption) func(http.Handler) http.Handler {
	answer := newHandler(instead{}, slices.Concat(opts, []HandlerOption{WithConnect()})...)
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
	answer *handler // sends what is in the place of a handler's response
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
		m.sendInstead(x, w, r, rsp)
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

// Describe returns the tree of the layers.
func (m *middleware) Describe() layer.Node { return layer.Describe(m.svc) }

// sendInstead sends a response that is in the place of a handler's, to CONNECT
// too.
func (m *middleware) sendInstead(x *served, w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	x.instead = rsp
	r = r.WithContext(x)
	if r.Method == http.MethodConnect {
		m.answer.connect(w, r)
	} else {
		m.answer.forward(w, r)
	}
	if x.instead != nil && rsp.Body != nil {
		_ = rsp.Body.Close()
	}
}

// instead is the Service that answers by a response that is there already.
type instead struct{}

func (instead) Ready(context.Context) error { return nil }

func (instead) Call(ctx context.Context, _ *http.Request) (*http.Response, error) {
	x, ok := ctx.Value(servingKey{}).(*served)
	if !ok || x.instead == nil {
		return nil, errNoResponse
	}
	rsp := x.instead
	x.instead = nil
	return rsp, nil
}

// handled is a handler as the Service at the bottom.
type handled struct{ http.Handler }

var errRanBefore = errors.New("httplayer: a handler runs once a request")

func (h handled) Ready(context.Context) error { return nil }

func (h handled) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	x, ok := ctx.Value(servingKey{}).(*served)
	switch {
	case !ok:
		return nil, errors.New("httplayer: the context is not that of the request")
	case ctx.Err() != nil:
		return nil, &layer.Error{Layer: "handler", Kind: layer.ErrNotReady, Reason: left.Why(ctx), Err: context.Cause(ctx)}
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

// handBack is for a handler that got a request of its own, in the place of the one
// that was received: what it keeps with the request is kept with that one. net/http
// removes the files of a form that it finds there, and nobody else would.
func handBack(received, own *http.Request) {
	if own.MultipartForm != nil {
		received.MultipartForm = own.MultipartForm
	}
	if own.Pattern != "" {
		received.Pattern = own.Pattern
	}
}

func (h handled) Describe() layer.Node { return layer.Node{Name: "handler"} }

// served is a request on its way through the layers: the context that leads
// the handler to its writer, and the writer that sees what it says.
type served struct {
	context.Context //nolint:containedctx // it is one
	http.ResponseWriter

	received *http.Request
	writer   http.ResponseWriter // served, with what else net/http's can do
	begun    atomic.Bool         // the handler was called
	hijacked bool
	status   int            // 0 until the header was written
	hear     []hearer       // written before the handler is called
	instead  *http.Response // of the layers, until it is sent
}

type servingKey struct{}

func (x *served) Value(key any) any {
	if _, ok := key.(servingKey); ok {
		return x
	}
	return x.Context.Value(key)
}

// serving returns the exchange of a request, and a writer for it that can do
// what w can: handlers find out by asserting interfaces. net/http has a writer
// for HTTP/1.1 and one for HTTP/2; of any other one they get what these share,
// and the rest by http.ResponseController.
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

// serve begins an exchange whose handler writes to writer.
func (x *served) serve(writer, w http.ResponseWriter, r *http.Request) (*served, http.ResponseWriter) {
	x.Context, x.ResponseWriter, x.received, x.writer = r.Context(), w, r, writer
	return x, writer
}

// closeNotifier is http.CloseNotifier, which is deprecated. Frameworks assert it,
// and panic where it is not there.
type closeNotifier interface{ CloseNotify() <-chan bool }

// Unwrap is how http.ResponseController finds what else the writer can do.
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

// WriteString keeps net/http's from making a copy of s.
func (x *served) WriteString(s string) (int, error) {
	x.implicit()
	n, err := io.WriteString(x.ResponseWriter, s)
	x.dataString(n, s)
	return n, err
}

// implicit notes the status of a response that begins without one.
func (x *served) implicit() {
	if x.status == 0 {
		x.status = http.StatusOK
		x.begin()
	}
}

// FlushError and Hijack are what http.ResponseController looks for before it
// unwraps.
func (x *served) FlushError() error {
	x.implicit()
	return http.NewResponseController(x.ResponseWriter).Flush()
}

func (x *served) hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	x.hijacked = x.hijacked || err == nil
	return conn, rw, err
}

// servedFlushing is for a writer that can flush.
type servedFlushing struct{ served }

func (x *servedFlushing) Flush() { _ = x.FlushError() }

// servedByH1 is for net/http's writer of HTTP/1.1.
type servedByH1 struct{ servedFlushing }

func (x *servedByH1) Hijack() (net.Conn, *bufio.ReadWriter, error) { return x.hijack() }

// ReadFrom lets net/http send files without a copy.
func (x *servedByH1) ReadFrom(src io.Reader) (int64, error) {
	x.implicit()
	n, err := io.Copy(x.ResponseWriter, src)
	x.data(n, nil)
	return n, err
}

// servedByH2 is for net/http's writer of HTTP/2.
type servedByH2 struct{ servedFlushing }

func (x *servedByH2) Push(target string, opts *http.PushOptions) error {
	pusher, ok := x.ResponseWriter.(http.Pusher)
	if !ok {
		return http.ErrNotSupported
	}
	return pusher.Push(target, opts)
}

// The writers that tell when the client has gone.
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
	return nil // serving makes none of those then
}

// response is what the handler wrote, without its body.
func (x *served) response() *http.Response {
	r, header := x.received, x.Header()
	rsp := &http.Response{
		StatusCode: x.code(), Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: header, Body: http.NoBody, Request: r, Trailer: trailer(header),
	}
	rsp.Status = http.StatusText(rsp.StatusCode)
	return rsp
}

// code is the status that the client sees. What a handler writes on a connection
// that it hijacked passes by unseen, and is why it did.
func (x *served) code() int {
	switch {
	case x.status != 0:
		return x.status
	case x.hijacked && x.received.Method != http.MethodConnect:
		return http.StatusSwitchingProtocols
	}
	return http.StatusOK // of a tunnel, or what net/http is going to write
}

// trailer finds the trailers in the header of a handler that has returned:
// those that were announced, and those with net/http's prefix. Without any it
// is nil.
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
