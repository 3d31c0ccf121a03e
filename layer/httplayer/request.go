package httplayer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// outgoing returns the request to send for req, and the body of that request. The request is a
// shallow copy of req with the context ctx, and with the Host in the argument host if req has none.
// The body is nil if req has no body. If nothing must change, outgoing returns req itself.
func outgoing(ctx context.Context, req *http.Request, host string) (*http.Request, *requestBody) {
	hasHost := req.Host != "" || req.URL != nil && req.URL.Host != "" || req.RequestURI != "" // a received request is not changed
	if ctx == req.Context() && !hasBody(req) && hasHost {
		return req, nil
	}
	out := req.WithContext(ctx)
	if !hasHost {
		out.Host = host
	}
	if !hasBody(req) {
		return out, nil
	}
	body := &requestBody{wrappedBody: wrappedBody{req.Body}}
	out.Body = body
	return out, body
}

// wrappedBody is embedded in each type of body that wraps another body. Its method Pending
// calls Pending of the wrapped body, if that has the method.
type wrappedBody struct{ io.ReadCloser }

// Pending returns the number of bytes that Read can return without waiting. If eof is true,
// the body ends after these bytes.
func (b wrappedBody) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// first returns the first value of the header field with the given name, or "". The name must be in
// canonical form. first is faster than [http.Header.Get].
func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// requestBody is the body of a request that an Endpoint or a RoundTripperLayer sends. It
// records whether it was read and whether reading failed. As long as the body is unread and
// admit was not called, Close has no effect, because another endpoint may still get the
// request.
type requestBody struct {
	wrappedBody
	waits atomic.Bool // a Read is in progress, or was at the first Close

	mu        sync.Mutex
	admitted  bool  // the body was read, or the request can no longer be rejected
	withdrawn bool  // the request was rejected, and the body belongs to the caller again
	closed    bool  // the connection has called Close
	broken    error // first error of Read before Close
}

func (b *requestBody) Read(p []byte) (n int, err error) {
	defer panics.Recover(&err)
	if !b.admit() {
		return 0, http.ErrBodyReadAfterClose
	}
	b.waits.Store(true)
	n, err = b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return n, err
	}
	b.waits.Store(false)
	if err != nil && err != io.EOF && b.broken == nil {
		b.broken = err
	}
	return n, err
}

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
	return b.ReadCloser.Close()
}

// admit records that the request can no longer be rejected. If Close was called before and
// had no effect, admit closes the body. It returns false if the request was withdrawn.
func (b *requestBody) admit() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	late := b.closed && !b.admitted && !b.withdrawn
	ok := !b.withdrawn
	b.admitted = ok
	b.mu.Unlock()
	if late {
		_ = b.close()
	}
	return ok
}

// withdraw reports whether the request can still be rejected. It returns true until the first call
// of Read or admit, because the body is then unread. After that, Read fails and Close has no
// effect, because another endpoint may get the request while a goroutine of the connection still
// runs. For a nil body withdraw always returns true.
func (b *requestBody) withdraw() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.withdrawn = !b.admitted
	return b.withdrawn
}

// fail closes the body after a failure of req that is not a rejection. It returns the error to
// report for err:
//
//   - If ctx has ended, it returns the cause of ctx. If a Read of the body was in progress and
//     isStream returns false, a bodyError wraps the cause.
//   - Otherwise, if reading the body failed, it returns that error, wrapped in a bodyError.
//   - It returns a [message.RequestError] unchanged.
//   - It returns any other err, wrapped in a peerError.
func (b *requestBody) fail(ctx context.Context, req *http.Request, err error) error {
	var broken error
	waits := false
	if b != nil {
		b.admit()
		_ = b.Close()
		b.mu.Lock()
		broken, waits = b.broken, b.waits.Load()
		b.mu.Unlock()
	}
	invalid, isInvalid := errors.AsType[*message.RequestError](err)
	switch {
	case ctx.Err() != nil && waits && !isStream(req):
		return &bodyError{"was awaited", context.Cause(ctx)}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case broken != nil:
		return &bodyError{"broke off", broken}
	case isInvalid:
		return invalid
	}
	return &peerError{err}
}

// isStream reports whether the request body may be one direction of a bidirectional stream,
// which may have nothing to send for a long time. This is the case for gRPC and for HTTP/2
// without a content-length.
func isStream(r *http.Request) bool { return r.ProtoMajor == 2 && r.ContentLength < 0 || isGRPC(r) }

// bodyError reports that a request body could not be read. [Classify] returns
// [layer.Ignorable] for it, because the endpoint has not failed.
type bodyError struct {
	what string // verb phrase of the error text
	err  error
}

func (e *bodyError) Error() string { return "the request body " + e.what + ": " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// cameAsURL reports whether req was received with a target that is neither a path nor "*".
// It returns false for CONNECT.
func cameAsURL(req *http.Request) bool {
	uri := req.RequestURI
	return uri != "" && uri[0] != '/' && uri != "*" && req.Method != http.MethodConnect
}

// misdirected returns an error with status 400 for a received request that cannot be proxied:
//
//   - CONNECT over HTTP/1.0 or HTTP/2;
//   - CONNECT with a body, or with a target that is not host:port;
//   - another method with a target such as host:port;
//   - an HTTP/2 request with a URL as its path.
//
// The response to such an HTTP/1 request closes the connection, because the bytes after it must not
// be parsed as another request.
func misdirected(r *http.Request) error {
	reason := ""
	switch {
	case twoAuthorities(r):
		reason = "the path of an HTTP/2 request is a URL"
	case r.Method != http.MethodConnect:
		if r.URL.Opaque != "" {
			reason = "the request target must be a path or a URL"
		}
	case r.ProtoMajor != 1 || r.ProtoMinor < 1:
		reason = "CONNECT needs HTTP/1.1"
	case !message.ValidAuthority(r.RequestURI):
		reason = "the target of CONNECT must be host:port"
	case r.ContentLength != 0:
		reason = "CONNECT has no body"
	}
	if reason == "" {
		return nil
	}
	return &StatusError{Code: http.StatusBadRequest, Reason: reason, Close: r.ProtoMajor == 1}
}

// twoAuthorities reports whether r is a received HTTP/2 request with a URL as its :path. The
// authority in that URL may differ from the Host of r. Such a request is malformed (RFC
// 9113, section 8.3.1), but net/http accepts it.
func twoAuthorities(r *http.Request) bool { return r.ProtoMajor >= 2 && cameAsURL(r) }

// upgradeError returns an error if r requests an upgrade to an invalid protocol name.
func upgradeError(r *http.Request) error {
	if strings.ContainsFunc(message.Upgrade(r.Header), func(c rune) bool { return c < ' ' || c > '~' }) {
		return &StatusError{Code: http.StatusBadRequest, Reason: "the Upgrade header must be printable ASCII", Close: r.ProtoMajor == 1}
	}
	return nil
}
