package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Handler is a reverse proxy that serves requests by svc. Hop-by-hop headers
// are dropped; trailers, 1xx responses and upgrades are forwarded. Request and
// response bodies flow at the same time. The context given to svc ends when the
// client disconnects. A [Server] calls svc without an [http.ResponseWriter]; in any
// other server HTTP/1.1 is half duplex.
//
// svc receives the authority, path, query and headers of the client unchanged.
// No X-Forwarded-For or Via is added, and those of the client are kept, see
// [Forwarded]. CONNECT is answered with 501 unless [WithConnect] is given. Malformed
// targets and upgrades get 400; an unrequested 101 of the endpoint becomes 502.
//
// An error of svc is answered with the status of [StatusFromError] and the body of
// [Problem], see [WithErrorHandler]. The text of the error is not sent, because it
// names endpoints ([WithErrorHeaders] adds it). Most errors also close the client's
// connection. A rejection with a retry-after sends Retry-After or, to gRPC,
// grpc-retry-pushback-ms. gRPC requests get the status as gRPC, also in trailers if their
// response is cut off. A stream that the endpoint reset is reset with the same code.
//
// Handler is safe for concurrent use and panics if svc is nil.
func Handler(svc Service, opts ...HandlerOption) http.Handler { return newHandler(svc, opts...) }

func newHandler(svc Service, opts ...HandlerOption) *handler {
	if svc == nil {
		panic("httplayer: nil service")
	}
	h := &handler{svc: svc, log: slog.Default(), onError: Problem} //nolint:forbidigo // an error without a log would be lost
	for _, opt := range opts {
		if opt != nil {
			opt.apply(h)
		}
	}
	h.log = limitedLog(h.log)
	return h
}

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
	svc     Service
	log     *slog.Logger
	tunnels bool
	informs bool // error responses carry the text of the error
	onError ErrorHandler
}

// exchange serves a request of a [Server].
func (h *handler) exchange(r *http.Request) (*http.Response, error) { return h.serve(r, true) }

// serve serves a request without hop-by-hop headers. Errors become responses. If resets is
// true, the reset of a stream by the endpoint is returned as an error, so that the server
// resets the stream of the client.
func (h *handler) serve(r *http.Request, resets bool) (*http.Response, error) {
	rsp, err := h.respond(r, resets)
	if rsp != nil {
		setConnection(r, rsp)
	}
	return rsp, err
}

// setConnection removes the hop-by-hop headers of a response. It adds Connection: close if
// the connection of the client is to be closed. That includes a rejected CONNECT, because
// the client may have sent bytes for the tunnel.
func setConnection(r *http.Request, rsp *http.Response) {
	_, closes := rsp.Header[closesClient] //nolint:staticcheck // not canonical on purpose
	delete(rsp.Header, closesClient)
	rsp.Close = false
	if _, ok := rsp.Header["Connection"]; ok && rsp.StatusCode != http.StatusSwitchingProtocols {
		message.RemoveHopByHop(rsp.Header)
	}
	if (closes || r.Method == http.MethodConnect && rsp.StatusCode/100 != 2) && r.ProtoMajor == 1 {
		rsp.Header["Connection"] = []string{"close"}
	}
}

func (h *handler) respond(r *http.Request, resets bool) (*http.Response, error) {
	if r.Method == http.MethodConnect && !h.tunnels {
		return h.reject(r, http.StatusNotImplemented), nil
	}
	if err := misdirected(r); err != nil {
		return h.failure(r, err), nil
	}
	if err := upgradeError(r); err != nil {
		return h.failure(r, err), nil
	}
	complete(r)
	began := time.Time{}
	grpc := isGRPC(r)
	if grpc && len(r.Header["Grpc-Timeout"]) > 0 {
		began = time.Now() // for overdue
	}
	rsp, err := h.call(r)
	if err != nil {
		err = overdue(r, began, err)
		reset, ok := asReset(err)
		if ok && reset.Remote && resets && r.ProtoMajor == 2 && !isUpgraded(r) && !errors.Is(err, context.DeadlineExceeded) {
			h.logFailure(r, http.StatusBadGateway, err)
			return nil, reset
		}
		return h.failure(r, err), nil
	}
	if grpc {
		h.prepareGRPC(r, rsp, began, resets)
	}
	if len(rsp.Trailer) > 0 && r.ProtoMajor == 1 {
		delete(rsp.Header, "Content-Length") // HTTP/1.1 sends trailers only with a chunked body
		rsp.ContentLength = -1
	}
	return rsp, nil
}

