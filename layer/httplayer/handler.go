package httplayer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Handler returns a handler for net/http servers that serves requests with svc, like a [Server]. It
// removes hop-by-hop headers, and forwards trailers, 1xx responses and upgrades. Request and response
// bodies are copied at the same time, but HTTP/1.1 is half duplex. The context given to svc ends when the
// client disconnects.
//
// svc receives the client's authority, path, query and headers unchanged. X-Forwarded-For and Via are not
// added, and those from the client are kept; see [Forwarded]. CONNECT is answered with 501, unless
// [WithConnect] is set. A malformed target or upgrade is answered with 400. A 101 response without a
// requested upgrade becomes 502.
//
// An error from svc is answered with the status from [StatusFromError] and the body from [Problem]; see
// [WithErrorHandler]. The response does not contain the error text, because that names endpoint
// addresses; see [WithErrorHeaders]. A rejection with a retry-after time adds Retry-After, or
// grpc-retry-pushback-ms for gRPC. A gRPC request receives a gRPC status, in the trailers if the response
// body fails. Its message is the detail of [Problem] or the text for the HTTP status. If the endpoint
// resets a stream, the response is 502 or is aborted.
//
// A Handler is safe for concurrent use, and is a [layer.Describer]. A nil svc panics.
func Handler(svc Service, opts ...HandlerOption) http.Handler {
	h := newHandler(svc)
	option.Apply(h, opts)
	h.configure(&h.cfg)
	return h
}

// newHandler returns a handler with the default options. A nil svc panics.
func newHandler(svc Service) *handler {
	if svc == nil {
		panic("httplayer: nil service")
	}
	return &handler{svc: svc, log: slog.Default(), onError: Problem} //nolint:forbidigo // an error without a log would be lost
}

// handler is the http.Handler that [Handler] returns, and the part of a [Server] that answers requests.
type handler struct {
	svc      Service
	log      *slog.Logger
	scheme   string // replaces the scheme of requests; "" keeps it
	tunnels  bool   // CONNECT is passed to svc
	closes   bool   // most errors close the connection of the client
	resets   bool   // a stream reset by the endpoint resets the stream of the client
	onError  ErrorHandler
	onEnd    []func(*Report)
	observer Layer
	observed Service              // the observer around a responder; nil without an observer
	cfg      message.ServerConfig // for ServeHTTP

	// textField is the header for an error's text, and closeField the one that asks the client to close its connection.
	textField, closeField string // "" without WithErrorHeaders
}

// configure completes h after its options were applied, and sets the fields of cfg by which a
// connection uses h.
func (h *handler) configure(cfg *message.ServerConfig) {
	h.log = limitedLog(h.log)
	// The connections call serve for each request, and refusal for one that they refuse themselves.
	cfg.Log, cfg.Exchange, cfg.Refusal = h.log, h.serve, h.refusal
	if h.observer != nil {
		h.observed = h.observer(responder{h})
	}
	if len(h.onEnd) > 0 {
		cfg.Ended = func(x *Report) {
			for _, f := range h.onEnd {
				f(x)
			}
		}
	}
}

// HandlerOption is an option of [Handler], [Middleware] and [NewServer].
type HandlerOption func(*handler)

// WithErrorHeaders makes an error response carry the error text in grpc-message and the header
// textField, and sets closeField to close if the client should not use its connection again. It implies
// [WithCloseOnError]. By default, and with empty names, there are no such headers. An error text names
// layers and endpoint addresses, so you should enable it only for trusted clients, such as other proxies
// in a mesh. A server for both kinds of clients needs two Handlers. Package mesh has linkerd's names.
func WithErrorHeaders(textField, closeField string) HandlerOption {
	return func(h *handler) { h.textField, h.closeField = textField, closeField }
}

// informs reports whether clients get the texts of errors.
func (h *handler) informs() bool { return h.textField != "" }

