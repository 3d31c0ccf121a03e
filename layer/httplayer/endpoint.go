package httplayer

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Endpoint is an HTTP client for one address, and a [Service]. "Connections" in the package documentation
// describes the choice of the protocol, which requests are sent again, tunnels, and the age of connections.
//
// Admission: an HTTP/1.1 connection serves one request at a time. Call uses the most recently used
// idle connection, or makes a new one, up to [WithMaxConns]. HTTP/2 uses one connection, with as
// many requests as the server allows. Above these limits, Call rejects requests at once. After a
// failed connection attempt, all requests are rejected until a new attempt succeeds, which follows
// after the [WithBackoff] backoff, at the next Call or while Ready waits.
//
// Cancellation: if a request context ends before its response body is closed, the HTTP/1.1
// connection is closed or the HTTP/2 stream is reset.
//
// Body: the caller must close the response body. When Call returns an error, a Read of the request
// body may still be in progress; closing that body should end it.
//
// Errors: a [layer.Error] with the address. A rejection means that the server did not process the
// request, and that its body can be read from its beginning. Once NewEndpoint's context has ended,
// Call rejects with [layer.ErrClosed].
//
// Cost: goroutines of an idle connection: HTTP/1.1 none (one on Windows), HTTP/2 two.
type Endpoint struct {
	addr   string
	opts   endpointOptions
	life   context.Context  //nolint:containedctx // the ctx of NewEndpoint
	wake   notify.Broadcast // wakes Ready when there may be room, and when an attempt to connect has ended
	link   link             // whether the address can be reached
	h1     pool             // the HTTP/1.1 connections
	h2     single           // the HTTP/2 connections
	used   [2]atomic.Bool   // [0]: a request has used HTTP/1.1; [1]: a request has used HTTP/2
	lostH2 atomic.Bool      // the last failed attempt to connect used HTTP/2
	onlyH1 atomic.Bool      // the server does not support HTTP/2
	full   error            // rejection at capacity; made once to save allocations
}

// NewEndpoint returns an Endpoint for addr, "host:port". It connects when the first request
// arrives. The Endpoint and its connections live until ctx ends. Then idle connections close.
// NewEndpoint panics if addr is empty. If addr is malformed, the dial function returns an error for
// each request.
func NewEndpoint(ctx context.Context, addr string, opts ...EndpointOption) *Endpoint {
	if addr == "" {
		panic("httplayer: empty address")
	}
	e := &Endpoint{addr: addr, opts: newEndpointOptions(addr, opts), life: ctx}
	e.link.backoff, e.link.timeout = e.opts.backoff, e.opts.connectTimeout
	e.h1.endpoint = e
	e.h2.init(e)
	// One value serves all rejections at capacity, so that they do not allocate.
	e.full = e.fault(layer.ErrNotReady, "at capacity", nil)
	// Idle connections of HTTP/1.1 have no goroutine of their own that could close them. Each connection of HTTP/2 has
	// one, which waits for the end of ctx.
	context.AfterFunc(ctx, e.h1.shut)
	return e
}

// Call sends req on a connection of the Endpoint and returns its response. It rejects req in the
// cases that [Endpoint] lists under Admission and Errors.
func (e *Endpoint) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if e.life.Err() != nil {
		return nil, e.closedError()
	}
	if ctx.Err() != nil {
		return nil, e.goneError(ctx)
	}
	if e.opts.tls == nil && !e.opts.cleartextHTTPS && isHTTPS(req) {
		message.CloseBody(req)
		// Without a kind, the error is not a rejection: another endpoint must not get the request.
		return nil, e.fault(nil, "", errCleartextHTTPS) // no kind: not a rejection
	}
	trace := message.TraceOf(ctx)
	trace.GetConn(e.addr)
	if !e.byH2(req) {
		return e.callH1(ctx, req, trace)
	}
	// Until the TLS handshake, it is not known whether the server supports HTTP/2.
	rsp, err := e.h2.call(ctx, req, trace)
	switch {
	case err == nil || !e.speaksOther(err):
		return rsp, err
	case needsHTTP2(req):
		message.CloseBody(req) // the request has failed
		return nil, err
	}
	// The server has selected HTTP/1.1, and the Endpoint has recorded that.
	e.byH2(req) // false from now on
	return e.callH1(ctx, req, trace)
}

// Connect makes a connection for the next request, unless one is idle. Without it, the first request
// connects. It returns the attempt's error, which also counts as a failed attempt of a request does;
// see [Endpoint].
func (e *Endpoint) Connect(ctx context.Context) error {
	if e.life.Err() != nil {
		return e.closedError()
	}
	// A connection for HTTP/2, or for whatever the server selects.
	if e.opts.protocol == http2 || e.opts.protocol == auto && e.opts.tls != nil && !e.onlyH1.Load() {
		_, err := e.h2.get(ctx, attempt{orHTTP1: true})
		if err == nil || !e.speaksOther(err) {
			return err
		}
	}
	// An idle connection is enough. It was only taken to see that there is one.
	if c := e.h1.takeIdle(); c != nil {
		e.h1.release(c, true) // reusable
		return nil
	}
	c, err := e.h1.dial(ctx, message.Trace{})
	if err == nil {
		e.h1.keep(c)
	}
	return err
}

// CloseIdleConnections closes the connections on which no request is in flight. The Endpoint stays
// usable and connects again when needed.
func (e *Endpoint) CloseIdleConnections() {
	e.h1.closeIdle()
	e.h2.closeIdle()
}