// prepareGRPC prepares a response to a gRPC request.
func (h *handler) prepareGRPC(r *http.Request, rsp *http.Response, began time.Time, resets bool) {
	if ended(rsp) {
		_ = rsp.Body.Close()
		rsp.Body, rsp.ContentLength = http.NoBody, -1 // a content-length would be metadata for the client
		delete(rsp.Header, "Content-Length")
		return
	}
	rsp.Body = &grpcBody{ReadCloser: rsp.Body, req: r, rsp: rsp, began: began, informs: h.informs, resets: resets}
}

// call calls svc.
func (h *handler) call(req *http.Request) (*http.Response, error) {
	rsp, err := roundTripper{h.svc}.RoundTrip(req)
	if err == nil {
		err = checkResponse(req, rsp)
	}
	return rsp, err
}

// checkResponse returns an error if rsp cannot be sent to the client. It then closes the
// body of rsp.
func checkResponse(req *http.Request, rsp *http.Response) (err error) {
	switch code := rsp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		err = switchError(req, rsp)
	case code < http.StatusOK || code > 999:
		err = &peerError{fmt.Errorf("httplayer: invalid response status %d", code)}
	case req.Method == http.MethodConnect && code/100 == 2:
		err = tunnelError(rsp)
	}
	if err != nil {
		_ = rsp.Body.Close()
	}
	return err
}

// tunnelError returns an error if the 2xx response to CONNECT has no connection as its
// body.
func tunnelError(rsp *http.Response) error {
	if _, ok := rsp.Body.(io.ReadWriteCloser); ok {
		return nil
	}
	return &StatusError{Code: http.StatusBadGateway, Reason: "CONNECT got a response without a tunnel", Close: true}
}

// complete adds to a received request what the layers and an endpoint expect
// of a request to send: the scheme and the authority of the URL. It removes an
// upgrade to h2c, which an endpoint chooses by itself.
func complete(r *http.Request) {
	if r.URL.Scheme == "" && r.TLS == nil {
		r.URL.Scheme = "http"
	}
	r.URL.Host = (Accessor{}).Authority(r)
	if upgrade := r.Header["Upgrade"]; len(upgrade) > 0 && strings.EqualFold(upgrade[0], "h2c") {
		delete(r.Header, "Upgrade")
		delete(r.Header, "Connection")
	}
	delete(r.Header, "Http2-Settings")
	onlyHost(r)
}

// reject returns a response with the status and without a body. It is used for requests
// that svc does not receive.
func (h *handler) reject(r *http.Request, status int) *http.Response {
	return &http.Response{
		StatusCode: status, Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: make(http.Header), Body: http.NoBody, Request: r,
	}
}

// failure returns the error response for err.
func (h *handler) failure(r *http.Request, err error) *http.Response {
	status, code := StatusFromError(err)
	if r.Context().Err() == nil {
		h.logFailure(r, status, err)
	}
	rsp := h.reject(r, status)
	header := rsp.Header
	layer.RecordFromContext(r.Context()).SetErr(err)
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		maps.Copy(header, chosen.Header.Clone())
	}
	if closes(err) && mayClose(r) {
		header[closesClient] = []string{"close"}
	}
	if h.informs {
		if closes(err) {
			header.Set("L5d-Proxy-Connection", "close")
		}
		header.Set("L5d-Proxy-Error", printable(err.Error()))
	}
	grpc := isGRPC(r)
	rejected := errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrRetryRejected)
	if after, ok := layer.RetryAfter(err); ok && rejected {
		askAfter(header, after, grpc)
	}
	if !grpc {
		h.describeError(rsp, r, err)
		return rsp
	}
	message := ""
	if h.informs {
		message = err.Error()
	}
	setStatus(header, code, message)
	header.Set("Content-Type", grpcType)
	rsp.StatusCode, rsp.ContentLength = http.StatusOK, -1
	return rsp
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

func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	rsp := h.failure(r, err)
	setConnection(r, rsp)
	send(w, r, rsp)
}

