package httplayer

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/internal/wake"
	"github.com/gotower/gotower/layer"
)

// Endpoint is the client of one address, on connections of its own. It is a
// [Service], safe for concurrent use.
//
// Admission: HTTP/1.1 connections take one request each. The idle one that was
// used last is used next; with none idle, Call connects, up to [WithMaxConns].
// HTTP/2 has one connection, made by whoever comes first for all who come
// meanwhile, and as many requests on it as the server's SETTINGS allow: it is
// used only once these have come, so that even the first burst is counted
// right. A request holds its place until its response ended; one that was
// cancelled, where the server has been silent since, until it is heard of
// again. A connection whose server stays silent for 30 s after that leads
// nowhere: the next request has another one made. Whatever is beyond that is
// refused at once. An Endpoint is ready, with or without a connection, until
// connecting fails. Call connects; Ready does so only after a failure.
//
// Protocol: without [WithHTTP1], [WithHTTP2] or [KeepVersion], gRPC goes by HTTP/2 and CONNECT
// and requests to upgrade the connection go by HTTP/1.1. What else came by HTTP/2
// goes by HTTP/2 if the connection uses TLS or if it is a request of the Connect
// protocol. All other requests go by HTTP/1.1. A cleartext server that speaks
// HTTP/2 alone needs H2.
//
// A server that turns out not to speak HTTP/2 gets by HTTP/1.1 what came by
// HTTP/2, unless that is gRPC or [WithHTTP2] was given. It says so by an answer that is
// none of HTTP/2, or in the TLS handshake; a connection that ends before a word
// was said is one that could not be made. What it said counts until it speaks
// HTTP/2 on a connection that is to be one of HTTP/1.1, or there is none to be
// had, or one that was just made ends unanswered. What comes by HTTP/1.1 to a
// server whose TLS handshake says that it speaks HTTP/2 alone fails, which is no
// refusal; what comes by HTTP/2 is served on.
//
// An address that cannot be reached: the request is refused, untouched, and so
// are those that follow, at once. Ready tries again, one attempt at a time,
// after a back-off of 1 s at most (see [WithBackoff]), and keeps the connection that it made; where requests come by
// both versions of HTTP, by the one and then by the other. Where nobody is in
// Ready, the first Call after the back-off tries; a refusal says as its After
// when that is.
//
// Cleartext: an Endpoint without [WithTLS] rejects a request whose URL is https,
// before it connects. [WithCleartextHTTPS] permits it. A request of a [Handler] has
// the scheme https only if its client sent an absolute target with that scheme.
//
// Age: with [WithMaxConnAge], the first request that finds a connection too old
// goes by it all the same, and has a successor made in the background. When
// that is there, an HTTP/2 connection takes no new streams, finishes those it
// has (see [WithMaxConnAgeGrace]), and is closed; an HTTP/1.1 connection is closed
// at once if it is idle, and else after its response. If the successor cannot be
// made, or would take no requests, the old connection serves on, and it is tried
// again after the back-off. So no request waits, fails or is refused because of
// it. There is one successor in the making at a time. A connection that gets no
// requests is left as it is, and so is one that was upgraded.
//
// Errors are a [layer.Error] that names the address. An Endpoint never sends a
// request twice. It refuses one, or moves it to another connection, where
// there is proof that the endpoint did not process it and that no byte of its
// body was read:
//
//   - the connection could not be made;
//   - an HTTP/1.1 connection was lost before one byte of the request was
//     written (bytes are counted under net/http);
//   - the HTTP/2 connection closed, or the server was going away, before a
//     stream was opened;
//   - the server reset the stream with REFUSED_STREAM, or its GOAWAY says that
//     the stream came too late (RFC 9113, section 8.7).
//
// There is no proof once a byte was written to an HTTP/1.1 connection: that a
// server closed an idle connection just as a request came may be all that
// happened, and it may not. Such an error is no refusal; it is up to a retry
// to know whether the request may be sent again.
//
// Forms: an HTTP/1 request that a server received goes out as it came. One whose
// target was in absolute form keeps that, on connections that take no others;
// one of HTTP/1.0 stays one, and that or an empty Host has a connection for
// itself. Where WithMaxConns leaves no room, an idle one of another form gives way.
// No length is said for a body that is not there, unless the client said it.
//
// Tunnels: CONNECT always goes by HTTP/1.1, on a connection that is made for it.
// The body of a 2xx is an [io.ReadWriteCloser] with a CloseWrite: the tunnel, and
// lengths said in its head mean nothing. It is in flight until it is closed, or
// its context ends, and so is an upgraded connection.
//
// Cancellation: when the context of a request ends, before its body was
// closed, an HTTP/1.1 connection is closed, upgraded or not, and an HTTP/2 stream
// is reset.
//
// Body: the response body must be closed, as with any [http.RoundTripper]; an
// HTTP/1.1 connection is free again when it was read to its end. The body of a
// request that failed may still be in a Read when Call returns. In HTTP/2,
// Close waits for a Read of the request body that is under way
// (golang/go#80085), so the Close of that should end its Read.
//
// When the context given to NewEndpoint ends, Call refuses with
// [layer.ErrClosed], idle connections are closed, and the others are when the
// response on them ends.
type Endpoint struct {
	addr   string
	opts   endpointOptions
	life   context.Context //nolint:containedctx // the constructor's: connections live as long as it does
	wake   wake.Broadcast
	link   link
	h1     pool
	h2     single
	asked  [2]atomic.Bool // for HTTP/1.1, and for HTTP/2
	lastH2 atomic.Bool    // what Ready should connect by
	onlyH1 atomic.Bool    // the server was found not to speak HTTP/2
	full   error          // the refusal at capacity, made once
}