// WithCloseOnError sets whether most errors close the connection of an HTTP/1.1 client, as in linkerd's
// proxy, so that its next request may reach another proxy. The default is false, because a client would
// pay a handshake for each error during an outage.
func WithCloseOnError(on bool) HandlerOption {
	return func(h *handler) { h.closes = on }
}

// WithConnect passes HTTP/1.1 CONNECT requests to svc. The connection becomes a tunnel if the
// response is a 2xx whose body is an [io.ReadWriteCloser], as an [Endpoint] returns it. Each
// direction of a tunnel ends separately. Closing the body ends both directions. A layer.Drain in
// svc waits for tunnels. After any other response the client's connection is closed.
//
// By default CONNECT is rejected, because no layer sees what a tunnel carries. Also, many servers
// that are not proxies answer CONNECT with 2xx and parse the tunnel's content as requests.
func WithConnect() HandlerOption { return func(h *handler) { h.tunnels = true } }

// WithLogger sets the logger for errors that are answered: 5xx at level Warn, 4xx at level Debug. An
// error after the client has disconnected is not logged. Panics are logged at level Error, and requests
// that a [Server] refuses at level Debug. Each message of level Info or higher is logged at most ten
// times in ten seconds. After this time, one message tells how many were suppressed. The default is
// [slog.Default] at construction. Nil means no log.
func WithLogger(l *slog.Logger) HandlerOption {
	return func(h *handler) { h.log = l }
}

// WithScheme sets the requests' scheme, usually "https" because TLS is terminated before a [Server],
// instead of what the client sent. The default "" keeps the scheme of an HTTP/1.1 request with an
// absolute target. Other requests get https with TLS in net/http's server, and otherwise http.
func WithScheme(scheme string) HandlerOption { return func(h *handler) { h.scheme = scheme } }

// Report describes a request and what its client got. The functions of [WithOnResponse] get it after the
// response has ended. They may keep it, but must not modify it.
type Report = message.Report

// WithOnResponse adds a function that is called for each request after its response has ended, for
// example for a metric. A [Server] also calls it for requests that it refuses by itself. It is called
// concurrently, and should return soon. All functions and the access log share one Report.
func WithOnResponse(f func(*Report)) HandlerOption {
	return func(h *handler) { h.onEnd = append(h.onEnd, f) }
}

// WithObserver puts a layer, such as one from package tap, where it sees the responses that clients
// get: those for errors already carry their final status. An error from the inner service is the reset
// of an HTTP/2 stream. The layer sees requests before any other layer does, except those that a
// [Server] refuses by itself; see [WithOnResponse]. If you pass several, the last one applies.
func WithObserver(l Layer) HandlerOption { return func(h *handler) { h.observer = l } }

// limitedLog returns a logger that writes to l. It writes each message of level Info or
// higher at most ten times in ten seconds. With a nil l it discards all messages.
func limitedLog(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(lograte.New(l.Handler()))
}

// serve is the [message.Exchange] of the connections: it returns the response to the received request
// r. With [WithObserver], r passes through the observer on its way to respond.
func (h *handler) serve(r *http.Request) (*http.Response, error) {
	h.complete(r)
	if h.observed != nil {
		return roundTripper{h.observed}.RoundTrip(r)
	}
	return h.respond(r.Context(), r)
}

// responder is the Service inside the observer. Its responses are those for the client, so it has no
// errors but resets.
type responder struct{ *handler }

func (responder) Ready(context.Context) error { return nil }

// Call returns the response for the client, in place of most errors; see respond.
func (h responder) Call(ctx context.Context, r *http.Request) (*http.Response, error) {
	return h.respond(ctx, r)
}

