package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/layer"
)

// Handler is a reverse proxy that serves requests by svc. It is built on
// [httputil.ReverseProxy]. Hop-by-hop headers are dropped; trailers, 1xx
// responses and upgrades are forwarded. Request and response bodies flow at the
// same time and each piece is flushed. The context given to svc ends when the
// client disconnects.
//
// svc receives the authority, path, query and headers of the client unchanged.
// No X-Forwarded-For or Via is added, and those of the client are kept. A
// gateway that does not trust its clients removes them in a layer.
//
// An upgraded connection lives as long as the context that the [Endpoint] was
// given, so a Timeout in svc closes it. CONNECT is answered with 501 unless
// [WithConnect] is given. Malformed targets and upgrades get 400; an
// unrequested 101 of the endpoint becomes 502.
//
// An error of svc is answered with the status of [StatusFromError] and an empty
// body, because the text of an error names endpoints ([WithErrorHeaders] adds
// it). Most errors also close the client's connection. A rejection with a
// retry-after sends Retry-After or, to gRPC, grpc-retry-pushback-ms. gRPC
// requests get the status as gRPC, also in trailers if their response is cut
// off. Other responses that are cut off are aborted.
//
// Handler is safe for concurrent use and starts no goroutine. It panics if svc
// is nil.
func Handler(svc Service, opts ...HandlerOption) http.Handler { return newHandler(svc, opts...) }

