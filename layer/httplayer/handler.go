package httplayer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/layer"
)

// Handler serves requests by svc: it is a reverse proxy to wherever svc sends
// them. It is built on [httputil.ReverseProxy], which drops hop-by-hop fields
// and passes on trailers, 1xx responses and upgrades. Bodies flow in both
// directions at once, over HTTP/1.1 too, and every piece is flushed. When the
// client goes away, the context given to svc ends.
//
// A request reaches svc as it was received: authority, path, query and fields
// of its own. Nothing is added, no X-Forwarded-For and no Via, and those that
// came with it are kept; a gateway that does not trust its clients strips them
// in a layer. An upgrade to h2c is not offered on. OPTIONS * comes here only if
// the server's DisableGeneralOptionsHandler is set.
//
// An upgraded connection lives as long as the context that the [Endpoint] was
// given, as a body does: a Timeout in svc cuts it. A HeadTimeout does not. A 101
// that was not asked for, or switches to something else, is answered with 502.
//
// CONNECT is answered with 501, unless [WithConnect] is given. A CONNECT that is
// malformed, and a target that names nothing but an authority in any other
// method, is answered with 400, and so are an Upgrade that is not printable ASCII
// and an HTTP/2 request whose path is a URL: it would name two authorities. A
// field Host beside :authority is dropped.
//
// 1xx responses pass until svc has returned, those of a try that is given up
// later too. A client of HTTP/1.0 gets none.
//
// An error response has a status and no text, because the text of an error names
// endpoints and their addresses. [WithErrorHeaders] adds it.
//
// net/http takes a client that ends its sending half of an HTTP/1.1 connection
// for one that has gone.
//
// An error of svc is answered as [StatusFromError] says, with an empty body and, for
// most, with the request to close the client's connection. A refusal that says
// when it is worth coming back says so to the client: in Retry-After, or to
// gRPC in grpc-retry-pushback-ms.
// A gRPC request (HTTP/2 with a content type of application/grpc) gets the
// status as gRPC instead; if its response breaks off, so that only a reset
// would be left, it gets trailers with a status. Any other response that
// breaks off is aborted, so that nobody takes it for complete. net/http cannot
// pass on the code of a reset.
//
// The handler lives as long as svc and starts nothing. It is safe for
// concurrent use. A nil svc panics.
func Handler(svc Service, opts ...HandlerOption) http.Handler { return newHandler(svc, opts...) }

func newHandler(svc Service, opts ...HandlerOption) *handler {
	if svc == nil {
		panic("httplayer: nil service")
	}
	h := &handler{svc: svc}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(h)
		}
	}
	h.log = limitedLog(h.log)
	h.proxy = httputil.ReverseProxy{
		Rewrite:       rewrite,
		FlushInterval: headerPatience,
		ErrorHandler:  h.failExchange,
		BufferPool:    &buffers{},
		ErrorLog:      slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	return h
}

// headerPatience is how long the header of a response waits for the beginning
// of its body, so that a short response is one write. It holds where the length
// of the body is known; other headers, and all pieces of bodies, do not wait.
const headerPatience = 5 * time.Millisecond

// HandlerOption sets how a [Handler] answers.
type HandlerOption interface{ apply(h *handler) }

type handlerOption func(*handler)

func (f handlerOption) apply(h *handler) { f(h) }

// WithErrorHeaders says whether an error response carries the text of the
// error, in l5d-proxy-error and grpc-message, and l5d-proxy-connection. The
// default is false. The text names layers, endpoints and their addresses, so
// enable it only for trusted clients, such as other proxies of a mesh. A server
// with both kinds of client needs two Handlers.
func WithErrorHeaders(on bool) HandlerOption {
	return handlerOption(func(h *handler) { h.informs = on })
}

// WithConnect has CONNECT in HTTP/1.1 go to svc as any request does. Where the
// response is a 2xx whose body is an [io.ReadWriteCloser], as that of an
// [Endpoint] is, it becomes a tunnel: bytes both ways, each direction ended by
// itself, for as long as svc keeps the body open. So a layer.Drain in svc waits
// for tunnels, as it does for upgraded connections. After any other answer the
// client's connection is closed.
//
// It is for proxies that are to be transparent, and the default is not to: what
// goes through a tunnel no layer sees. An endpoint that answers CONNECT with 2xx
// and is no proxy, as many servers do, would take it for requests.
func WithConnect() HandlerOption { return handlerOption(func(h *handler) { h.tunnels = true }) }

// WithLogger is where a Handler logs the errors that it answers: 5xx at level Warn,
// 4xx at level Debug. An error of a request whose client has gone is not logged. A
// response that broke off is logged at level Debug. A message is written ten times
// in ten seconds at most, and then its count. The default, and nil, is silence.
func WithLogger(l *slog.Logger) HandlerOption {
	return handlerOption(func(h *handler) { h.log = l })
}

// limitedLog returns l, which may be nil, with a limit on repeated messages.
func limitedLog(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(lograte.New(l.Handler()))
}

type handler struct {
	svc   Service
	log   *slog.Logger
	proxy httputil.ReverseProxy
	heads heads

	tunnels bool
	informs bool // error responses carry the text of the error
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := misdirected(r); err != nil {
		h.fail(w, r, err)
		return
	}
	if r.Method == http.MethodConnect {
		h.connect(w, r)
		return
	}
	h.forward(w, r)
}

