package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// outgoing returns the request that an attempt sends for req, and its body, which is nil if req has
// none. The request is a shallow copy of req with the context ctx, and with host as its Host if req
// names none. The body keeps up to limit bytes, so that another attempt can send them again. If nothing
// must change, outgoing returns req itself.
func outgoing(ctx context.Context, req *http.Request, host string, limit int) (*http.Request, *requestBody) {
	if ctx == req.Context() && !hasBody(req) && hasHost(req) {
		return req, nil
	}
	out := req.WithContext(ctx)
	if !hasHost(req) {
		out.Host = host
	}
	if !hasBody(req) {
		return out, nil
	}
	// A body from lendBody is shared by all endpoints that try the request, so it is used as it is.
	body := lentBody(req)
	if body == nil {
		body = newRequestBody(req, limit)
	}
	out.Body = body.begin(reqctx.Pausable(ctx))
	return out, body
}

// hasHost reports whether req can be sent without a Host from its endpoint: it names a host, or it was
// received and is sent as it came.
func hasHost(req *http.Request) bool {
	return req.Host != "" || req.URL != nil && req.URL.Host != "" || req.RequestURI != ""
}

// wrappedBody is embedded in each type of body that wraps another body. Pending, Arrive, Proceed and
// Moved call the same methods of the wrapped body, if it implements them.
type wrappedBody struct{ io.ReadCloser }

// Pending returns the number of bytes that Read can return without waiting. If eof is true,
// the body ends after these bytes.
func (b wrappedBody) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

// Arrive waits until some bytes of the wrapped body, or its end, have arrived from the network. It
// returns false for a body that does not come from there.
func (b wrappedBody) Arrive() bool { return message.Arrive(b.ReadCloser) }

// Proceed sends 100 Continue to a client that waits for it.
func (b wrappedBody) Proceed() { message.Proceed(b.ReadCloser) }

// Moved tells the wrapped body that the server has accepted bytes.
func (b wrappedBody) Moved() { message.Moved(b.ReadCloser) }

// awaiting returns body, which reads req's body. If the client waits for 100 Continue, the result
// implements Arrive and Proceed, which a body from package layer does not.
func awaiting(body io.ReadCloser, req *http.Request) io.ReadCloser {
	if !message.ExpectsContinue(req.Header) {
		return body
	}
	return &awaitedBody{body, wrappedBody{req.Body}}
}

// awaitedBody is a body that is read from another one, source, whose Arrive and Proceed it forwards.
type awaitedBody struct {
	io.ReadCloser
	source wrappedBody
}

// Arrive and Proceed are those of the wrapped body, which is a receivedBody again if an http.Handler is
// in between.
func (b *receivedBody) Arrive() bool { return message.Arrive(b.Reader) }
func (b *receivedBody) Proceed()     { message.Proceed(b.Reader) }

func (b *awaitedBody) Arrive() bool { return b.source.Arrive() }
func (b *awaitedBody) Proceed()     { b.source.Proceed() }

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// first returns the first value of the header field with the given name, or "". The name must be in
// canonical form. first is faster than [http.Header.Get].
func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// causeOf returns why ctx has ended. For a received request whose client has left, that is a
// [message.CanceledError], even in net/http's server, which only reports context.Canceled.
func causeOf(ctx context.Context, req *http.Request) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled && req.RequestURI != "" && message.ClientLeft(req) { //nolint:errorlint // without a cause of its own
		return new(message.CanceledError)
	}
	return cause
}

// isStream reports whether the request body may be one direction of a bidirectional stream, which
// may send nothing for a long time, as in gRPC and in HTTP/2 without a content-length.
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

const proto11 = "HTTP/1.1"

func isHTTP10(req *http.Request) bool { return req.ProtoMajor == 1 && req.ProtoMinor == 0 }

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
