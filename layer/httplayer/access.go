package httplayer

import (
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/layer"
)

// Accessor is the [layer.Accessor] of net/http, for requests that a server
// received and for those that a client makes. It keeps nothing and allocates
// nothing; addresses are parsed when they are asked for.
type Accessor struct{}

var _ layer.Accessor[*http.Request, *http.Response] = Accessor{}

// Method returns the method; that of an empty one is "GET".
func (Accessor) Method(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// Scheme returns the scheme of the URL; for a request to a server, which has
// none there, "https" if it came by TLS and else "http".
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

// Path returns the path in its escaped form, as it is sent: an empty one is "/",
// but for CONNECT, which has none.
func (Accessor) Path(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	if path := r.URL.EscapedPath(); path != "" || r.Method == http.MethodConnect {
		return path
	}
	return "/"
}

// Query returns the query of the URL as it was sent.
func (Accessor) Query(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	return r.URL.RawQuery
}

// Source returns the address that the request came from, IPv4 in IPv6 as
// IPv4; the zero value for a request of our own.
func (Accessor) Source(r *http.Request) netip.AddrPort {
	return addrPortOf(r.RemoteAddr)
}

// RequestHeader returns a view of the request's header, without Host.
func (Accessor) RequestHeader(r *http.Request) layer.Header { return fields(r.Header) }

// RequestOverHTTP2 reports whether r is, or was when it was received, HTTP/2's.
func (Accessor) RequestOverHTTP2(r *http.Request) bool { return r.ProtoMajor == 2 }

// ResponseOverHTTP2 reports whether r came by HTTP/2.
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

// ResponseTrailer returns a view of the trailer: names that were announced
// are not in it before they have a value.
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

// fields is a header seen as layer.Header. A map fits into an interface
// without an allocation.
type fields http.Header

func (f fields) Get(name string) string { return http.Header(f).Get(name) }

// Values returns all values of name; they are not to be changed.
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

// TeeRequestBody returns a shallow copy of r with a body that tells read what is
// read of it, and at how many bytes into the body that begins. Read is called
// on the goroutine of whoever reads, before it gets the bytes, and keeps none
// of them. A body that GetBody makes tells, too, from 0 on. A request without a
// body is returned as it is.
//
// One thing is not as it was: of a body that it does not know to be in memory,
// net/http sends the header ahead.
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

// TeeResponseBody does for the body of r, in place, what TeeRequestBody does for
// that of a request. The body of an upgraded connection (101) stays an
// [io.ReadWriteCloser], with its CloseWrite if it has one; what is written to
// it is not told.
func (Accessor) TeeResponseBody(r *http.Response, read func(at int64, p []byte)) *http.Response {
	if r == nil || ended(r) {
		return r
	}
	r.Body = along(r.Body, read)
	return r
}

// along returns a body of the same kind: one that can be written to, and closed
// by halves, still can.
func along(body io.ReadCloser, read func(at int64, p []byte)) io.ReadCloser {
	told := &toldBody{ReadCloser: body, read: read}
	w, writes := body.(io.Writer)
	half, halves := body.(halfCloser)
	switch {
	case writes && halves:
		return tunnel{toldStream{told, w}, half}
	case writes:
		return toldStream{told, w}
	}
	return told
}

// tunnel is the body of an upgraded connection: embedding alone would hide
// that it can be closed by halves.
type tunnel struct {
	io.ReadWriteCloser
	halfCloser
}

// toldBody is read by one goroutine at a time, as bodies are.
type toldBody struct {
	io.ReadCloser
	read func(at int64, p []byte)
	at   int64
}

func (b *toldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read(b.at, p[:n])
		b.at += int64(n)
	}
	return n, err
}

type toldStream struct {
	*toldBody
	io.Writer
}

// OnResponseStart has begun called when a handler below a [Middleware] writes the header
// of its response, and data for what it writes after that. It does nothing for
// requests of other kinds. It is for package tap, which finds it by itself.
func (Accessor) OnResponseStart(ctx context.Context, r *http.Request, begun func(*http.Response), data func(n int, p []byte)) {
	x, ok := ctx.Value(servingKey{}).(*served)
	// A request that this one has the process make is not the one that came in,
	// though its context be the same.
	if !ok || r.RequestURI == "" || x.begun.Load() {
		return
	}
	x.hear = append(x.hear, hearer{begun, data})
}

// hearer wants to hear of a response while its handler runs.
type hearer struct {
	begun func(*http.Response)
	data  func(n int, p []byte)
}

// begin tells of a response that has its status.
func (x *served) begin() {
	for _, h := range x.hear {
		h.begun(x.response())
	}
}

// data tells of n bytes of the body, which are p if that is known. What is
// written in answer to a HEAD is not sent.
func (x *served) data(n int64, p []byte) {
	if n <= 0 || x.received.Method == http.MethodHead {
		return
	}
	for _, h := range x.hear {
		h.data(int(n), p)
	}
}

// dataString makes a copy of s where somebody hears.
func (x *served) dataString(n int, s string) {
	if len(x.hear) > 0 {
		x.data(int64(n), []byte(s[:max(n, 0)]))
	}
}

// DestinationAddr returns the address that a request to a server came to, and for one
// that a client makes that of its URL, if that is one and not a name. It is for
// package tap, which finds it by itself.
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

// addrPortOf is not valid for what is no address with a port.
func addrPortOf(s string) netip.AddrPort {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
