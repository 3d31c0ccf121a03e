package httplayer

import (
	"context"
	"iter"
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
