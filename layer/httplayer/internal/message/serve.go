package message

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Exchange serves one request of a proxy. It returns an error, or a response with a status of at
// least 200, or 101 for a requested upgrade. A nil body is empty. The body of a 101, and of a 2xx
// for CONNECT, is an [io.ReadWriteCloser]. The connection closes the body. A returned error aborts
// the request: HTTP/1.1 then closes the connection, and HTTP/2 resets the stream with [ResetCode].
// Before the call, the connection removes the hop-by-hop fields from the request, except those for
// an upgrade and TE: trailers.
type Exchange func(req *http.Request) (*http.Response, error)

// ServerConfig configures a server's connections. A limit of 0 means unlimited.
type ServerConfig struct {
	Exchange Exchange
	Sweeper  *sweep.Sweeper
	Log      *slog.Logger // not nil
	Draining *atomic.Bool // set to true when the server begins to drain; may be nil

	// Refusal returns the response to a refused request, of which req has what was read. If it is nil,
	// the response has no body. It may be called concurrently.
	Refusal func(req *http.Request, r Refusal) *http.Response

	// Refused is called once for each refused request, with the connection's context. It may be nil.
	// It may be called concurrently, and should return soon, because the connection waits.
	Refused func(context.Context, Refusal)

	// Ended is called once for each request, also for a refused one, after its response was sent or
	// aborted. It may be nil. It may be called concurrently.
	Ended func(*Report)

	MaxHeaderBytes int           // largest size of the headers of a request, in bytes
	HeaderTimeout  time.Duration // longest time from the first byte of the headers to their end
	IdleTimeout    time.Duration // longest time between two requests
	BodyIdle       time.Duration // longest pause while a request body arrives
	MinBodyRate    int           // lowest rate of a request body, in bytes per second
	WriteTimeout   time.Duration // longest time in which a write makes no progress

	// The fields below are used by HTTP/2 only.

	MaxStreams      int
	MaxStreamResets int
	StreamWindow    int
	ConnWindow      int
	MaxFrameSize    int
	PingInterval    time.Duration
	PingTimeout     time.Duration
	DrainTimeout    time.Duration // longest time between the two GOAWAYs of a drain; 0 means none
}

// Serve calls cfg.Exchange for a request, and sends the response on s. r is the result of [NewStream]. An error means
// that the response is incomplete, and that the caller must abort it. A panic of the exchange becomes an error, and is
// logged unless it is [http.ErrAbortHandler].
func Serve(cfg *ServerConfig, s Stream, req *http.Request, r *Reported) (err error) {
	if r != nil {
		return cfg.report(s, req, r)
	}
	_, err = cfg.respond(s, req, nil)
	return err
}

// respond does the work of Serve. It returns how many body bytes were sent, and records the response in
// x, which may be nil.
func (cfg *ServerConfig) respond(s Stream, req *http.Request, x *Report) (sent int64, err error) {
	// This runs after Recover, which has made an error of a panic.
	defer func() {
		p, ok := errors.AsType[*panics.Error](err)
		switch {
		case !ok:
		case p.Value == http.ErrAbortHandler: //nolint:errorlint // net/http compares it, too
			err = http.ErrAbortHandler
		default:
			cfg.Log.Error("handler panicked", "error", err, "remote", req.RemoteAddr, "stack", string(p.Stack))
		}
	}()
	defer panics.Recover(&err)
	rsp, err := cfg.Exchange(req)
	if err != nil {
		return 0, err
	}
	if rsp.Body == nil {
		rsp.Body = http.NoBody
	}
	x.begin(rsp)
	return s.Respond(rsp)
}

// Stream is the sending side of one response, over HTTP/1.1 or HTTP/2.
type Stream interface {
	// Inform sends a 1xx response. After Respond it does nothing. It may be called concurrently.
	Informer

	// Respond sends an [Exchange]'s response and closes its body, which is not nil. It returns the
	// number of bytes of the body, or -1 for a tunnel.
	Respond(rsp *http.Response) (sent int64, err error)

	// Received returns how many bytes of the request body were read.
	Received() int64
}

// Informer sends informational (1xx) responses to a request's client.
type Informer interface {
	Inform(status int, header http.Header) error
}

// informerKey is the type of InformerKey.
type informerKey struct{}

// InformerKey is the context key of a received request's [Informer].
var InformerKey any = informerKey{}

// Inform forwards a 1xx response that an upstream sent for a request with the context ctx. It goes to
// Got1xxResponse of an [httptrace.ClientTrace] in ctx, if there is one, and otherwise to the client of
// the received request, by the [Informer] in ctx.
func Inform(ctx context.Context, status int, header http.Header) error {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.Got1xxResponse != nil {
		return trace.Got1xxResponse(status, textproto.MIMEHeader(header))
	}
	if informer, ok := ctx.Value(InformerKey).(Informer); ok {
		return informer.Inform(status, header)
	}
	return nil
}
