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

// Accessor is the [layer.Accessor] for the messages of net/http. It reads requests that a
// server received and requests that a client makes. It has no state. It allocates only to
// parse addresses.
type Accessor struct{}

var _ layer.Accessor[*http.Request, *http.Response] = Accessor{}

// Method returns the method of r. It returns "GET" for an empty method.
func (Accessor) Method(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// Scheme returns the scheme of the URL of r. The URL of a received request often has no
// scheme. For such a request, Scheme returns "https" if the connection uses TLS and "http"
// otherwise.
func (Accessor) Scheme(r *http.Request) string {
	switch {
	case r.URL != nil && r.URL.Scheme != "":
		return r.URL.Scheme
	case r.TLS != nil:
		return "https"
	}
	return "http"
}

// Authority returns the host of the URL of r. If the URL has no host, it returns the Host
// field, which may be "".
func (Accessor) Authority(r *http.Request) string {
	if r.URL != nil && r.URL.Host != "" {
		return r.URL.Host
	}
	return r.Host
}

// Path returns the escaped path of the URL of r. An empty path is returned as "/", except
// for CONNECT, which has no path.
func (Accessor) Path(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	if path := r.URL.EscapedPath(); path != "" || r.Method == http.MethodConnect {
		return path
	}
	return "/"
}

// Query returns the raw query of the URL.
func (Accessor) Query(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	return r.URL.RawQuery
}

// Source returns the address of the client of a received request. It converts an
// IPv4-mapped IPv6 address to IPv4. It returns the zero value for a request that this
// process makes.
func (Accessor) Source(r *http.Request) netip.AddrPort {
	return addrPortOf(r.RemoteAddr)
}

// RequestHeader returns a view of the header of r. The view has the field Host only if
// r.Header has it.
func (Accessor) RequestHeader(r *http.Request) layer.Header { return fields(r.Header) }

// RequestOverHTTP2 reports whether ProtoMajor of r is 2. For a received request, this means
// that the client sent the request over HTTP/2.
func (Accessor) RequestOverHTTP2(r *http.Request) bool { return r.ProtoMajor == 2 }

// ResponseOverHTTP2 reports whether r is a response that was received over HTTP/2.
func (Accessor) ResponseOverHTTP2(r *http.Response) bool { return r != nil && r.ProtoMajor == 2 }

// Status returns the status code of r, or 0 if r is nil.
func (Accessor) Status(r *http.Response) int {
	if r == nil {
		return 0
	}
	return r.StatusCode
}

// ResponseHeader returns a view of the header of r. The view is empty if r is nil.
func (Accessor) ResponseHeader(r *http.Response) layer.Header {
	if r == nil {
		return fields(nil)
	}
	return fields(r.Header)
}

// ResponseTrailer returns a view of the trailers of r. It leaves out announced trailers
// that have no value yet.
func (Accessor) ResponseTrailer(r *http.Response) layer.Header {
	if r == nil {
		return fields(nil)
	}
	return fields(r.Trailer)
}

// Complete returns r with a body that notifies o of its bytes and of its end: see
// [Completion].
func (Accessor) Complete(ctx context.Context, r *http.Response, o layer.Observer) *http.Response {
	return Completion(ctx, r, o)
}

// fields is an http.Header that implements [layer.Header] without an allocation.
type fields http.Header

func (f fields) Get(name string) string { return http.Header(f).Get(name) }

// Values returns all values of name. The caller must not modify them.
func (f fields) Values(name string) []string { return http.Header(f).Values(name) }

// HasName calls match with the name of each field, in any order, until match returns true.
// It reports whether match returned true.
func (f fields) HasName(match func(name string) bool) bool {
	for name := range f {
		if match(name) {
			return true
		}
	}
	return false
}

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

// TeeRequestBody returns a shallow copy of r with a body that passes its bytes to the function in
// the argument read. Each Read of the body calls this function with the received bytes p and the
// offset of p in the body, before it returns. The function must not keep p. The bodies that GetBody
// of the copy returns do the same, from offset 0. A request without a body is returned unchanged.
// net/http sends the headers of the copy separately, even for an in-memory body such as
// bytes.Reader, because the copy hides the type of the body.
func (Accessor) TeeRequestBody(r *http.Request, read func(at int64, p []byte)) *http.Request {
	if !hasBody(r) {
		return r
	}
	out := *r
	out.Body = newTeeBody(r.Body, read)
	if again := r.GetBody; again != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			if err != nil || body == nil || body == http.NoBody {
				return body, err
			}
			return newTeeBody(body, read), nil
		}
	}
	return &out
}

