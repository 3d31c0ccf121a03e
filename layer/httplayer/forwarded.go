package httplayer

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
)

// Forwarded returns a layer that informs servers behind a gateway about the client of a
// request. It appends the address of the peer of the connection to X-Forwarded-For and
// Forwarded (RFC 7239). It sets X-Forwarded-Proto and X-Forwarded-Host if they are absent. The
// protocol is https if the connection uses TLS, and otherwise http.
//
// If no prefix in the argument trusted contains the peer, the layer first removes Forwarded,
// X-Real-IP and the X-Forwarded- headers and trailers, also with underscores in the name. It keeps
// those of a trusted peer. Without prefixes no peer is trusted.
//
// The address of the client is the last address in the new X-Forwarded-For that is not trusted, or
// else the first address. [ClientFromContext] returns it in the layers below.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: not touched. The trailers of an untrusted peer are removed at its end.
//
// Errors: passed unchanged.
//
// Cost: a copy of the request and its headers.
func Forwarded(trusted ...netip.Prefix) Layer {
	peers := trustedPeers(slices.Clone(trusted))
	return newLayer("forwarded", layer.State{{Key: "trusted", Value: []netip.Prefix(peers)}}, peers.forward)
}

// trustedPeers has the address prefixes of trusted peers. [Forwarded] keeps the headers
// about the client that these peers send.
type trustedPeers []netip.Prefix

type clientKey struct{}

// ClientFromContext returns the address of the client that the layer [Forwarded] has found.
// It returns the zero value without such a layer above.
func ClientFromContext(ctx context.Context) netip.Addr {
	addr, _ := ctx.Value(clientKey{}).(netip.Addr)
	return addr
}

func (t trustedPeers) forward(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
	peer := Accessor{}.Source(req).Addr().WithZone("")
	client := t.client(req.Header, peer)
	layer.RecordFromContext(ctx).SetClient(client)
	ctx = reqctx.WithValue(ctx, clientKey{}, client)
	out := req.WithContext(ctx)
	if out.Header = req.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header)
	}
	if !t.contains(peer) {
		removeFields(out, req, isForwarded)
	}
	scheme := "http"
	if clientTLS(req) != nil { // not the scheme in the URL, which a client can set
		scheme = "https"
	}
	addForwarded(out.Header, peer, scheme, Accessor{}.Authority(req))
	return next.Call(ctx, out)
}

func (t trustedPeers) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// client returns the address of the client. It examines peer and then the elements of
// X-Forwarded-For, from the last to the first. It returns the first address that is not trusted,
// which is peer if peer is not trusted. If all addresses are trusted, or an element is not an
// address, it returns the address that it examined last.
func (t trustedPeers) client(h http.Header, peer netip.Addr) netip.Addr {
	client := peer
	elements := strings.Split(strings.Join(h["X-Forwarded-For"], ","), ",")
	for _, element := range slices.Backward(elements) {
		if !t.contains(client) {
			break
		}
		addr, err := netip.ParseAddr(strings.TrimSpace(element))
		if err != nil {
			break
		}
		client = addr.Unmap().WithZone("")
	}
	return client
}

// isForwarded reports whether name is a header field about the client that servers behind a
// gateway usually trust. A client must not be able to set it.
func isForwarded(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return name == "forwarded" || name == "x-real-ip" || strings.HasPrefix(name, "x-forwarded-")
}

func addForwarded(h http.Header, peer netip.Addr, scheme, host string) {
	from, node := "unknown", "unknown"
	if peer.IsValid() {
		from, node = peer.String(), peer.String()
	}
	if peer.Is6() {
		node = `"[` + from + `]"`
	}
	add(h, "X-Forwarded-For", from)
	add(h, "Forwarded", "for="+node+";host="+quoted(host)+";proto="+scheme)
	for name, value := range map[string]string{"X-Forwarded-Proto": scheme, "X-Forwarded-Host": host} {
		if len(h[name]) == 0 {
			h[name] = []string{value}
		}
	}
}

// add appends element to the comma-separated list in the header field name.
func add(h http.Header, name, element string) {
	h[name] = []string{strings.Join(append(slices.Clip(h[name]), element), ", ")}
}

// quoted returns s as a quoted-string. The value of host in Forwarded must be quoted if it
// has a port.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// RateLimitByClient limits the requests of each client by [layer.RateLimitBy]. A client is
// identified by the address of [ClientFromContext]. Without a [Forwarded] above, it is
// identified by the address of the peer. An IPv6 client is identified by its /64 prefix,
// because a host can use every address in it. At most 65536 clients are distinguished at a
// time.
//
// Admission, Cancellation, Body, Errors and Cost: as in [layer.RateLimitBy].
func RateLimitByClient(perSecond float64, burst int, opts ...Option) Layer {
	return layer.RateLimitBy[netip.Prefix, *http.Request, *http.Response](clientPrefix, perSecond, burst, 0, opts...)
}

func clientPrefix(req *http.Request) netip.Prefix {
	addr := ClientFromContext(req.Context())
	if !addr.IsValid() {
		addr = Accessor{}.Source(req).Addr()
	}
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	prefix, _ := addr.Prefix(bits) // the zero value for the zero address
	return prefix
}
