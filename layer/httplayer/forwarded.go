package httplayer

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
)

// Forwarded returns a layer that tells servers behind a gateway about a request's client. It appends the
// address of the connection's peer to X-Forwarded-For and Forwarded (RFC 7239). It sets X-Forwarded-Proto
// and X-Forwarded-Host if they are absent. The protocol is https if the connection uses TLS, and otherwise
// http.
//
// If no prefix in trusted contains the peer, the layer first removes Forwarded, X-Real-IP, the
// X-Forwarded- fields, and the fields for client certificates, such as Client-Cert (RFC 9440) and
// X-SSL-Client-Verify. It removes them from headers and trailers, also with underscores in the name. It
// keeps those of a trusted peer. Without prefixes no peer is trusted.
//
// The client's address is the last address in the new X-Forwarded-For that is not trusted, or else the
// first address. [ClientFromContext] returns it in the layers below.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Body: not touched. An untrusted peer's trailers are removed when the body ends. Errors and cancellation
// are passed on unchanged.
//
// Cost: a copy of the request and its headers.
func Forwarded(trusted ...netip.Prefix) Layer {
	peers := trustedPeers(slices.Clone(trusted))
	return around.Layer("forwarded", layer.State{{Key: "trusted", Value: []netip.Prefix(peers)}}, peers.forward)
}

// trustedPeers lists the address prefixes of peers whose headers about the client [Forwarded]
// keeps.
type trustedPeers []netip.Prefix

// clientKey is the context key of the client's address.
type clientKey struct{}

// ClientFromContext returns the client address that a [Forwarded] layer above has found, or the
// zero value without such a layer.
func ClientFromContext(ctx context.Context) netip.Addr {
	if addr, ok := ctx.Value(clientKey{}).(*netip.Addr); ok {
		return *addr
	}
	return netip.Addr{}
}

// forward is the layer's Call: it adds the fields about the client and calls next.
func (t trustedPeers) forward(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
	peer := HTTP{}.Source(req).Addr().WithZone("") // a zone means something only on the machine of the peer
	client := t.client(req.Header, peer)
	layer.RecordFromContext(ctx).SetClient(client)
	// The request carries the new context, and the layers below get the same one.
	f := &forwarded{clientContext: clientContext{reqctx.Wrapper{Context: ctx}, client}}
	f.req = *req.WithContext(&f.clientContext)
	out := &f.req
	out.Header = ownHeader(req)
	// Any client can write these fields, but only a trusted peer is believed.
	if !t.contains(peer) {
		removeFields(out, req, isForwarded)
	}
	scheme := "http"
	if clientTLS(req) != nil { // not the scheme in the URL, which a client can set
		scheme = "https"
	}
	f.add(peer, scheme, HTTP{}.Authority(req))
	return next.Call(&f.clientContext, out)
}

// forwarded holds all that forward allocates: the request for the layers below, its context, and the
// values of its new fields.
type forwarded struct {
	clientContext
	req    http.Request
	values [4]string
}

// clientContext is a request's context with the client's address, which ClientFromContext reads.
type clientContext struct {
	reqctx.Wrapper
	client netip.Addr
}

// Value returns the client's address to ClientFromContext, and the parent's values to all others.
func (c *clientContext) Value(key any) any {
	if key == (clientKey{}) {
		return &c.client
	}
	return c.Context.Value(key)
}

// contains reports whether addr is in one of the networks whose forwarding headers are trusted.
func (t trustedPeers) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// client returns the address of the client, as far as trusted peers vouch for it. Each proxy appends
// its peer's address to X-Forwarded-For, so client goes back from peer through its elements, from the
// last to the first, until it finds an address that is not trusted. If all are trusted, or an element
// is not an address, it returns the last one that it has seen.
func (t trustedPeers) client(h http.Header, peer netip.Addr) netip.Addr {
	client := peer
	if !t.contains(client) {
		return client
	}
	// Several fields of this name count as one list.
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
	if !strings.ContainsAny(name[:min(len(name), 1)], "FXCSfxcs") { // saves the comparisons
		return false
	}
	return sameField(name, "Forwarded") || sameField(name, "X-Real-Ip") || hasFieldPrefix(name, "X-Forwarded-") || isClientIdentity(name)
}

// add adds the four fields about the peer to the request. The text of the Forwarded element contains
// peer as text between begin and end, which X-Forwarded-For shares.
func (f *forwarded) add(peer netip.Addr, scheme, host string) {
	text := make([]byte, 0, 128)
	text = append(text, "for="...)
	begin := len(text)
	switch {
	case !peer.IsValid():
		text = append(text, "unknown"...)
	case peer.Is6():
		// X-Forwarded-For has the bare address, without the quotes and brackets that Forwarded needs.
		begin += len(`"[`)
		text = append(peer.AppendTo(append(text, `"[`...)), `]"`...)
	default:
		text = peer.AppendTo(text)
	}
	end := len(text)
	if peer.Is6() {
		end -= len(`]"`)
	}
	text = append(text, `;host="`...)
	for i := range len(host) { // with a port, it must be quoted
		if host[i] == '"' || host[i] == '\\' {
			text = append(text, '\\')
		}
		text = append(text, host[i])
	}
	node := string(append(append(text, `";proto=`...), scheme...))
	for i, field := range [...]struct {
		name, value string
		list        bool
	}{
		{name: "X-Forwarded-For", value: node[begin:end], list: true},
		{name: "Forwarded", value: node, list: true},
		{name: "X-Forwarded-Proto", value: scheme},
		{name: "X-Forwarded-Host", value: host},
	} {
		// A list grows by one element. Of the other two, the value from the first trusted proxy stays.
		switch old := f.req.Header[field.name]; {
		case len(old) == 0:
			f.values[i] = field.value
		case field.list:
			f.values[i] = strings.Join(append(slices.Clip(old), field.value), ", ")
		default:
			continue
		}
		f.req.Header[field.name] = f.values[i : i+1 : i+1]
	}
}

// RateLimitByClient limits each client's requests with [layer.RateLimitBy]. A client is
// identified by its address from [ClientFromContext]. Without a [Forwarded] above, it is
// identified by the peer's address. An IPv6 client is identified by its /64 prefix, because a
// host can use every address in it. At most 65536 clients are distinguished at a time.
//
// Admission, Cancellation, Body, Errors and Cost: as in [layer.RateLimitBy].
func RateLimitByClient(perSecond float64, burst int, opts ...Option) Layer {
	return layer.RateLimitBy[netip.Prefix, *http.Request, *http.Response](clientPrefix, perSecond, burst, 0, opts...)
}

// clientPrefix returns the key for RateLimitByClient: the client's IPv4 address, or its IPv6 /64.
func clientPrefix(req *http.Request) netip.Prefix {
	addr := ClientFromContext(req.Context())
	if !addr.IsValid() {
		addr = HTTP{}.Source(req).Addr()
	}
	// An IPv6 customer usually gets a whole /64, so single addresses would not limit it.
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	prefix, _ := addr.Prefix(bits) // the zero value for the zero address
	return prefix
}