// TeeResponseBody replaces the body of r by one that passes its bytes to the function in the
// argument read, as [Accessor.TeeRequestBody] does, and returns r. The body of an upgraded
// connection (101) stays an [io.ReadWriteCloser], and keeps its CloseWrite. Bytes that are written
// to such a body are not passed to this function.
func (Accessor) TeeResponseBody(r *http.Response, read func(at int64, p []byte)) *http.Response {
	if r == nil || ended(r) {
		return r
	}
	r.Body = newTeeBody(r.Body, read)
	return r
}

// newTeeBody returns a wrapper of body. The wrapper passes the bytes that each Read returns, and
// their offset in body, to the function in the argument read. It has the methods Write and
// CloseWrite if body has the method Write.
func newTeeBody(body io.ReadCloser, read func(at int64, p []byte)) io.ReadCloser {
	tee := &teeBody{wrappedBody: wrappedBody{body}, read: read}
	if w, ok := body.(io.Writer); ok {
		return teeStream{tee, w}
	}
	return tee
}

// teeBody is a body that passes the bytes of each Read to the function in the field read.
// Concurrent calls of Read are not allowed.
type teeBody struct {
	wrappedBody
	read func(at int64, p []byte)
	at   int64 // offset of the next piece
}

func (b *teeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read(b.at, p[:n])
		b.at += int64(n)
	}
	return n, err
}

type teeStream struct {
	*teeBody
	io.Writer
}

// CloseWrite closes the sending half of the connection, or returns [http.ErrNotSupported].
func (s teeStream) CloseWrite() error { return message.CloseWrite(s.Writer) }

// OnResponseStart registers o as an observer of the response to r, which the handler of a
// [Middleware] writes. o is notified when the handler writes the response headers, and of each
// piece of the body. OnResponseStart must be called before the handler, with the ctx and r of a
// request of a Middleware. Otherwise it has no effect. Package tap calls this method through an
// interface.
func (Accessor) OnResponseStart(ctx context.Context, r *http.Request, o layer.ResponseObserver[*http.Response]) {
	x, ok := ctx.Value(servingKey{}).(*served)
	// A request that the handler itself makes may carry the same context. Only
	// the received request has a RequestURI.
	if !ok || r.RequestURI == "" || x.begun.Load() {
		return
	}
	x.observers = append(x.observers, o)
}

// OnDeferredResponse always returns false, because the headers of an HTTP response have arrived
// when Call returns. Package tap calls this method, because another protocol may deliver them
// later.
func (Accessor) OnDeferredResponse(*http.Response, layer.ResponseObserver[*http.Response]) bool {
	return false
}

// ErrorResponse returns nil and false, because an error of HTTP does not contain a response.
// Package tap calls this method, because an error of another protocol may contain one.
func (Accessor) ErrorResponse(context.Context, *http.Request, error) (*http.Response, bool) {
	return nil, false
}

// DestinationAddr returns the address that r was or will be sent to. For a received request
// this is the local address of the connection. For a request that this process makes it is
// the address in the URL, or the zero value if the URL has a host name. Package tap calls
// this method through an interface.
func (a Accessor) DestinationAddr(ctx context.Context, r *http.Request) netip.AddrPort {
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

// SourceLabels returns linkerd's labels for the client of a received request. With TLS, the
// label tls is true, and client_id is the first DNS-like name or URI in the verified client
// certificate. Without TLS, the label tls is loopback for a loopback address, and otherwise
// no_tls_from_remote. The result is empty for a request that this process makes.
func (a Accessor) SourceLabels(r *http.Request) map[string]string {
	return caller.Labels(a.Source(r), clientTLS(r))
}

// clientTLS returns the TLS state of the connection of a received request. It returns nil if the
// connection does not use TLS. The connection of a [Server] is in the context of the request.
func clientTLS(r *http.Request) *tls.ConnectionState {
	if r.TLS != nil || r.RequestURI == "" {
		return r.TLS
	}
	if state, ok := tcplayer.TLSState(ConnFromContext(r.Context())); ok {
		return new(state)
	}
	return nil
}