func newHandler(svc Service, opts ...HandlerOption) *handler {
	if svc == nil {
		panic("httplayer: nil service")
	}
	h := &handler{svc: svc, log: slog.Default()}
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

// headerPatience is how long response headers wait for the first piece of the
// body, because one write is cheaper than two. It applies to bodies of known
// length. Other headers and all body pieces are written at once.
const headerPatience = 5 * time.Millisecond

// HandlerOption sets how a [Handler] answers.
type HandlerOption interface{ apply(h *handler) }

type handlerOption func(*handler)

func (f handlerOption) apply(h *handler) { f(h) }

// WithErrorHeaders sets whether an error response carries the text of the error
// in l5d-proxy-error and grpc-message, and also l5d-proxy-connection. The
// default is false. The text names layers, endpoints and their addresses, so
// enable it only for trusted clients, such as other proxies of a mesh. A server
// with both kinds of client needs two Handlers.
func WithErrorHeaders(on bool) HandlerOption {
	return handlerOption(func(h *handler) { h.informs = on })
}

// WithConnect passes HTTP/1.1 CONNECT requests to svc. If the response is a 2xx
// whose body is an [io.ReadWriteCloser], as that of an [Endpoint] is, the
// connection becomes a tunnel. Each direction of a tunnel ends separately, and
// svc ends both by closing the body. A layer.Drain in svc waits for tunnels.
// After any other response the client's connection is closed.
//
// The default rejects CONNECT, because no layer sees the content of a tunnel.
// Also, many servers that are not proxies answer CONNECT with 2xx and read the
// tunnel as requests.
func WithConnect() HandlerOption { return handlerOption(func(h *handler) { h.tunnels = true }) }

// WithLogger sets the logger for errors that a Handler answers: 5xx at level
// Warn, 4xx at level Debug. An error after the client disconnected is not
// logged. A response that was cut off is logged at level Debug. The same
// message is written at most ten times in ten seconds, then its count. The
// default is [slog.Default] at construction; nil means no log.
func WithLogger(l *slog.Logger) HandlerOption {
	return handlerOption(func(h *handler) { h.log = l })
}

// limitedLog limits repeated messages of l. A nil l discards all.
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
		r = r.WithContext(r.Context()) // the server keeps using its own request
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

// exchange is one request and its response in the proxy. It is the transport of
// ReverseProxy for the request and the writer for the response.
type exchange struct {
	http.ResponseWriter
	handler *handler
	proxy   httputil.ReverseProxy
	whole   bool  // the response has no body and is written when the handler returns
	left    int64 // bytes of the body still to be written; -1 if unknown

	head  http.Header // headers written before the response starts
	begun bool
	ten   bool // the client speaks HTTP/1.0

	informing sync.Mutex // guards the server's header and writer until answered is set
	answered  bool

	received *received // the body of an HTTP/1.1 request, or nil
	duplex   bool      // the response may start before the request body ends
	upgraded io.Closer // the body of a 101 response; closed after ReverseProxy returns
}

// Unwrap gives http.ResponseController access to the server's writer.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Write flushes each piece of a body of known length except the last.
// ReverseProxy flushes bodies of unknown length.
func (x *exchange) Write(p []byte) (int, error) {
	n, err := x.ResponseWriter.Write(p)
	if x.left > 0 {
		if x.left -= int64(n); x.left > 0 && err == nil {
			err = x.FlushError()
		}
	}
	return n, err
}

// FlushError does not flush a response without a body, because a flush would
// separate the headers from the end of the stream and gRPC clients would miss
// the status. It does not flush the last piece of a body of known length,
// because the server writes it as soon as the handler returns.
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
		// Full duplex is enabled only after svc has responded, because for an
		// error the server itself reads the rest of the body or closes the
		// connection. If the writer does not support it, the exchange stays
		// half duplex.
		x.duplex = http.NewResponseController(x.ResponseWriter).EnableFullDuplex() == nil
	}
	x.whole = ended(rsp)
	header := x.ResponseWriter.Header()
	if _, ok := rsp.Header["Content-Type"]; !ok {
		header["Content-Type"] = nil // prevents the server from guessing one
	}
	if len(rsp.Trailer) > 0 && req.ProtoMajor == 1 {
		// HTTP/1.1 sends trailers only with a chunked body.
		rsp.Header.Del("Content-Length")
	}
	x.left = -1
	if rsp.Header.Get("Content-Length") != "" {
		x.left = rsp.ContentLength
	}
	switch {
	case began.IsZero():
	case x.whole:
		header["Content-Length"] = nil // prevents the server from adding one, which gRPC clients read as metadata
	default:
		rsp.Body = &grpcBody{ReadCloser: rsp.Body, req: req, rsp: rsp, began: began, informs: x.handler.informs}
	}
	if rsp.StatusCode != http.StatusSwitchingProtocols {
		return rsp, nil
	}
	// Copy the headers: ReverseProxy changes them while observers of the
	// closing body may read them.
	out := *rsp
	out.Header = rsp.Header.Clone()
	x.upgraded = rsp.Body
	return &out, nil
}

// fail writes the error response for err.
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

// mayClose reports whether an error response for r may close the connection. It
// may not for an HTTP/2 stream that its client canceled, because a GOAWAY would
// affect all other streams.
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

// printable returns s as a valid header value.
func printable(s string) string {
	out := []byte(s)
	for i, c := range out {
		if c < ' ' || c == 0x7f {
			out[i] = ' '
		}
	}
	return string(out)
}

// heads is a pool of the headers that exchanges give to ReverseProxy.
type heads struct{ pool sync.Pool }

func (p *heads) get() http.Header {
	if h, ok := p.pool.Get().(http.Header); ok {
		return h
	}
	return make(http.Header)
}

func (p *heads) put(h http.Header) {
	clear(h)
	p.pool.Put(h)
}

// Header returns a separate map until the response starts. ReverseProxy writes
// 1xx headers into it from the transport's goroutine, while the handler may
// write the server's header.
func (x *exchange) Header() http.Header {
	if x.begun {
		return x.ResponseWriter.Header()
	}
	if x.head == nil {
		x.head = x.handler.heads.get()
	}
	return x.head
}

func (x *exchange) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		x.inform(status)
		return
	}
	x.begin()
	x.ResponseWriter.WriteHeader(status)
}