func (h *handler) forward(w http.ResponseWriter, r *http.Request) {
	if err := upgradeError(r); err != nil {
		h.fail(w, r, err)
		return
	}
	x := &exchange{ResponseWriter: w, handler: h, proxy: h.proxy, ten: !r.ProtoAtLeast(1, 1)}
	x.proxy.Transport = x
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		x.received = &received{ReadCloser: r.Body}
		r = r.WithContext(r.Context()) // the server looks at its own
		r.Body = x.received
	}
	returned := false
	defer func() {
		if !returned {
			x.abandon()
		}
	}()
	x.proxy.ServeHTTP(x, r)
	returned = true
	if x.upgraded != nil {
		_ = x.upgraded.Close()
	}
	x.finish(r)
}

// exchange is one request on its way through the proxy: the transport that it
// leaves by, and the writer that its response comes back through.
type exchange struct {
	http.ResponseWriter
	handler *handler
	proxy   httputil.ReverseProxy
	whole   bool  // the response has no body: all of it goes out when the handler returns
	left    int64 // bytes of the body that are still to come; below 0 if not known

	head  http.Header // what is written before the response begins
	begun bool
	ten   bool // the client speaks HTTP/1.0

	informing sync.Mutex // of the server's header and writer, before there is an answer
	answered  bool

	received *received // the body of an HTTP/1.1 request, if it has one
	duplex   bool      // its response may begin before it ends
	upgraded io.Closer // the body of a 101, until ReverseProxy sees to its end
}

// Unwrap is how http.ResponseController finds what else the writer can do.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Write passes a piece of the body on at once, if more is known to come. Where
// the length is not known ReverseProxy sees to that.
func (x *exchange) Write(p []byte) (int, error) {
	n, err := x.ResponseWriter.Write(p)
	if x.left > 0 {
		if x.left -= int64(n); x.left > 0 && err == nil {
			err = x.FlushError()
		}
	}
	return n, err
}

// FlushError keeps a response without a body in one piece. A flush would part
// the header from the end of the stream, and then gRPC clients find no status
// in a response that is nothing but trailers. Nor does it flush the last piece
// of a body whose length is known: that goes out at once, when the handler
// returns, and a flush would cost a system call more.
func (x *exchange) FlushError() error {
	if x.whole || x.left == 0 {
		return nil
	}
	return http.NewResponseController(x.ResponseWriter).Flush()
}

func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Time{}
	if isGRPC(req) {
		began = time.Now()
	}
	rsp, err := x.handler.roundTrip(req)
	x.settled()
	if err != nil {
		return nil, overdue(req, began, err)
	}
	if x.received != nil {
		// Only now: where there is no response, the server first reads what is
		// left of a body, or gives up the connection. An error says that this
		// writer cannot do it; then it is half duplex.
		x.duplex = http.NewResponseController(x.ResponseWriter).EnableFullDuplex() == nil
	}
	x.whole = ended(rsp)
	header := x.ResponseWriter.Header()
	if _, ok := rsp.Header["Content-Type"]; !ok {
		header["Content-Type"] = nil // or the server would guess one
	}
	if len(rsp.Trailer) > 0 && req.ProtoMajor == 1 {
		// HTTP/1.1 has trailers after chunks only.
		rsp.Header.Del("Content-Length")
	}
	x.left = -1
	if rsp.Header.Get("Content-Length") != "" {
		x.left = rsp.ContentLength
	}
	switch {
	case began.IsZero():
	case x.whole:
		header["Content-Length"] = nil // or the server would add one, which becomes metadata
	default:
		rsp.Body = &grpcBody{ReadCloser: rsp.Body, req: req, rsp: rsp, began: began, informs: x.handler.informs}
	}
	if rsp.StatusCode != http.StatusSwitchingProtocols {
		return rsp, nil
	}
	// ReverseProxy changes it while it may be closing the body, on which those
	// who observe that look at the header.
	out := *rsp
	out.Header = rsp.Header.Clone()
	x.upgraded = rsp.Body
	return &out, nil
}

// fail answers a request that has no response.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, code := StatusFromError(err)
	if r.Context().Err() == nil {
		h.logFailure(r, status, err)
	}
	header := w.Header()
	if closes(err) {
		if mayClose(r) {
			header.Set("Connection", "close")
		}
		if h.informs {
			header.Set("L5d-Proxy-Connection", "close")
		}
	}
	if h.informs {
		header.Set("L5d-Proxy-Error", printable(err.Error()))
	}
	grpc := isGRPC(r)
	refused := errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrRetryRejected)
	if after, ok := layer.RetryAfter(err); ok && refused {
		askAfter(header, after, grpc)
	}
	if grpc {
		message := ""
		if h.informs {
			message = err.Error()
		}
		setStatus(header, code, message)
		header.Set("Content-Type", "application/grpc")
		header["Content-Length"] = nil
		status = http.StatusOK
	} else {
		header.Set("Content-Length", "0")
	}
	w.WriteHeader(status)
}

// mayClose reports whether the connection is r's own to end. In HTTP/2 that is a
// GOAWAY, which would end it for all others because one was taken back.
func mayClose(r *http.Request) bool {
	gone := r.ProtoMajor == 2 && errors.Is(r.Context().Err(), context.Canceled)
	return !gone && !isUpgraded(r)
}

func (h *handler) logFailure(r *http.Request, status int, err error) {
	ctx, level := r.Context(), slog.LevelWarn
	if status < http.StatusInternalServerError {
		level = slog.LevelDebug
	}
	if !h.log.Enabled(ctx, level) {
		return
	}
	var a Accessor
	h.log.LogAttrs(ctx, level, "request failed",
		slog.String("method", a.Method(r)), slog.String("authority", a.Authority(r)),
		slog.String("path", a.Path(r)), slog.Int("status", status), slog.Any("err", err))
}

// printable is s as a field value.
func printable(s string) string {
	out := []byte(s)
	for i, c := range out {
		if c < ' ' || c == 0x7f {
			out[i] = ' '
		}
	}
	return string(out)
}