// respond returns the response for the client: that of the layers, or one that reports their error.
// Only a stream reset by the endpoint is returned as an error, if h.resets is true, so that the server
// resets the client's stream, too.
func (h *handler) respond(ctx context.Context, r *http.Request) (rsp *http.Response, err error) {
	began := time.Time{}
	if len(r.Header[grpcTimeoutField]) > 0 {
		began = time.Now() // overdue compares it with grpc-timeout
	}
	switch err = cmp.Or(misdirected(r), upgradeError(r)); {
	// Not supported, or an extended CONNECT that is not a WebSocket.
	case r.Method == http.MethodConnect && (!h.tunnels || len(r.Header[":protocol"]) > 0):
		rsp, err = newResponse(r, http.StatusNotImplemented, make(http.Header)), nil
	case err == nil:
		// If an endpoint rejects the request after reading a part of the body, the next one can start anew.
		lendBody(r)
		rsp, err = roundTripper{h.svc}.call(ctx, r)
	}
	if err == nil {
		err = checkResponse(r, rsp)
	}
	switch {
	case err == nil && isGRPC(r):
		h.prepareGRPC(r, rsp, began)
	case err == nil:
		if len(rsp.Trailer) > 0 && r.ProtoMajor == 1 {
			delete(rsp.Header, "Content-Length") // HTTP/1.1 sends trailers only with a chunked body
			rsp.ContentLength = -1
		}
	default:
		if rsp != nil {
			_ = rsp.Body.Close()
		}
		err = overdue(r, began, err)
		// An outer layer has asked why the request took this way, for example tap. Add the failure to
		// the answer.
		if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
			explanation.Add(layer.Node{Name: "failed", State: layer.State{{Key: "err", Value: err.Error()}}})
		}
		if h.resets && isPassedReset(r, err) {
			layer.RecordFromContext(ctx).SetErr(err)
			h.logFailure(r, http.StatusBadGateway, err)
			return nil, err
		}
		rsp = h.failure(r, err)
	}
	setConnection(r, rsp)
	return rsp, nil
}

// setConnection prepares the connection headers of rsp for the client. It removes hop-by-hop headers
// that a layer or the endpoint has left, except in a 101 response. It adds Connection: close for an
// HTTP/1 client if a layer has marked the response with message.CloseClient, or if a CONNECT was rejected,
// because the client may have sent bytes for the tunnel already. It always removes the mark.
func setConnection(r *http.Request, rsp *http.Response) {
	_, closes := rsp.Header[message.CloseClient] //nolint:staticcheck // not canonical on purpose
	delete(rsp.Header, message.CloseClient)
	rsp.Close = false
	if _, ok := rsp.Header["Connection"]; ok && rsp.StatusCode != http.StatusSwitchingProtocols {
		message.RemoveHopByHop(rsp.Header)
	}
	if (closes || r.Method == http.MethodConnect && rsp.StatusCode/100 != 2) && r.ProtoMajor == 1 {
		headerOf(rsp)["Connection"] = []string{"close"}
	}
}

// prepareGRPC prepares rsp for the client of the gRPC request r, so that the client gets a gRPC status
// even if reading from the endpoint fails: see grpcBody. A response without a body only loses its
// content-length. began is when the request began, if it carries a grpc-timeout.
func (h *handler) prepareGRPC(r *http.Request, rsp *http.Response, began time.Time) {
	if ended(rsp) {
		_ = rsp.Body.Close()
		rsp.Body, rsp.ContentLength = http.NoBody, -1 // a content-length would be metadata for the client
		delete(rsp.Header, "Content-Length")
		return
	}
	rsp.Body = &grpcBody{wrappedBody{rsp.Body}, r, rsp, began, h.informs(), h.resets}
}

// checkResponse returns an error if rsp, which may come from any layer, cannot be sent to the client:
// because of its status, or because it begins a tunnel that was not requested or has no connection.
func checkResponse(req *http.Request, rsp *http.Response) error {
	// A body with a Write method is a connection, as a tunnel needs it.
	_, tunnel := rsp.Body.(io.ReadWriteCloser)
	switch code := rsp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		offer := message.Upgrade(req.Header)
		choice := message.Upgrade(rsp.Header)
		if !message.Offers(offer, choice) {
			return &peerError{fmt.Errorf("httplayer: the endpoint switched to %q where %q was asked for", choice, offer)}
		}
		if !tunnel {
			return &peerError{errors.New("httplayer: the endpoint switched protocols and has no connection")}
		}
	case code < http.StatusOK || code > 999:
		return &peerError{fmt.Errorf("httplayer: invalid response status %d", code)}
	// Not a peerError, because this needs Close: the client may have sent bytes of the tunnel already, which the
	// server must not read as a request.
	case req.Method == http.MethodConnect && code/100 == 2 && !tunnel:
		return &StatusError{Code: http.StatusBadGateway, Reason: "CONNECT got a response without a tunnel", Close: true}
	}
	return nil
}

