package httplayer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
)

// outgoing is a request for net/http: a shallow copy with the context of Call
// and a body that can be withdrawn.
type outgoing struct {
	*http.Request
	body *guard // nil without a body
}

func (e *Endpoint) outgoing(ctx context.Context, req *http.Request) outgoing {
	out := outgoing{Request: req.WithContext(ctx)}
	out.RequestURI = ""
	if req.Header == nil {
		out.Header = make(http.Header)
	}
	if req.URL != nil && (req.URL.Scheme == "" || req.URL.Host == "") {
		out.URL = e.completed(req.URL)
	}
	if req.Body != nil && req.Body != http.NoBody {
		out.body = &guard{body: req.Body, talk: isTalk(req)}
		if req.ContentLength > 0 {
			out.body.sized, out.body.left = true, req.ContentLength
		}
		out.Body = out.body
	}
	return out
}

// completed adds the scheme and host that net/http requires. They only set the
// Host of a request without one, because the connection exists already.
func (e *Endpoint) completed(u *url.URL) *url.URL {
	filled := *u
	if filled.Scheme == "" {
		filled.Scheme = e.scheme()
	}
	if filled.Host == "" {
		filled.Host = e.addr
	}
	return &filled
}

// withdraw takes the request back from net/http. It reports whether the body
// was neither read nor closed.
func (o outgoing) withdraw() bool { return o.body == nil || o.body.withdraw() }

// admit gives the body to net/http; it can no longer be withdrawn.
func (o outgoing) admit() {
	if o.body != nil {
		o.body.admit()
	}
}

// fail closes the body of a request that net/http was given and does not serve,
// because net/http does not always close it.
func (o outgoing) fail() {
	o.admit()
	if o.body != nil {
		_ = o.body.Close()
	}
}

// blame marks err of net/http as the fault of the endpoint or of the request
// body. The end of ctx is the fault of the endpoint, unless an upload was
// waiting for its body. A conversation may have sent everything already, so its
// wait does not count.
func (o outgoing) blame(ctx context.Context, err error) error {
	var broken *error
	if o.body != nil {
		broken = o.body.broken.Load()
	}
	switch {
	case ctx.Err() != nil && o.body != nil && o.body.awaited.Load() && !o.body.talk:
		return &bodyError{"was awaited", context.Cause(ctx)}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case broken != nil:
		return &bodyError{"broke off", *broken}
	}
	return &peerError{err}
}

// isTalk reports whether the request body may be one side of a conversation and
// not an upload.
func isTalk(r *http.Request) bool { return r.ProtoMajor == 2 && r.ContentLength < 0 || isGRPC(r) }

// bodyError reports that a request body could not be read. It does not count
// against the endpoint.
type bodyError struct {
	what string
	err  error
}

func (e *bodyError) Error() string { return "the body of the request " + e.what + ": " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// guard is a request body that can be withdrawn until its first Read. A Close
// before the request is admitted takes effect after that.
type guard struct {
	body      io.ReadCloser
	left      int64 // remaining bytes, if the length is known
	sized     bool
	talk      bool
	state     atomic.Uint32
	wantClose atomic.Bool
	closed    atomic.Bool
	reading   atomic.Bool
	awaited   atomic.Bool           // a Read was waiting when the body was closed
	broken    atomic.Pointer[error] // error of Read, unless caused by Close
}

const (
	bodyUntouched = iota
	bodyAdmitted
	bodyWithdrawn
)

var (
	errWithdrawn = errors.New("httplayer: the request was withdrawn")
	errLength    = errors.New("httplayer: it is not as long as ContentLength says")
)

func (g *guard) Read(p []byte) (int, error) {
	if g.state.Load() != bodyAdmitted && !g.admit() {
		return 0, errWithdrawn
	}
	g.reading.Store(true)
	n, err := g.readBody(p)
	g.reading.Store(false)
	g.left -= int64(n)
	why := err
	if g.sized && (g.left < 0 || g.left > 0 && errors.Is(err, io.EOF)) {
		why = errLength
	}
	// After Close, a Read fails because of that.
	if why != nil && !errors.Is(why, io.EOF) && !g.wantClose.Load() {
		g.broken.CompareAndSwap(nil, &why)
	}
	return n, err
}

// readBody runs on goroutines of net/http.
func (g *guard) readBody(p []byte) (n int, err error) {
	defer panics.Recover(&err)
	return g.body.Read(p)
}

func (g *guard) Close() error {
	g.wantClose.Store(true)
	if g.state.Load() != bodyAdmitted {
		return nil
	}
	return g.close()
}

func (g *guard) close() (err error) {
	if g.closed.Swap(true) {
		return nil
	}
	defer panics.Recover(&err)
	g.awaited.Store(g.reading.Load())
	return g.body.Close()
}

func (g *guard) admit() bool {
	if !g.state.CompareAndSwap(bodyUntouched, bodyAdmitted) {
		return g.state.Load() == bodyAdmitted
	}
	if g.wantClose.Load() {
		_ = g.close()
	}
	return true
}

func (g *guard) withdraw() bool { return g.state.CompareAndSwap(bodyUntouched, bodyWithdrawn) }

// closeBody closes the body of a request that is not sent.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