// Classifier returns [Classify]. It implements [layer.Classified].
func (*Endpoint) Classifier() layer.Classifier[*http.Response] { return Classify }

// callH1 sends req over HTTP/1.1, without the header field that a proxy uses over HTTP/2 only. It
// calls trace's hooks.
func (e *Endpoint) callH1(ctx context.Context, req *http.Request, trace message.Trace) (*http.Response, error) {
	rsp, err := e.h1.call(ctx, req, trace)
	if e.speaksOther(err) {
		message.CloseBody(req) // the error is not a rejection
	}
	return rsp, err
}

// byH2 reports whether req is sent over HTTP/2: it is if wantsH2 says so, except for a CONNECT or an
// upgrade. byH2 also records which protocols requests use, so that Ready can connect by the same ones;
// a CONNECT or an upgrade counts only if it would use HTTP/1.1 anyway.
func (e *Endpoint) byH2(req *http.Request) bool {
	h2 := e.wantsH2(req)
	if h2 && isTunnel(req) {
		return false
	}
	used := &e.used[0]
	if h2 {
		used = &e.used[1]
	}
	// A Load before the Store keeps the cache line shared between CPUs in the usual case.
	if !used.Load() {
		used.Store(true)
	}
	return h2
}

// wantsH2 reports whether req should be sent over HTTP/2, by the Endpoint's options, the request's
// version and content type, and what the server is known to support. The rules are in "Connections" of
// the package documentation. The version of a request that was not received means nothing, as in
// net/http. CONNECT and upgrades, which need HTTP/1.1, are checked by byH2.
func (e *Endpoint) wantsH2(req *http.Request) bool {
	if e.opts.protocol.isFixed() {
		return e.opts.protocol == http2
	}
	// A request without a RequestURI was made by this process, so its version says nothing.
	// The request may use HTTP/2.
	two := req.ProtoMajor >= 2 || req.RequestURI == "" && e.opts.protocol == auto && e.opts.tls != nil
	if needsHTTP2(req) {
		return two || e.opts.protocol == auto
	}
	return two && !e.onlyH1.Load() &&
		(e.opts.protocol == asReceived || e.opts.tls != nil || hasGRPCType(req) || isConnectRPC(req))
}

// isHTTPS reports whether req's URL uses the scheme https.
func isHTTPS(req *http.Request) bool {
	return req.URL != nil && len(req.URL.Scheme) == len("https") && strings.EqualFold(req.URL.Scheme, "https")
}

// errCleartextHTTPS is the error of a request with an https URL at an Endpoint without TLS.
// Its status 421 is the one for such a request on an unsecured connection (RFC 9110, section
// 7.4).
var errCleartextHTTPS = &StatusError{
	Code:   http.StatusMisdirectedRequest,
	Reason: "the URL is https and the endpoint has no TLS: set httplayer.WithTLS, or httplayer.WithCleartextHTTPS to send it in cleartext",
}

// fault returns an error of the Endpoint. If kind is layer.ErrNotReady, it is a rejection, and the
// caller must not have sent any of the request or read its body, because another endpoint may get the
// request.
func (e *Endpoint) fault(kind error, reason string, cause error) *layer.Error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: kind, Reason: reason, Err: cause}
}

// goneError returns the error of a request whose context has ended before it was sent. It is a rejection: it matches
// layer.ErrNotReady, and the body of the request is still open.
func (e *Endpoint) goneError(ctx context.Context) error {
	return e.fault(layer.ErrNotReady, ctxreason.Text(ctx), context.Cause(ctx))
}

// closedError returns the rejection of a request after the context of NewEndpoint has ended.
func (e *Endpoint) closedError() error { return e.fault(layer.ErrClosed, "", context.Cause(e.life)) }

// unreachable returns the error for a request that found no connection because of err. It is a
// rejection, with the time until the next attempt to connect as RetryAfter, so that another endpoint
// may get the request. If the server supports only the other version of HTTP, it is not a rejection.
// Once the Endpoint's context has ended, the kind is layer.ErrClosed.
func (e *Endpoint) unreachable(err error) error {
	switch {
	case e.speaksOther(err):
		return e.fault(nil, "", &peerError{err}) // no kind: not a rejection
	case e.life.Err() != nil:
		return e.closedError()
	}
	failure := e.fault(layer.ErrNotReady, noConnection, &peerError{err})
	failure.RetryAfter, _ = e.link.failure()
	return failure
}

// noConnection is the Reason of an error that reports a failed attempt to connect.
const noConnection = "no connection"

// Describe shows the Endpoint's state: the address, the protocol, the connections, the idle
// connections and the requests in flight. HTTP/1.1 connections count from the start of dialing.
// It also shows whether the address is fresh (not tried), up or down. If it is down, it shows the
// last error, the number of failures and the time until the next attempt.
func (e *Endpoint) Describe() layer.Node {
	conns1, idle1, flight1 := e.h1.usage()
	conns2, idle2, flight2 := e.h2.usage()
	state := layer.State{
		{Key: "addr", Value: e.addr},
		{Key: "protocol", Value: e.opts.protocol.String()},
		{Key: "connections", Value: conns1 + conns2},
		{Key: "idle", Value: idle1 + idle2},
		{Key: "in_flight", Value: flight1 + flight2},
	}
	return layer.Node{Name: "endpoint", State: e.link.describe(state)}
}