// complete sets the scheme and the host in the URL of a received request, because layers
// and endpoints expect them. It removes the header fields Host and HTTP2-Settings.
func (h *handler) complete(r *http.Request) {
	switch {
	case h.scheme != "":
		r.URL.Scheme = h.scheme
	// A cleartext request, in which the client did not name the scheme. With TLS, the scheme stays empty, and HTTP.Scheme
	// reads "https" from r.TLS.
	case r.URL.Scheme == "" && r.TLS == nil:
		r.URL.Scheme = "http"
	}
	r.URL.Host = (HTTP{}).Authority(r)
	delete(r.Header, "Http2-Settings")
	delete(r.Header, "Host") // an HTTP/2 server stores it in addition to r.Host
}

// newResponse returns a response to r with the version of r and without a body.
func newResponse(r *http.Request, status int, header http.Header) *http.Response {
	return &http.Response{
		StatusCode: status, Status: strings.TrimSpace(message.StatusLines[status]),
		Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: header, Body: http.NoBody, Request: r,
	}
}

// failure returns the response that reports err to the client of r. It logs err, unless the client has
// disconnected or the context of r has ended, for example at the client's deadline.
func (h *handler) failure(r *http.Request, err error) *http.Response {
	status, code := StatusFromError(err)
	layer.RecordFromContext(r.Context()).SetErr(err)
	header := make(http.Header)
	switch {
	case message.ClientLeft(r):
		rsp := newResponse(r, StatusClientClosedRequest, header)
		if isGRPC(r) {
			setStatus(header, grpcCanceled, "")
		}
		return rsp
	case r.Context().Err() == nil: // not if the client's deadline has passed
		h.logFailure(r, status, err)
	}
	rsp := newResponse(r, status, header)
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		maps.Copy(header, chosen.Header.Clone())
	}
	if closes(err, h.closes || h.informs()) {
		header[message.CloseClient] = []string{"close"}
		if h.informs() {
			header.Set(h.closeField, "close")
		}
	}
	if h.informs() {
		header.Set(h.textField, printable(err.Error()))
	}
	grpc := isGRPC(r)
	// Only a rejected request can be sent again without being processed twice.
	rejected := errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrRetryRejected)
	if after, ok := layer.RetryAfter(err); ok && rejected {
		setRetryAfter(header, after, grpc)
	}
	if !grpc {
		h.describeError(rsp, r, err)
		return rsp
	}
	text := cmp.Or(detail(err), http.StatusText(status))
	if h.informs() {
		text = err.Error()
	}
	replyGRPC(rsp, code, text)
	return rsp
}

// logFailure logs a request that was answered with an error status. A status below 500 is usually the
// client's fault, and is logged at level Debug.
func (h *handler) logFailure(r *http.Request, status int, err error) {
	ctx, level := r.Context(), slog.LevelWarn
	if status < http.StatusInternalServerError {
		level = slog.LevelDebug
	}
	var a HTTP
	h.log.LogAttrs(ctx, level, "request failed",
		slog.String("method", a.Method(r)), slog.String("authority", a.Authority(r)),
		slog.String("path", a.Path(r)), slog.Int("status", status), slog.Any("err", err))
}

// printable returns s with control characters replaced by spaces, as a valid header value.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
}

// Describe shows the layers.
func (h *handler) Describe() layer.Node { return layer.Describe(h.svc) }
