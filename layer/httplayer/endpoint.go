package httplayer

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/layer"
)

// Endpoint is the HTTP client of one address. It is a [Service], safe for
// concurrent use. "Connections" in the package documentation has the choice of
// the protocol, tunnels, and the age of connections.
//
// Admission: an HTTP/1.1 connection takes one request. Call uses the idle
// connection that was used last, or connects, up to [WithMaxConns]. HTTP/2 has
// one connection with as many requests as the server's SETTINGS allow. Requests
// beyond that are rejected at once. An unreachable address rejects all requests
// until Ready, or the first Call after a backoff of at most 1 s, has connected.
//
// Cancellation: when the context of a request ends before its body was closed,
// an HTTP/1.1 connection is closed and an HTTP/2 stream is reset.
//
// Body: the response body must be closed. A request body may still be in a Read
// when Call returns an error, and closing it should end that Read.
//
// Errors: a [layer.Error] with the address. A rejection means that the server
// did not process the request: connecting failed, no byte was written, or
// HTTP/2 says so (REFUSED_STREAM, GOAWAY). Any other error is not a rejection,
// and an Endpoint never sends a request twice. When the context given to
// NewEndpoint ends, Call rejects with [layer.ErrClosed] and connections close
// once they are idle.
type Endpoint struct {
	addr   string
	opts   endpointOptions
	life   context.Context //nolint:containedctx // the constructor's: connections live as long as it does
	wake   notify.Broadcast
	link   link
	h1     pool
	h2     single
	used   [2]atomic.Bool // HTTP/1.1 and HTTP/2, by requests
	lastH2 atomic.Bool    // the protocol by which Ready connects
	onlyH1 atomic.Bool    // the server was found not to speak HTTP/2
	full   error          // the rejection at capacity, made once
}

// NewEndpoint returns the client of addr, "host:port". It connects when the
// first request arrives. The Endpoint and its connections live until ctx ends.
// An empty addr panics. A malformed one is an error of the dial function.
func NewEndpoint(ctx context.Context, addr string, opts ...EndpointOption) *Endpoint {
	if addr == "" {
		panic("httplayer: empty address")
	}
	e := &Endpoint{addr: addr, opts: newEndpointOptions(addr, opts), life: ctx}
	e.link.backoff, e.link.patience = e.opts.backoff, e.opts.connectTimeout
	e.h1.init(e)
	e.h2.init(e)
	e.lastH2.Store(e.opts.protocol == http2)
	e.full = &layer.Error{Layer: "endpoint", Endpoint: addr, Kind: layer.ErrNotReady, Reason: "at capacity"}
	context.AfterFunc(ctx, e.shut)
	return e
}

// Call sends req by a connection of the Endpoint. See [Endpoint] for the
// requests that it rejects.
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
	e.used[1].Store(false)
	e.byH2(req) // false from now on
	return e.callH1(ctx, req)
}

// Classifier returns [Classify]: see [layer.Classified].
func (*Endpoint) Classifier() layer.Classifier[*http.Response] { return Classify }

func (e *Endpoint) callH1(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := e.h1.call(ctx, req)
	if err != nil && errors.Is(err, errNotH1) {
		closeBody(req) // the error is not a rejection
	}
	return rsp, err
}

// byH2 reports whether req is sent by HTTP/2. It stores the choice for Ready.
func (e *Endpoint) byH2(req *http.Request) bool {
	h2 := e.wantsH2(req)
	if h2 && (req.Method == http.MethodConnect || len(req.Header["Upgrade"]) > 0) {
		return false
	}
	if e.lastH2.Load() != h2 {
		e.lastH2.Store(h2)
	}
	used := &e.used[0]
	if h2 {
		used = &e.used[1]
	}
	if !used.Load() {
		used.Store(true)
	}
	return h2
}

// wantsH2 reports whether req should be sent by HTTP/2, unless the server does not support
// it.
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

// forgetProtocol discards the knowledge that the server does not support HTTP/2. It is
// called after a connection failed, because another server may have the address now.
func (e *Endpoint) forgetProtocol() {
	if e.onlyH1.Load() {
		e.onlyH1.Store(false)
	}
}

// isHTTPS reports whether the URL of req asks for TLS.
func isHTTPS(req *http.Request) bool {
	return req.URL != nil && len(req.URL.Scheme) == len("https") && strings.EqualFold(req.URL.Scheme, "https")
}

// errCleartextHTTPS is 421 because a retry on another connection of the same
// endpoint cannot help (RFC 9110, section 7.4).
var errCleartextHTTPS = &StatusError{
	Code:   http.StatusMisdirectedRequest,
	Reason: "the URL is https and the endpoint has no TLS: set httplayer.WithTLS, or httplayer.WithCleartextHTTPS to send it in cleartext",
}

// shut closes the connections when the context of the Endpoint ends.
func (e *Endpoint) shut() {
	e.h1.shut()
	e.h2.shut()
	e.wake.Wake()
}

// reject returns a rejection. The request must not have been sent or read.
func (e *Endpoint) reject(reason string, cause error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: reason, Err: cause}
}

func (e *Endpoint) goneError(ctx context.Context) error {
	return e.reject(ctxreason.Text(ctx), context.Cause(ctx))
}

func (e *Endpoint) closedError() error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrClosed, Err: context.Cause(e.life)}
}

// failed returns the error of a request that was sent, or may have been sent.
func (e *Endpoint) failed(err error) error {
	return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Err: err}
}

// unreachable returns the rejection of a request for which there is no
// connection, and no attempt to connect before RetryAfter.
func (e *Endpoint) unreachable(err error) error {
	if e.life.Err() != nil {
		return e.closedError()
	}
	return &layer.Error{
		Layer: "endpoint", Endpoint: e.addr, Kind: layer.ErrNotReady, Reason: noConnection, RetryAfter: e.link.wait(), Err: err,
	}
}

// noConnection is the Reason of unreachable.
const noConnection = "no connection"