// NewEndpoint returns the client of addr, "host:port". It does nothing yet.
// The Endpoint and its connections live until ctx ends. An empty addr panics. Of
// one that is malformed the dial function tells, in the error of the first Call.
func NewEndpoint(ctx context.Context, addr string, opts ...EndpointOption) *Endpoint {
	if addr == "" {
		panic("httplayer: empty address")
	}
	e := &Endpoint{addr: addr, opts: newEndpointOptions(addr, opts), life: ctx}
	e.link.backoff, e.link.patience = e.opts.backoff, e.opts.connectTimeout
	e.h1 = pool{endpoint: e, transport: newTransport(http1), open: make(map[*h1Conn]struct{})}
	e.h2 = single{endpoint: e, transport: newTransport(http2), open: make(map[*h2Conn]struct{})}
	e.h2.transport.HTTP2.SendPingTimeout, e.h2.transport.HTTP2.PingTimeout = e.opts.pingInterval, e.opts.pingTimeout
	e.lastH2.Store(e.opts.protocol == http2)
	e.full = &layer.Error{Layer: "endpoint", Endpoint: addr, Kind: layer.ErrNotReady, Reason: "at capacity"}
	e.h1.heirs.backoff, e.h2.heirs.backoff = e.opts.backoff, e.opts.backoff
	context.AfterFunc(ctx, e.shut)
	return e
}

// Call sends req by a connection of the Endpoint. See [Endpoint] for what it
// refuses.
func (e *Endpoint) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if e.life.Err() != nil {
		return nil, e.closedError()
	}
	if ctx.Err() != nil {
		return nil, e.goneError(ctx)
	}
	if e.opts.tls == nil && !e.opts.cleartextHTTPS && isHTTPS(req) {
		closeBody(req)
		return nil, e.failed(errCleartextHTTPS)
	}
	if !e.byH2(req) {
		return e.callH1(ctx, req)
	}
	rsp, err := e.h2.call(ctx, req)
	switch {
	case err == nil || e.opts.protocol.isFixed() || !errors.Is(err, errNotH2):
		return rsp, err
	case hasGRPCType(req):
		closeBody(req) // the request has failed
		return nil, err
	}
	e.onlyH1.Store(true)
	e.asked[1].Store(false)
	e.byH2(req) // false from now on
	return e.callH1(ctx, req)
}

// Classifier returns [Classify]: see [layer.Classified].
func (*Endpoint) Classifier() layer.Classifier[*http.Response] { return Classify }

func (e *Endpoint) callH1(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := e.h1.call(ctx, req)
	if err != nil && errors.Is(err, errNotH1) {
		closeBody(req) // it is no refusal
	}
	return rsp, err
}

// byH2 chooses the protocol, and remembers it for Ready.
func (e *Endpoint) byH2(req *http.Request) bool {
	h2 := e.wantsH2(req)
	if h2 && (req.Method == http.MethodConnect || len(req.Header["Upgrade"]) > 0) {
		return false
	}
	if e.lastH2.Load() != h2 {
		e.lastH2.Store(h2)
	}
	asked := &e.asked[0]
	if h2 {
		asked = &e.asked[1]
	}
	if !asked.Load() {
		asked.Store(true)
	}
	return h2
}

// wantsH2 reports whether req should go by HTTP/2, as far as the server is known
// to speak it.
func (e *Endpoint) wantsH2(req *http.Request) bool {
	if e.opts.protocol.isFixed() {
		return e.opts.protocol == http2
	}
	two := req.ProtoMajor >= 2
	if hasGRPCType(req) {
		return two || e.opts.protocol == auto && !isGRPCWeb(req)
	}
	return two && !e.onlyH1.Load() && (e.opts.protocol == asReceived || e.opts.tls != nil || isConnectRPC(req))
}

// doubt forgets that the server does not speak HTTP/2: it may be another one
// now.
func (e *Endpoint) doubt() {
	if e.onlyH1.Load() {
		e.onlyH1.Store(false)
	}
}

// isHTTPS reports whether the URL of req promises TLS to its caller.
func isHTTPS(req *http.Request) bool {
	return req.URL != nil && len(req.URL.Scheme) == len("https") && strings.EqualFold(req.URL.Scheme, "https")
}

// errCleartextHTTPS is 421 because a retry on another connection of the same
// endpoint cannot help (RFC 9110, section 7.4).
var errCleartextHTTPS = &StatusError{
	Code:   http.StatusMisdirectedRequest,
	Reason: "the URL is https and the endpoint has no TLS: set httplayer.WithTLS, or httplayer.WithCleartextHTTPS to send it in cleartext",
}

func (e *Endpoint) scheme() string {
	if e.opts.tls != nil {
		return "https"
	}
	return "http"
}

// shut is called when the Endpoint's life ends.
func (e *Endpoint) shut() {
	e.h1.shut()
	e.h2.shut()
	e.wake.Wake()
}

// refuse is a refusal: the request is untouched.
func (e *Endpoint) refuse(reason string, cause error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: reason, Err: cause}
}

func (e *Endpoint) goneError(ctx context.Context) error {
	return e.refuse(left.Why(ctx), context.Cause(ctx))
}

func (e *Endpoint) closedError() error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrClosed, Err: context.Cause(e.life)}
}

// failed is the error of a request that was sent, or may have been. err says
// whose fault it is.
func (e *Endpoint) failed(err error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Err: err}
}

// unreachable is the refusal of a request for which there is no connection, nor
// an attempt to make one before its After.
func (e *Endpoint) unreachable(err error) error {
	if e.life.Err() != nil {
		return e.closedError()
	}
	return &layer.Error{
		Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: noConnection, RetryAfter: e.link.wait(), Err: err,
	}
}

// noConnection is the Reason by which unreachable's refusal is known.
const noConnection = "no connection"
