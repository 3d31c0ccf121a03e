package httplayer

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Method returns the method of r. It returns "GET" for an empty method.
func (HTTP) Method(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// Scheme returns the scheme in r's URL. The URL of a received request usually lacks one; Scheme
// then returns "https" if the connection uses TLS and "http" otherwise.
func (HTTP) Scheme(r *http.Request) string {
	switch {
	case r.URL != nil && r.URL.Scheme != "":
		return r.URL.Scheme
	case r.TLS != nil:
		return "https"
	}
	return "http"
}

// Authority returns the host in r's URL, or else the Host field, which may be "".
func (HTTP) Authority(r *http.Request) string {
	if r.URL != nil && r.URL.Host != "" {
		return r.URL.Host
	}
	return r.Host
}

// Path returns the path of the URL of r as it is sent: percent-encoded, or unchanged if the request was
// received. An empty path is returned as "/", except for CONNECT, which has no path.
func (HTTP) Path(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	if path := message.EscapedPath(r.URL); path != "" || r.Method == http.MethodConnect {
		return path
	}
	return "/"
}

// Pattern returns the pattern with which an [http.ServeMux] has routed r. Without one, it returns
// the path for a gRPC request, which is its method, and otherwise "".
func (h HTTP) Pattern(r *http.Request) string {
	if r.Pattern == "" && hasGRPCType(r) {
		return h.Path(r)
	}
	return r.Pattern
}

// Query returns the raw query of the URL.
func (HTTP) Query(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	return r.URL.RawQuery
}

// Source returns the address of a received request's client. It converts an IPv4-mapped IPv6
// address to IPv4. It returns the zero value for a request that this process makes.
func (HTTP) Source(r *http.Request) netip.AddrPort {
	return addrPortOf(r.RemoteAddr)
}

// RequestHeader returns a view of r's header. It contains Host only if r.Header does.
func (HTTP) RequestHeader(r *http.Request) layer.Header { return fields(r.Header) }

// RequestOverHTTP2 reports whether ProtoMajor of r is 2. For a received request, this means
// that the client sent the request over HTTP/2.
func (HTTP) RequestOverHTTP2(r *http.Request) bool { return r.ProtoMajor == 2 }

// ResponseOverHTTP2 reports whether r is a response that was received over HTTP/2.
func (HTTP) ResponseOverHTTP2(r *http.Response) bool { return r != nil && r.ProtoMajor == 2 }

// Status returns the status code of r, or 0 if r is nil.
func (HTTP) Status(r *http.Response) int {
	if r == nil {
		return 0
	}
	return r.StatusCode
}

// ResponseHeader returns a view of r's header, which is empty if r is nil.
func (HTTP) ResponseHeader(r *http.Response) layer.Header {
	if r == nil {
		return fields(nil)
	}
	return fields(r.Header)
}

// ResponseTrailer returns a view of r's trailers. It leaves out announced trailers that have not
// arrived yet.
func (HTTP) ResponseTrailer(r *http.Response) layer.Header {
	if r == nil {
		return fields(nil)
	}
	return fields(r.Trailer)
}

// Complete arranges that o learns when r has ended, and returns r; see [Completion]. It implements [layer.Protocol].
func (HTTP) Complete(ctx context.Context, r *http.Response, o layer.Observer) *http.Response {
	return Completion(ctx, r, o)
}

// ObserveResponse does the same as Complete. It exists for package tap, because for gRPC the two
// differ: Complete counts messages, and ObserveResponse counts bytes.
func (HTTP) ObserveResponse(ctx context.Context, r *http.Response, o layer.Observer) *http.Response {
	return Completion(ctx, r, o)
}

// fields is an http.Header that implements [layer.Header]. Converting one to the other does not
// allocate.
type fields http.Header

func (f fields) Get(name string) string { return http.Header(f).Get(name) }

// Values returns all values of name. The caller must not modify them.
func (f fields) Values(name string) []string { return http.Header(f).Values(name) }

// hasName calls match with the name of each field, in any order, until match returns true.
// It reports whether match returned true.
func (f fields) hasName(match func(name string) bool) bool {
	for name := range f {
		if match(name) {
			return true
		}
	}
	return false
}

// All returns all fields, each value on its own.
func (f fields) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, values := range f {
			for _, value := range values {
				if !yield(name, value) {
					return
				}
			}
		}
	}
}

// TeeRequestBody returns a shallow copy of r whose body passes its bytes to read. Each Read calls
// it with the received bytes p and their offset in the body, before it returns. It must not keep p.
// The bodies from the copy's GetBody do the same, from offset 0. A request without a body is
// returned unchanged. net/http sends the copy's headers separately, even for an in-memory body such
// as bytes.Reader, because the copy hides the body type.
func (HTTP) TeeRequestBody(r *http.Request, read func(at int64, p []byte)) *http.Request {
	if !hasBody(r) {
		return r
	}
	out := *r
	out.Body = newTeeBody(r.Body, read)
	if again := r.GetBody; again != nil {
		out.GetBody = func() (io.ReadCloser, error) { // each copy of the body begins at offset 0 again
			body, err := again()
			if err != nil || body == nil || body == http.NoBody {
				return body, err
			}
			return newTeeBody(body, read), nil
		}
	}
	return &out
}

