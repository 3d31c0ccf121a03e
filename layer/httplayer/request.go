package httplayer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// outgoing returns the request to send: a shallow copy with the context of Call
// and an observed body, which is nil if there is none.
func (e *Endpoint) outgoing(ctx context.Context, req *http.Request) (*http.Request, *requestBody) {
	hasBody := req.Body != nil && req.Body != http.NoBody
	hasHost := req.Host != "" || req.URL != nil && req.URL.Host != "" || req.RequestURI != "" // a received request is sent as it is
	if ctx == req.Context() && !hasBody && hasHost {
		return req, nil
	}
	out := req.WithContext(ctx)
	if !hasHost {
		out.Host = e.addr
	}
	if !hasBody {
		return out, nil
	}
	body := &requestBody{ReadCloser: req.Body}
	out.Body = body
	return out, body
}

// requestBody is the body of a sent request. It records whether the client has read it and
// whether it failed. Until the request is admitted, Close of an unread body has no effect,
// because the request may be rejected and sent again.
type requestBody struct {
	io.ReadCloser
	waits   atomic.Bool           // in Read
	awaited atomic.Bool           // a Read was waiting when the body was closed
	broken  atomic.Pointer[error] // of Read, unless caused by Close

	mu       sync.Mutex
	admitted bool // touched, or the request is not rejected
	closed   bool // by the connection
}

func (b *requestBody) Read(p []byte) (n int, err error) {
	defer panics.Recover(&err)
	b.admit()
	b.waits.Store(true)
	n, err = b.ReadCloser.Read(p)
	b.waits.Store(false)
	if err != nil && err != io.EOF && !b.isClosed() {
		cause := err // err itself would be allocated for each Read
		b.broken.CompareAndSwap(nil, &cause)
	}
	return n, err
}

// Pending reports what Read returns without waiting.
func (b *requestBody) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

func (b *requestBody) Close() error {
	b.mu.Lock()
	first, admitted := !b.closed, b.admitted
	b.closed = true
	b.mu.Unlock()
	if !first || !admitted {
		return nil
	}
	return b.close()
}

func (b *requestBody) close() (err error) {
	defer panics.Recover(&err)
	b.awaited.Store(b.waits.Load())
	return b.ReadCloser.Close()
}

func (b *requestBody) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// admit allows Close to take effect. It closes the body if Close was called before.
func (b *requestBody) admit() {
	if b == nil {
		return
	}
	b.mu.Lock()
	late := b.closed && !b.admitted
	b.admitted = true
	b.mu.Unlock()
	if late {
		_ = b.close()
	}
}

// fail closes the body after the request has failed.
func (b *requestBody) fail() {
	if b == nil {
		return
	}
	b.admit()
	_ = b.Close()
}

// withdraw reports whether the body is unread and open, so that the request can be
// rejected.
func (b *requestBody) withdraw() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.admitted
}

// blame marks the error of a request as a failure of the endpoint or of the request body.
// If ctx ended, the endpoint failed, unless an upload was waiting for its body. A stream
// may have sent everything already, so a wait for its body does not count.
func blame(ctx context.Context, req *http.Request, body *requestBody, err error) error {
	var broken *error
	if body != nil {
		broken = body.broken.Load()
	}
	invalid, isInvalid := errors.AsType[*message.RequestError](err)
	switch {
	case ctx.Err() != nil && body != nil && (body.awaited.Load() || body.waits.Load()) && !isStream(req):
		return &bodyError{"was awaited", context.Cause(ctx)}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case broken != nil:
		return &bodyError{"broke off", *broken}
	case isInvalid:
		return invalid
	}
	return &peerError{err}
}

// isStream reports whether the request body may be one direction of a bidirectional stream,
// and not an upload.
func isStream(r *http.Request) bool { return r.ProtoMajor == 2 && r.ContentLength < 0 || isGRPC(r) }

// bodyError reports that a request body could not be read. It does not count
// against the endpoint.
type bodyError struct {
	what string
	err  error
}

func (e *bodyError) Error() string { return "the request body " + e.what + ": " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// closeBody closes the body of a request that is not sent.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