// ServeHTTP serves a request of a server that is not a [Server].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &informer{w: w}
	out := r.WithContext(reqctx.WithValue(r.Context(), message.InformerKey, x))
	out.Header = r.Header.Clone()
	message.RemoveHopByHop(out.Header)
	url := *r.URL
	out.URL = &url
	switch {
	case r.ContentLength == 0:
		out.Body = http.NoBody // of a received request; else 0 is an unknown length
	case r.ProtoMajor == 1:
		body := &receivedBody{Reader: r.Body, control: http.NewResponseController(w)}
		defer body.wait()
		out.Body = body
	}
	defer x.stop()
	rsp, _ := h.serve(out, false) // without resets there is no error
	x.stop()
	send(w, out, rsp)
}

// receivedBody is an HTTP/1.1 request body of net/http. Its Close only ends a Read
// in progress, because that of net/http waits for the rest of the body. The server
// closes the body after the handler.
type receivedBody struct {
	io.Reader
	control *http.ResponseController
	reads   sync.Mutex
	closed  atomic.Bool
}

func (b *receivedBody) Read(p []byte) (int, error) {
	b.reads.Lock()
	defer b.reads.Unlock()
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

func (b *receivedBody) Close() error {
	b.closed.Store(true)
	if b.reads.TryLock() {
		b.reads.Unlock()
		return nil
	}
	return b.control.SetReadDeadline(time.Now())
}

// wait ends a Read in progress and waits for it. net/http does not permit a Read after the
// handler has returned.
func (b *receivedBody) wait() {
	_ = b.Close()
	b.reads.Lock()
	b.reads.Unlock() //nolint:staticcheck,gocritic // waits for a Read in progress
}

// informer sends 1xx responses to a client, until the final response exists.
type informer struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	over bool
}

// Inform is part of [message.Informer].
func (x *informer) Inform(status int, header http.Header) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || status == http.StatusContinue { // the server sends 100 itself
		return nil
	}
	to := x.w.Header()
	final := maps.Clone(to)
	clear(to)
	maps.Copy(to, header)
	x.w.WriteHeader(status)
	clear(to)
	maps.Copy(to, final)
	return nil
}

func (x *informer) stop() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
}

// send writes rsp to a writer of net/http and closes its body. If the body fails, it aborts
// the response.
func send(w http.ResponseWriter, r *http.Request, rsp *http.Response) {
	defer rsp.Body.Close()
	header := w.Header()
	for name, values := range rsp.Header {
		if !message.IsHopByHop(name) || name == "Connection" && message.Listed(values, "close") {
			header[name] = append(header[name], values...)
		}
	}
	if _, ok := header["Content-Type"]; !ok {
		header["Content-Type"] = nil // prevents the server from guessing one
	}
	switch {
	case rsp.StatusCode == http.StatusSwitchingProtocols, r.Method == http.MethodConnect && rsp.StatusCode/100 == 2:
		serveTunnel(w, r, rsp)
		return
	case rsp.ContentLength < 0 || len(rsp.Trailer) > 0:
		delete(header, "Content-Length")
	}
	announced := maps.Clone(rsp.Trailer)
	for name := range announced {
		header.Add("Trailer", name)
	}
	if ended(rsp) && (rsp.ContentLength < 0 || isGRPC(r)) {
		header["Content-Length"] = nil // keeps the server from adding one
	}
	w.WriteHeader(rsp.StatusCode)
	if ended(rsp) {
		return
	}
	if copyBody(w, rsp.Body, rsp.ContentLength) != nil {
		panic(http.ErrAbortHandler)
	}
	if len(rsp.Trailer) > len(announced) {
		_ = http.NewResponseController(w).Flush() // else net/http would send a Content-Length and no trailers
	}
	for name, values := range rsp.Trailer {
		if _, ok := announced[name]; !ok {
			name = http.TrailerPrefix + name
		}
		header[name] = values
	}
}

// copyBody copies a body of the given length, or of unknown length with -1. It flushes
// before each Read that may wait.
func copyBody(w http.ResponseWriter, body io.Reader, length int64) error {
	flusher, buf := http.NewResponseController(w), bodyBuffers.Get().(*[bodyBuffer]byte) //nolint:forcetypeassert,errcheck // see New
	defer bodyBuffers.Put(buf)
	for {
		if n, eof := message.Pending(body); n == 0 && !eof && length != 0 {
			_ = flusher.Flush()
		}
		n, err := body.Read(buf[:])
		if length > 0 {
			length -= min(length, int64(n))
		}
		if n > 0 {
			if _, failed := w.Write(buf[:n]); failed != nil {
				return failed
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

const bodyBuffer = 32 << 10

var bodyBuffers = sync.Pool{New: func() any { return new([bodyBuffer]byte) }}