// begin copies the headers written so far into the server's header, which is
// used from then on.
func (x *exchange) begin() {
	if x.begun {
		return
	}
	x.begun = true
	header := x.ResponseWriter.Header()
	for name, values := range x.head {
		if there := header[name]; len(there) > 0 {
			values = slices.Concat(there, values)
		}
		header[name] = values
	}
	if x.head != nil {
		x.handler.heads.put(x.head)
		x.head = nil
	}
}

// inform sends a 1xx response. It does nothing once the final response exists,
// or if the client speaks HTTP/1.0. Headers already set for the final response
// are kept for it.
func (x *exchange) inform(status int) {
	x.informing.Lock()
	defer x.informing.Unlock()
	if x.answered || x.ten {
		return
	}
	header := x.ResponseWriter.Header()
	kept := maps.Clone(header)
	clear(header)
	maps.Copy(header, x.head)
	x.ResponseWriter.WriteHeader(status)
	clear(header)
	maps.Copy(header, kept)
}

// settled stops 1xx responses, so that the server's header and writer belong to
// the handler alone.
func (x *exchange) settled() {
	x.informing.Lock()
	x.answered = true
	x.informing.Unlock()
}

// failExchange is the ErrorHandler of ReverseProxy.
func (h *handler) failExchange(w http.ResponseWriter, r *http.Request, err error) {
	if x, ok := w.(*exchange); ok {
		w = x.ResponseWriter
	}
	h.fail(w, r, err)
}

// roundTrip calls svc. A response with a status that a server cannot send is an
// error.
func (h *handler) roundTrip(req *http.Request) (*http.Response, error) {
	rsp, err := roundTripper{h.svc}.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch code := rsp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		err = switchError(req, rsp)
	case code < http.StatusOK || code > 999:
		err = &peerError{fmt.Errorf("httplayer: invalid response status %d", code)}
	}
	if err != nil {
		_ = rsp.Body.Close()
		return nil, err
	}
	return rsp, nil
}

// rewrite undoes the changes of ReverseProxy that a transparent proxy must not
// make.
func rewrite(p *httputil.ProxyRequest) {
	var a Accessor
	in, out := p.In, p.Out
	if in.URL.Scheme == "" && in.TLS == nil {
		out.URL.Scheme = "http"
	}
	out.URL.Host = a.Authority(in)
	out.URL.RawQuery = in.URL.RawQuery
	out.Host = in.Host
	// The original map and not the copy: the server fills it when the body
	// ends.
	out.Trailer = in.Trailer
	if out.Body != nil && in.ProtoMajor == 2 {
		out.Body = &closable{out.Body, in.Body}
	}
	for _, name := range [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := in.Header[name]; ok && !namedInConnection(in.Header, name) {
			out.Header[name] = slices.Clone(values)
		}
	}
	if strings.EqualFold(out.Header.Get("Upgrade"), "h2c") {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	out.Header.Del("HTTP2-Settings")
	onlyHost(out)
	if in.ContentLength == 0 && len(in.Header["Content-Length"]) > 0 {
		// Send the client's Content-Length of 0, which net/http would drop for
		// methods that usually have no body.
		out.Body, out.TransferEncoding = http.NoBody, []string{"identity"}
	}
}

func namedInConnection(h http.Header, name string) bool {
	for _, value := range h["Connection"] {
		for token := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), name) {
				return true
			}
		}
	}
	return false
}

// closable is the body of an HTTP/2 request. ReverseProxy wraps request bodies
// and does not forward Close. That is right for HTTP/1.1, where Close waits for
// the client. For HTTP/2 Close must end a waiting Read, because an endpoint
// that finished early would block in it (golang/go#78973, #80085).
type closable struct {
	io.ReadCloser
	received io.Closer
}

func (c *closable) Close() error {
	return errors.Join(c.ReadCloser.Close(), c.received.Close())
}
