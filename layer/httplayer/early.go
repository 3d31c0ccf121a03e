package httplayer

import (
	"context"
	"net"
	"net/http"
	"net/netip"
)

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
