package message

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
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
// for CONNECT, has the methods of [io.ReadWriteCloser]. The connection closes the body. A returned
// error aborts the request: HTTP/1.1 then closes the connection, and HTTP/2 resets the stream with
// the code of [ResetCode]. Before the call, the connection removes the hop-by-hop fields from the
// request, except those of an upgrade and TE: trailers.
type Exchange func(req *http.Request) (*http.Response, error)

// ServerConfig is the configuration of the connections of a server. Exactly one of Exchange
// and Handler is set. A limit of 0 means unlimited.
type ServerConfig struct {
	Exchange Exchange
	Handler  http.Handler
	Sweeper  *sweep.Sweeper
	Log      *slog.Logger // not nil
	Draining *atomic.Bool // set to true when the server begins to drain; may be nil

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

// Serve serves a request by the Exchange or the Handler of cfg, and sends the response on
// s. If hijacked is true, the handler has hijacked the connection and must close it. If err
// is not nil, the response is incomplete and the caller must abort it. A panic is returned
// as an error, and is logged unless it is [http.ErrAbortHandler].
func Serve(cfg *ServerConfig, s Stream, req *http.Request) (hijacked bool, err error) {
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
	if cfg.Exchange == nil {
		return serveHandler(cfg.Handler, s, req)
	}
	rsp, err := cfg.Exchange(req)
	if err != nil {
		return false, err
	}
	if rsp.Body == nil {
		rsp.Body = http.NoBody
	}
	return false, s.Respond(rsp)
}

func serveHandler(h http.Handler, s Stream, req *http.Request) (hijacked bool, err error) {
	w := &ResponseWriter{stream: s, head: req.Method == http.MethodHead, header: make(http.Header), length: -1}
	defer w.release()
	err = panics.Contain(func() {
		h.ServeHTTP(w, req)
		w.WriteHeader(http.StatusOK) // unless the handler has set a status
	})
	if req.MultipartForm != nil {
		_ = req.MultipartForm.RemoveAll() // the files of an upload
	}
	if w.done.Store(true); w.hijacked || err != nil {
		return w.hijacked, err
	}
	return false, w.finish()
}

// Stream is the sending side of one response, over HTTP/1.1 or HTTP/2. One goroutine at a
// time calls its methods. Only Inform may be called concurrently.
type Stream interface {
	// Inform sends a 1xx response. It has no effect after WriteHeader.
	Informer

	// Respond sends the response of an [Exchange] and closes its body, which is not nil. For an
	// [http.Handler], the methods below are called instead.
	Respond(rsp *http.Response) error

	// WriteHeader buffers the status and the headers of the response. length is the length
	// of the body, or -1 if the length is unknown. The argument length takes precedence
	// over the field Content-Length. If end is true, neither a body nor trailers follow.
	// The stream does not keep header, because WriteHeader encodes it before it returns.
	WriteHeader(status int, header http.Header, length int64, end bool) error

	// Write adds bytes to the body. It buffers them, and sends each full buffer.
	Write(p []byte) (int, error)

	// Finish ends the response with the trailers, which may be nil. It is called for each
	// complete response, even if end was true in WriteHeader.
	Finish(trailer http.Header) error

	// Flush sends the buffered headers and bytes of the body.
	Flush() error

	// Hijack passes the connection to the caller. Only HTTP/1.1 supports it.
	Hijack() (net.Conn, *bufio.ReadWriter, error)

	// SetReadDeadline sets the deadline for reading the request body. SetWriteDeadline sets
	// the deadline for writing the response.
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// Informer sends informational (1xx) responses to the client of a request.
type Informer interface {
	Inform(status int, header http.Header) error
}

type informerKey struct{}

// InformerKey is the context key under which the context of a received request has its
// [Informer].
var InformerKey any = informerKey{}

// Inform forwards a 1xx response that an upstream sent for a request with the context ctx.
// If ctx has an [httptrace.ClientTrace] with Got1xxResponse, that function receives the
// response. Otherwise the [Informer] of ctx receives it, if ctx has one.
func Inform(ctx context.Context, status int, header http.Header) error {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.Got1xxResponse != nil {
		return trace.Got1xxResponse(status, textproto.MIMEHeader(header))
	}
	if to, ok := ctx.Value(InformerKey).(Informer); ok {
		return to.Inform(status, header)
	}
	return nil
}
