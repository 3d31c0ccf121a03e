package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// heads are the headers that exchanges lend to ReverseProxy.
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

// Header is one that is lent until the response begins. ReverseProxy writes 1xx
// there as well: on the goroutine of a transport, be it that of a try that was
// given up, while the server's own header may be written to here.
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

// begin adds what was written to the server's own header, from now on the only
// one. ReverseProxy passes on no 1xx any more.
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

// inform passes on a 1xx, unless there is a response, or the client does not
// know of such things. What was said of the response is kept for that.
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

// settled ends the time of 1xx: the server's header and its writer are the
// handler's alone.
func (x *exchange) settled() {
	x.informing.Lock()
	x.answered = true
	x.informing.Unlock()
}

// failExchange answers by the server's own writer.
func (h *handler) failExchange(w http.ResponseWriter, r *http.Request, err error) {
	if x, ok := w.(*exchange); ok {
		w = x.ResponseWriter
	}
	h.fail(w, r, err)
}

// roundTrip has svc answer. What no server could send on is no answer.
func (h *handler) roundTrip(req *http.Request) (*http.Response, error) {
	rsp, err := roundTripper{h.svc}.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch code := rsp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		err = switchError(req, rsp)
	case code < http.StatusOK || code > 999:
		err = &peerError{fmt.Errorf("httplayer: %d is no status of a response", code)}
	}
	if err != nil {
		_ = rsp.Body.Close()
		return nil, err
	}
	return rsp, nil
}

// received is the body of an HTTP/1.1 request that a Handler serves. It knows
// whether it was read to its end.
type received struct {
	io.ReadCloser

	ended atomic.Bool
	mu    sync.Mutex
	read  int64
}

func (r *received) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := r.ReadCloser.Read(p)
	r.read += int64(n)
	switch {
	case err == io.EOF:
		r.ended.Store(true)
	case malformed(err):
		err = &malformedError{err}
	}
	return n, err
}

// malformed reports whether err says that a body is none, and not that it did
// not come.
func malformed(err error) bool {
	var network net.Error
	var large *http.MaxBytesError
	return err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, http.ErrBodyReadAfterClose) &&
		!errors.As(err, &network) && !errors.As(err, &large)
}

// malformedError is the client's fault.
type malformedError struct{ error }

func (e *malformedError) Unwrap() []error {
	return []error{&StatusError{Code: http.StatusBadRequest}, e.error}
}

// Close waits for a Read that is under way.
func (r *received) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ReadCloser.Close()
}

// rest reads what is left of a body of the given length, less than 0 if that is
// not known, and reports whether that was all. Close would not do: after a
// trailer that could not be read it says nothing.
func (r *received) rest(length int64) bool {
	r.mu.Lock()
	far := length-r.read > bodyRest
	r.mu.Unlock()
	if !far {
		_, _ = io.CopyN(io.Discard, r, bodyRest)
	}
	return r.ended.Load()
}

// bodyRest is how much of a body is read for the sake of its connection, as
// net/http does.
const bodyRest = 256 << 10

// bodyPatience is how long the rest of a request body may take to come, of
// which nobody wants to know any more.
const bodyPatience = time.Second

// finish sees to the end of a request body that was not read to it, because the
// endpoint answered before. The server reads some more of it, to use the
// connection again, or closes the connection after the response. It must not do
// that after the handler of a full-duplex response: at the end of the body it
// would begin to wait for the next request, and then it panics, for it does so
// twice. So it is done here.
//
// A client that waits for 100 Continue sends no body when it got something
// else; its connection is closed.
func (x *exchange) finish(r *http.Request) {
	if !x.duplex || x.received.ended.Load() {
		return
	}
	rc := http.NewResponseController(x.ResponseWriter)
	waits := r.Header.Get("Expect") != ""
	if !waits {
		_ = rc.Flush() // the client may wait for it
	}
	_ = rc.SetReadDeadline(time.Now().Add(bodyPatience))
	switch {
	case waits:
		hangUp(x.ResponseWriter)
	case !x.received.rest(r.ContentLength):
		// What is left would be taken for the next request.
		_ = x.received.Close()
		hangUp(x.ResponseWriter)
	default:
		_ = rc.SetReadDeadline(time.Time{})
	}
}

// abandon is for a response that is aborted: the server would first wait for
// the rest of the request body.
func (x *exchange) abandon() {
	x.settled()
	if x.received == nil || x.received.ended.Load() {
		return
	}
	_ = http.NewResponseController(x.ResponseWriter).SetReadDeadline(time.Now())
	_ = x.received.Close()
}

// hangUp has net/http end the response, and then close the connection, so that
// the client still gets all of it. That is what it does where a MaxBytesReader
// finds a body too large, the only way to tell it once the header has gone out.
// It tells no writer but net/http's own; of another one the response is aborted.
func hangUp(w http.ResponseWriter) {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = outer.Unwrap()
	}
	if reflect.Indirect(reflect.ValueOf(w)).Type().PkgPath() != "net/http" {
		panic(http.ErrAbortHandler)
	}
	tooLarge := http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0)
	_, _ = tooLarge.Read(make([]byte, 1))
}

// buffers are what response bodies are copied with, of the size that
// ReverseProxy would allocate for each.
type buffers struct{ pool sync.Pool }

type buffer = [32 << 10]byte

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*buffer); ok {
		return buf[:]
	}
	return new(buffer)[:]
}

func (b *buffers) Put(buf []byte) {
	if len(buf) == len(buffer{}) {
		b.pool.Put((*buffer)(buf))
	}
}

// rewrite undoes what ReverseProxy does for the gateway it was made to be, and
// a transparent proxy should not do.
func rewrite(p *httputil.ProxyRequest) {
	var a Accessor
	in, out := p.In, p.Out
	if in.URL.Scheme == "" && in.TLS == nil {
		out.URL.Scheme = "http"
	}
	out.URL.Host = a.Authority(in)
	out.URL.RawQuery = in.URL.RawQuery
	out.Host = in.Host
	// Not the copy: the server fills it in when the body was read.
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
		// A length of 0 that was said is said again; net/http would drop it
		// from methods that usually have no body.
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

// closable is the body of an HTTP/2 request. ReverseProxy puts one around it
// that does not pass Close on, which is right for HTTP/1.1, where Close waits
// for the client. Here it must end a Read that waits: an endpoint that is done
// before its client is would hang in it (golang/go#78973, #80085).
type closable struct {
	io.ReadCloser
	received io.Closer
}

func (c *closable) Close() error {
	return errors.Join(c.ReadCloser.Close(), c.received.Close())
}
