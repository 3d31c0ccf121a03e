package httplayer

import (
	"cmp"
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

// Handler returns a reverse proxy that serves requests by svc. It removes hop-by-hop
// headers, and forwards trailers, 1xx responses and upgrades. Request and response bodies
// are copied at the same time. The context given to svc ends when the client disconnects.
// In a [Server], HTTP/1.1 is full duplex. In any other server it is half duplex.
//
// svc receives the authority, path, query and headers of the client unchanged.
// X-Forwarded-For and Via are not added, and those of the client are kept; see [Forwarded].
// CONNECT is answered with 501, unless [WithConnect] is set. A malformed target or upgrade
// is answered with 400. A 101 response without a requested upgrade becomes 502. A WebSocket
// over HTTP/2 is an HTTP/1.1 upgrade for svc; see [Server].
//
// The response to an error of svc has the status of [StatusFromError] and the body of
// [Problem]; see [WithErrorHandler]. It does not have the text of the error, because that
// has addresses of endpoints; see [WithErrorHeaders]. Most errors also close the connection
// of the client. A rejection with a retry-after time adds Retry-After, or
// grpc-retry-pushback-ms for gRPC. A gRPC request receives a gRPC status, in the trailers
// if the response body fails. If the endpoint resets a stream, the stream of the client is
// reset with the same code.
//
// A Handler is safe for concurrent use. A nil svc panics.
func Handler(svc Service, opts ...HandlerOption) http.Handler { return newHandler(svc, opts...) }

func newHandler(svc Service, opts ...HandlerOption) *handler {
	if svc == nil {
		panic("httplayer: nil service")
	}
	h := &handler{svc: svc, log: slog.Default(), onError: Problem} //nolint:forbidigo // an error without a log would be lost
	option.Apply(h, opts)
	h.log = limitedLog(h.log)
	return h
}

// HandlerOption is an option of [Handler] and [Middleware].
type HandlerOption func(*handler)

// WithErrorHeaders sets whether an error response has the text of the error in
// l5d-proxy-error and grpc-message, and also has l5d-proxy-connection. The default is
// false. The text of an error has names of layers and addresses of endpoints. Enable it
// only for trusted clients, such as other proxies of a mesh. A server for both kinds of
// clients needs two Handlers.
func WithErrorHeaders(on bool) HandlerOption {
	return func(h *handler) { h.informs = on }
}

// WithConnect passes HTTP/1.1 CONNECT requests to svc. The connection becomes a tunnel if
// the response is a 2xx with an [io.ReadWriteCloser] as its body, as an [Endpoint] returns
// it. Each direction of a tunnel ends separately. Closing the body ends both directions. A
// layer.Drain in svc waits for tunnels. After any other response the connection of the
// client is closed.
//
// The default rejects CONNECT, because no layer sees the content of a tunnel. Also, many
// servers that are not proxies answer CONNECT with 2xx and parse the content of the tunnel
// as requests.
func WithConnect() HandlerOption { return func(h *handler) { h.tunnels = true } }

// WithLogger sets the logger for errors that a Handler answers: 5xx at level Warn, 4xx at level
// Debug. An error after the client has disconnected is not logged. At most ten errors of level Warn
// are logged in ten seconds. After this time, one message has the number of suppressed errors. The
// default is [slog.Default] at construction. Nil means no log.
func WithLogger(l *slog.Logger) HandlerOption {
	return func(h *handler) { h.log = l }
}

// limitedLog returns a logger that writes to l. It writes each message of level Info or
// higher at most ten times in ten seconds. With a nil l it discards all messages.
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
	informs bool // error responses have the text of the error
	onError ErrorHandler
}

// serve returns the response of svc to r; see finish. The caller has removed the hop-by-hop
// headers of r.
func (h *handler) serve(r *http.Request, resets bool) (rsp *http.Response, err error) {
	began := time.Time{}
	if len(r.Header[grpcTimeoutField]) > 0 {
		began = time.Now() // overdue compares it with grpc-timeout
	}
	switch err = cmp.Or(misdirected(r), upgradeError(r)); {
	case r.Method == http.MethodConnect && (!h.tunnels || len(r.Header[":protocol"]) > 0):
		rsp, err = newResponse(r, http.StatusNotImplemented, make(http.Header)), nil
	case err == nil:
		complete(r)
		rsp, err = roundTripper{h.svc}.RoundTrip(r)
	}
	return h.finish(r, rsp, err, began, resets)
}

// finish returns the response to r. This is rsp, or the response to err or to an invalid rsp.
// There is one exception: if resets is true, a stream reset by the endpoint is returned as an
// error, so that the server resets the stream of the client. The argument began is the time at
// which a request with grpc-timeout began.
func (h *handler) finish(
	r *http.Request, rsp *http.Response, err error, began time.Time, resets bool,
) (*http.Response, error) {
	if err == nil {
		err = checkResponse(r, rsp)
	}
	switch {
	case err == nil && isGRPC(r):
		h.prepareGRPC(r, rsp, began, resets)
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
		if resets && isPassedReset(r, err) {
			h.logFailure(r, http.StatusBadGateway, err)
			return nil, err
		}
		rsp = h.failure(r, err)
	}
	setConnection(r, rsp)
	return rsp, nil
}