// TeeResponseBody replaces r's body with one that passes its bytes to read, as in
// [HTTP.TeeRequestBody], and returns r. The body of an upgraded connection (101) stays an
// [io.ReadWriteCloser], and keeps its CloseWrite. Bytes that are written to it are not passed to
// read.
func (HTTP) TeeResponseBody(r *http.Response, read func(at int64, p []byte)) *http.Response {
	if r == nil || ended(r) {
		return r
	}
	r.Body = newTeeBody(r.Body, read)
	return r
}

// newTeeBody wraps body, so that the bytes which each Read returns are passed to read, with their
// offset in the body. The wrapper implements Write and CloseWrite if body implements Write.
func newTeeBody(body io.ReadCloser, read func(at int64, p []byte)) io.ReadCloser {
	tee := &teeBody{wrappedBody: wrappedBody{body}, read: read}
	if w, ok := body.(io.Writer); ok {
		return teeStream{tee, w}
	}
	return tee
}

// teeBody is a body that passes the bytes from each Read to the function read. Concurrent calls
// of Read are not allowed.
type teeBody struct {
	wrappedBody
	read func(at int64, p []byte)
	at   int64 // offset of the next piece
}

// Read reads from the body and passes the bytes to the function read, with their position.
func (b *teeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read(b.at, p[:n])
		b.at += int64(n)
	}
	return n, err
}

// teeStream is the body of a tunnel whose received bytes are observed. Written bytes go to the Writer directly.
type teeStream struct {
	*teeBody
	io.Writer
}

// CloseWrite closes the sending half of the connection, or returns [http.ErrNotSupported].
func (s teeStream) CloseWrite() error { return message.CloseWrite(s.Writer) }

// OnResponseStart does nothing, because Call returns an HTTP response when its headers are known.
// Package tap calls this method, because another protocol may send them earlier.
func (HTTP) OnResponseStart(context.Context, *http.Request, layer.ResponseObserver[*http.Response]) {
}

// OnDeferredResponse always returns false, because HTTP response headers have arrived when Call
// returns. Package tap calls this method, because another protocol may deliver them later.
func (HTTP) OnDeferredResponse(*http.Response, layer.ResponseObserver[*http.Response]) bool {
	return false
}

// ErrorResponse returns nil and false, because an HTTP error does not contain a response. Package
// tap calls this method, because another protocol's error may contain one.
func (HTTP) ErrorResponse(context.Context, *http.Request, error) (*http.Response, bool) {
	return nil, false
}

// DestinationAddr returns the address that r was or will be sent to. For a received request this
// is the connection's local address. For a request that this process makes it is the address in
// the URL, or the zero value if the URL names a host. Package tap calls this method through an
// interface.
func (HTTP) DestinationAddr(ctx context.Context, r *http.Request) netip.AddrPort {
	// Only a received request has a RequestURI.
	if r.RequestURI != "" {
		local, _ := ctx.Value(http.LocalAddrContextKey).(net.Addr)
		return caller.Addr(local)
	}
	if r.URL == nil {
		return netip.AddrPort{}
	}
	port := "80"
	if r.URL.Scheme == "https" {
		port = "443"
	}
	return addrPortOf(net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), port)))
}

// addrPortOf parses an IP address with a port. The result is the zero value if s is
// anything else.
func addrPortOf(s string) netip.AddrPort {
	ap, _ := netip.ParseAddrPort(s) // the zero value with an error
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// SourceLabels returns linkerd's labels for a received request's client. With TLS, the label tls
// is true, and client_id is the first DNS-like name or URI in the verified client certificate.
// Without TLS, the label tls is loopback for a loopback address, and otherwise
// no_tls_from_remote. The result is empty for a request that this process makes.
func (h HTTP) SourceLabels(r *http.Request) map[string]string {
	return caller.Labels(h.Source(r), clientTLS(r))
}

// clientTLS returns the TLS state of the connection on which r was received, or nil if it does not use
// TLS. A request to a [Server] has no TLS field, but its connection is in the context.
func clientTLS(r *http.Request) *tls.ConnectionState {
	// Only a received request, which has a RequestURI, came over a connection of a Server.
	if r.TLS != nil || r.RequestURI == "" {
		return r.TLS
	}
	if state, ok := tcplayer.TLSState(ConnFromContext(r.Context())); ok {
		return new(state)
	}
	return nil
}
