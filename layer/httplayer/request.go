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

// outgoing is a request as it is given to net/http: a shallow copy, bound to
// the context of Call, whose body can be withdrawn.
type outgoing struct {
	*http.Request
	body *guard // nil if there is no body
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

// completed fills in what net/http insists on. The connection is there
// already, so it decides nothing but the Host of a request that has none.
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

// withdraw takes the request back from net/http, and reports whether its body
// is as it was: not read from, and not closed.
func (o outgoing) withdraw() bool { return o.body == nil || o.body.withdraw() }

// admit lets net/http have the body for good.
func (o outgoing) admit() {
	if o.body != nil {
		o.body.admit()
	}
}

// fail is for a request that net/http was given and will not serve: as with
// any RoundTripper its body gets closed, and net/http forgets to at times.
func (o outgoing) fail() {
	o.admit()
	if o.body != nil {
		_ = o.body.Close()
	}
}

// blame is err, with which net/http gave the request up, as what it is: the
// endpoint's fault, or that of whoever was to give the body. What ended ctx is
// the endpoint's, unless it was the body that was awaited then: that of an upload,
// for who holds a conversation may have said all that there is to say.
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

// isTalk reports whether the body of a request may be one side of a conversation,
// and not an upload.
func isTalk(r *http.Request) bool { return r.ProtoMajor == 2 && r.ContentLength < 0 || isGRPC(r) }

// bodyError says that the body of a request could not be read to its end. It
// says nothing of the endpoint.
type bodyError struct {
	what string
	err  error
}

func (e *bodyError) Error() string { return "the body of the request " + e.what + ": " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// guard is a request body that can be taken back until the first Read: what
// net/http does to it before that is put off until the request is admitted.
type guard struct {
	body      io.ReadCloser
	left      int64 // of it, if it is sized
	sized     bool
	talk      bool
	state     atomic.Uint32
	wantClose atomic.Bool
	closed    atomic.Bool
	reading   atomic.Bool
	awaited   atomic.Bool           // a Read was under way when it was closed
	broken    atomic.Pointer[error] // what Read failed with by itself
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
	// Once net/http closed it, a Read fails for that.
	if why != nil && !errors.Is(why, io.EOF) && !g.wantClose.Load() {
		g.broken.CompareAndSwap(nil, &why)
	}
	return n, err
}

// readBody is called by net/http on its own goroutines.
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

// closeBody is for a request whose body nobody will read.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
