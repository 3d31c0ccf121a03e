package httplayer

import (
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Accessor is the [layer.Accessor] of net/http. It reads requests that a server
// received and requests that a client makes. It has no state and does not
// allocate, except to parse addresses.
type Accessor struct{}

var _ layer.Accessor[*http.Request, *http.Response] = Accessor{}

// Method returns the method; "GET" for an empty one.
func (Accessor) Method(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// Scheme returns the scheme of the URL. Requests to a server have none there,
// so it returns "https" for TLS connections and else "http".
func (Accessor) Scheme(r *http.Request) string {
	switch {
	case r.URL != nil && r.URL.Scheme != "":
		return r.URL.Scheme
	case r.TLS != nil:
		return "https"
	}
	return "http"
}

// Authority returns the host of the URL, else the Host field, else "".
func (Accessor) Authority(r *http.Request) string {
	if r.URL != nil && r.URL.Host != "" {
		return r.URL.Host
	}
	return r.Host
}

// Path returns the escaped path as sent. An empty path is "/", except for
// CONNECT, which has none.
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

// Source returns the address of the client, with IPv4-mapped addresses as IPv4.
// It is the zero value for requests that this process makes.
func (Accessor) Source(r *http.Request) netip.AddrPort {
	return addrPortOf(r.RemoteAddr)
}

// RequestHeader returns a view of the request's header, without Host.
func (Accessor) RequestHeader(r *http.Request) layer.Header { return fields(r.Header) }

// RequestOverHTTP2 reports whether r is an HTTP/2 request or was received as
// one.
func (Accessor) RequestOverHTTP2(r *http.Request) bool { return r.ProtoMajor == 2 }

// ResponseOverHTTP2 reports whether r was received by HTTP/2.
func (Accessor) ResponseOverHTTP2(r *http.Response) bool { return r != nil && r.ProtoMajor == 2 }

// Status returns the status code, 0 for no response.
func (Accessor) Status(r *http.Response) int {
	if r == nil {
		return 0
	}
	return r.StatusCode
}

// ResponseHeader returns a view of the response's header.
func (Accessor) ResponseHeader(r *http.Response) layer.Header {
	if r == nil {
		return fields(nil)
	}
	return fields(r.Header)
}

// ResponseTrailer returns a view of the trailers. Announced names are absent
// until they have a value.
func (Accessor) ResponseTrailer(r *http.Response) layer.Header {
	if r == nil {
		return fields(nil)
	}
	return fields(r.Trailer)
}

// Complete is [Completion].
func (Accessor) Complete(ctx context.Context, r *http.Response, o layer.Observer) *http.Response {
	return Completion(ctx, r, o)
}

// fields adapts a header to layer.Header without an allocation.
type fields http.Header

func (f fields) Get(name string) string { return http.Header(f).Get(name) }

// Values returns all values of name. The caller must not modify them.
func (f fields) Values(name string) []string { return http.Header(f).Values(name) }

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

// TeeRequestBody returns a shallow copy of r whose body calls read with each
// piece and its offset. read runs on the goroutine that reads the body, before
// the caller gets the bytes, and must not keep them. Bodies from GetBody call
// read, too, from offset 0. A request without a body is returned unchanged.
// Wrapping the body makes net/http send the headers before the first piece.
func (Accessor) TeeRequestBody(r *http.Request, read func(at int64, p []byte)) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	out := *r
	out.Body = along(r.Body, read)
	if again := r.GetBody; again != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			if err != nil || body == nil || body == http.NoBody {
				return body, err
			}
			return along(body, read), nil
		}
	}
	return &out
}

// TeeResponseBody does the same for the body of r, in place. The body of an
// upgraded connection (101) stays an [io.ReadWriteCloser], with CloseWrite if
// it has one; written bytes are not reported.
func (Accessor) TeeResponseBody(r *http.Response, read func(at int64, p []byte)) *http.Response {
	if r == nil || ended(r) {
		return r
	}
	r.Body = along(r.Body, read)
	return r
}