// setConnection prepares the connection headers of rsp for the client. If rsp has the header
// Connection and is not a 101 response, it removes the hop-by-hop headers. For an HTTP/1 client, it
// adds Connection: close in two cases. The first is a rejected CONNECT, because the client may have
// sent bytes for the tunnel. The second is a response that a layer has marked with the header
// closesClient. The mark is always removed.
func setConnection(r *http.Request, rsp *http.Response) {
	_, closes := rsp.Header[closesClient] //nolint:staticcheck // not canonical on purpose
	delete(rsp.Header, closesClient)
	rsp.Close = false
	if _, ok := rsp.Header["Connection"]; ok && rsp.StatusCode != http.StatusSwitchingProtocols {
		message.RemoveHopByHop(rsp.Header)
	}
	if (closes || r.Method == http.MethodConnect && rsp.StatusCode/100 != 2) && r.ProtoMajor == 1 {
		headerOf(rsp)["Connection"] = []string{"close"}
	}
}

// prepareGRPC prepares rsp for the client of the gRPC request r. If rsp has no body, it removes the
// content-length. Otherwise it replaces the body by a grpcBody, which ends with a gRPC status if
// reading from the endpoint fails. If the argument resets is true, Read of the grpcBody returns a
// stream reset as an error instead.
func (h *handler) prepareGRPC(r *http.Request, rsp *http.Response, began time.Time, resets bool) {
	if ended(rsp) {
		_ = rsp.Body.Close()
		rsp.Body, rsp.ContentLength = http.NoBody, -1 // a content-length would be metadata for the client
		delete(rsp.Header, "Content-Length")
		return
	}
	rsp.Body = &grpcBody{wrappedBody{rsp.Body}, r, rsp, began, h.informs, resets}
}

// checkResponse returns an error if rsp cannot be sent to the client.
func checkResponse(req *http.Request, rsp *http.Response) error {
	_, tunnel := rsp.Body.(io.ReadWriteCloser)
	switch code := rsp.StatusCode; {
	case code == http.StatusSwitchingProtocols:
		asked, got := message.Upgrade(req.Header), message.Upgrade(rsp.Header)
		if got == "" || !strings.EqualFold(asked, got) {
			return &peerError{fmt.Errorf("httplayer: the endpoint switched to %q where %q was asked for", got, asked)}
		}
		if !tunnel {
			return &peerError{errors.New("httplayer: the endpoint switched protocols and has no connection")}
		}
	case code < http.StatusOK || code > 999:
		return &peerError{fmt.Errorf("httplayer: invalid response status %d", code)}
	case req.Method == http.MethodConnect && code/100 == 2 && !tunnel:
		return &StatusError{Code: http.StatusBadGateway, Reason: "CONNECT got a response without a tunnel", Close: true}
	}
	return nil
}

// complete sets the scheme and the host in the URL of a received request, because layers
// and endpoints expect them. It removes the header fields Host and HTTP2-Settings.
func complete(r *http.Request) {
	if r.URL.Scheme == "" && r.TLS == nil {
		r.URL.Scheme = "http"
	}
	r.URL.Host = (Accessor{}).Authority(r)
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

// failure returns the response to r for err, and logs err unless the client has
// disconnected.
func (h *handler) failure(r *http.Request, err error) *http.Response {
	status, code := StatusFromError(err)
	if r.Context().Err() == nil {
		h.logFailure(r, status, err)
	}
	header := make(http.Header)
	rsp := newResponse(r, status, header)
	layer.RecordFromContext(r.Context()).SetErr(err)
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		maps.Copy(header, chosen.Header.Clone())
	}
	if closes(err) {
		header[closesClient] = []string{"close"}
		if h.informs {
			header.Set("L5d-Proxy-Connection", "close")
		}
	}
	if h.informs {
		header.Set("L5d-Proxy-Error", printable(err.Error()))
	}
	grpc := isGRPC(r)
	rejected := errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrRetryRejected)
	if after, ok := layer.RetryAfter(err); ok && rejected {
		setRetryAfter(header, after, grpc)
	}
	if !grpc {
		h.describeError(rsp, r, err)
		return rsp
	}
	message := ""
	if h.informs {
		message = err.Error()
	}
	replyGRPC(rsp, code, message)
	return rsp
}

func (h *handler) logFailure(r *http.Request, status int, err error) {
	ctx, level := r.Context(), slog.LevelWarn
	if status < http.StatusInternalServerError {
		level = slog.LevelDebug
	}
	var a Accessor
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

// answer sends rsp, or the response to err or to an invalid rsp.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, rsp *http.Response, err error) {
	rsp, _ = h.finish(r, rsp, err, time.Now(), false) // without resets, finish returns no error
	send(w, r, rsp)
}