// along returns a body that reads from wrapped and keeps the methods Write and CloseWrite
// of body.
func along(body io.ReadCloser, read func(at int64, p []byte)) io.ReadCloser {
	told := &teeBody{ReadCloser: body, read: read}
	w, writes := body.(io.Writer)
	half, halves := body.(halfCloser)
	switch {
	case writes && halves:
		return tunnel{teeStream{told, w}, half}
	case writes:
		return teeStream{told, w}
	}
	return told
}

// tunnel combines the two, because embedding a ReadWriteCloser alone would hide
// CloseWrite.
type tunnel struct {
	io.ReadWriteCloser
	halfCloser
}

// teeBody reports each piece that is read. One goroutine reads at a time.
type teeBody struct {
	io.ReadCloser
	read func(at int64, p []byte)
	at   int64
}

// Pending reports what Read returns without waiting.
func (b *teeBody) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

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

// OnResponseStart arranges a call of begun when a handler below a [Middleware]
// writes its response headers, and of data for each piece of the body after
// that. It does nothing for other requests. Package tap finds it by an
// interface.
func (Accessor) OnResponseStart(ctx context.Context, r *http.Request, begun func(*http.Response), data func(n int, p []byte)) {
	x, ok := ctx.Value(servingKey{}).(*served)
	// A request that the handler itself makes may carry the same context. Only
	// the received request has a RequestURI.
	if !ok || r.RequestURI == "" || x.begun.Load() {
		return
	}
	x.observers = append(x.observers, responseObserver{begun, data})
}

// OnDeferredResponse returns false, because a response begins when Call returns
// it.
func (Accessor) OnDeferredResponse(*http.Response, func()) bool { return false }

// ErrorResponse returns false, because no error represents a response.
func (Accessor) ErrorResponse(context.Context, *http.Request, error) (*http.Response, bool) {
	return nil, false
}

// responseObserver holds the callbacks of OnResponseStart.
type responseObserver struct {
	begun func(*http.Response)
	data  func(n int, p []byte)
}

// begin calls the registered callbacks when the response has its status.
func (x *served) begin() {
	for _, h := range x.observers {
		h.begun(x.response())
	}
}

// data reports n bytes of the body. p has these bytes, or is nil if they are not known. The
// response to HEAD has no body.
func (x *served) data(n int64, p []byte) {
	if n <= 0 || x.received.Method == http.MethodHead {
		return
	}
	for _, h := range x.observers {
		h.data(int(n), p)
	}
}

// dataString is data for a string. It copies s only if a callback is registered.
func (x *served) dataString(n int, s string) {
	if len(x.observers) > 0 {
		x.data(int64(n), []byte(s[:max(n, 0)]))
	}
}

// DestinationAddr returns the local address of a request to a server. For a
// request that a client makes it returns the address in the URL, if that is not
// a name. Package tap finds it by an interface.
func (a Accessor) DestinationAddr(ctx context.Context, r *http.Request) netip.AddrPort {
	if r.RequestURI != "" {
		local, _ := ctx.Value(http.LocalAddrContextKey).(net.Addr)
		if local == nil {
			return netip.AddrPort{}
		}
		return addrPortOf(local.String())
	}
	if r.URL == nil {
		return netip.AddrPort{}
	}
	if r.URL.Port() != "" {
		return addrPortOf(r.URL.Host)
	}
	addr, err := netip.ParseAddr(r.URL.Hostname())
	if err != nil {
		return netip.AddrPort{}
	}
	port := uint16(80)
	if r.URL.Scheme == "https" {
		port = 443
	}
	return netip.AddrPortFrom(addr.Unmap(), port)
}

// addrPortOf parses an address with a port. The result is invalid if s is
// anything else.
func addrPortOf(s string) netip.AddrPort {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
