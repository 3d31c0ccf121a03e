package httplayer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Headers between linkerd's proxies and applications, in canonical form.
const (
	clientIDField        = "L5d-Client-Id"
	requireIDField       = "L5d-Require-Id"
	canonicalField       = "L5d-Dst-Canonical"
	origProtoField       = "L5d-Orig-Proto"
	proxyErrorField      = "L5d-Proxy-Error"
	proxyConnectionField = "L5d-Proxy-Connection"
)

// edited is a layer that passes on the request that edit returns.
type edited struct {
	Service
	name  string
	state layer.State
	edit  func(*http.Request) *http.Request
}

func (e *edited) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return e.Service.Call(ctx, e.edit(req))
}

func (e *edited) Next() Service { return e.Service }

func (e *edited) Describe() layer.Node { return layer.Node{Name: e.name, State: e.state} }

// ClientID tells an application the name of its client in l5d-client-id. of
// returns the name in the verified certificate, or "" for none. It is called
// once per request, concurrently; nil means "" for all. Place the layer in
// front of an application.
//
// The layer drops l5d-client-id, l5d-remote-ip and l5d-server-id of clients
// from headers and trailers, also spelled with underscores, because CGI and
// WSGI servers read both as one name. A request without these headers, without
// a name and without trailers passes unchanged.
func ClientID(of func(*http.Request) string) layer.Layer[*http.Request, *http.Response] {
	if of == nil {
		of = func(*http.Request) string { return "" }
	}
	edit := func(req *http.Request) *http.Request {
		id, forged := of(req), hasIdentity(req.Header)
		if id == "" && !forged && len(req.Trailer) == 0 {
			return req
		}
		out := fork(req)
		maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return isIdentity(name) })
		if len(req.Trailer) > 0 {
			withoutTrailers(out, isIdentity)
		}
		if id != "" {
			out.Header[clientIDField] = []string{id}
		}
		return out
	}
	return func(next Service) Service { return &edited{Service: next, name: "client_id", edit: edit} }
}

func hasIdentity(h http.Header) bool {
	for name := range h {
		if isIdentity(name) {
			return true
		}
	}
	return false
}

// isIdentity reports whether an application may trust the header as set by a
// proxy.
func isIdentity(name string) bool {
	const prefix = len("l5d-")
	if len(name) <= prefix || name[0]|0x20 != 'l' || name[1] != '5' {
		return false
	}
	switch strings.ReplaceAll(strings.ToLower(name), "_", "-") {
	case "l5d-client-id", "l5d-remote-ip", "l5d-server-id":
		return true
	}
	return false
}

// OverrideAuthority replaces the Host and the URL's host of every request by
// authority, for endpoints in other clusters. It drops l5d-dst-canonical,
// because that name is of this cluster. With an empty authority the layer does
// nothing.
func OverrideAuthority(authority string) layer.Layer[*http.Request, *http.Response] {
	edit := func(req *http.Request) *http.Request {
		out := fork(req)
		delete(out.Header, "Host")
		delete(out.Header, canonicalField)
		out.Host, out.URL = authority, elsewhere(req.URL, authority)
		return out
	}
	state := layer.State{{Key: "authority", Value: authority}}
	return func(next Service) Service {
		if authority == "" {
			return next
		}
		return &edited{Service: next, name: "override_authority", state: state, edit: edit}
	}
}

// StripHeader drops the named headers and trailers from every request, such as
// l5d-dst-override, which is meant for this proxy only. Place it directly above
// the endpoint, so that a rejected request keeps its headers for the next
// endpoint. A request without them and without trailers passes unchanged.
func StripHeader(names ...string) layer.Layer[*http.Request, *http.Response] {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	edit := func(req *http.Request) *http.Request {
		if len(req.Trailer) == 0 && !slices.ContainsFunc(canonical, func(name string) bool { return req.Header[name] != nil }) {
			return req
		}
		out := fork(req)
		for _, name := range canonical {
			delete(out.Header, name)
		}
		if len(req.Trailer) > 0 {
			withoutTrailers(out, func(name string) bool { return slices.Contains(canonical, name) })
		}
		return out
	}
	return func(next Service) Service { return &edited{Service: next, name: "strip_header", edit: edit} }
}

// fork returns a shallow copy of req with its own header map.
func fork(req *http.Request) *http.Request {
	out := *req
	if out.Header = req.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header)
	}
	return &out
}

// RequireID rejects requests for another endpoint than the one below. The
// l5d-require-id header of a request names the required identity, and identity
// is that of the endpoint, "" if unproven. They are compared byte for byte. The
// header is not forwarded.
//
// A mismatch fails with an [IdentityError]. It is not a rejection, because the
// client asked for this endpoint only. A request without the header costs one
// look-up.
func RequireID(identity string) layer.Layer[*http.Request, *http.Response] {
	return func(next Service) Service { return &requireID{next, identity} }
}

type requireID struct {
	Service
	identity string
}

func (l *requireID) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	asked, ok := req.Header[requireIDField]
	if !ok {
		return l.Service.Call(ctx, req)
	}
	for _, id := range asked {
		if id != l.identity || id == "" {
			return nil, &layer.Error{Layer: "require_id", Err: &IdentityError{Required: id, Found: l.identity}}
		}
	}
	out := fork(req)
	delete(out.Header, requireIDField)
	return l.Service.Call(ctx, out)
}

func (l *requireID) Next() Service { return l.Service }

func (l *requireID) Describe() layer.Node {
	return layer.Node{Name: "require_id", State: layer.State{{Key: "identity", Value: l.identity}}}
}

// IdentityError reports that an endpoint does not have the required identity.
// It is answered with 502, or UNAVAILABLE.
type IdentityError struct {
	Required string
	Found    string // "" if the endpoint proved no identity
}

// Error names both identities.
func (e *IdentityError) Error() string {
	if e.Found == "" {
		return "identity required: " + strconv.Quote(e.Required) + ", but the endpoint has none"
	}
	return "identity required: " + strconv.Quote(e.Required) + ", but the endpoint is " + strconv.Quote(e.Found)
}

// ProxyErrorsOption configures [ProxyErrors].
type ProxyErrorsOption interface{ apply(l *proxyErrors) }

type proxyErrorsOption func(*proxyErrors)

func (f proxyErrorsOption) apply(l *proxyErrors) { f(l) }

// WithMeshPeer obeys l5d-proxy-connection: close of the endpoint by closing the
// client's connection. Use it if the endpoint is a proxy of the mesh and the
// only choice. The default ignores that header.
func WithMeshPeer() ProxyErrorsOption {
	return proxyErrorsOption(func(l *proxyErrors) { l.meshed = true })
}

// WithProxyErrorLogger logs l5d-proxy-error of other proxies at level Warn,
// with the limits of [WithLogger]. The default, and nil, means no log.
func WithProxyErrorLogger(log *slog.Logger) ProxyErrorsOption {
	return proxyErrorsOption(func(l *proxyErrors) { l.log = log })
}

// ProxyErrors removes l5d-proxy-error and l5d-proxy-connection from responses
// and logs the former. Place it above an endpoint. A response without these
// headers costs two look-ups.
func ProxyErrors(opts ...ProxyErrorsOption) layer.Layer[*http.Request, *http.Response] {
	return func(next Service) Service {
		l := &proxyErrors{Service: next}
		for _, opt := range opts {
			if opt != nil {
				opt.apply(l)
			}
		}
		l.log = limitedLog(l.log)
		return l
	}
}

type proxyErrors struct {
	Service
	meshed bool
	log    *slog.Logger
}

// closesClient is a Connection header that closes the client's connection. No
// endpoint can send it, because received names are canonical.
const closesClient = "connection"

func (l *proxyErrors) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := l.Service.Call(ctx, req)
	if err != nil || rsp == nil {
		return rsp, err
	}
	if said, ok := rsp.Header[proxyErrorField]; ok {
		if l.log.Enabled(ctx, slog.LevelWarn) {
			var a Accessor
			l.log.LogAttrs(ctx, slog.LevelWarn, "the peer's proxy reports an error",
				slog.String("error", strings.Join(said, ", ")), slog.Int("status", rsp.StatusCode),
				slog.String("authority", a.Authority(req)))
		}
		delete(rsp.Header, proxyErrorField)
	}
	if said, ok := rsp.Header[proxyConnectionField]; ok {
		if l.meshed && len(said) > 0 && strings.EqualFold(said[0], "close") {
			rsp.Header[closesClient] = []string{"close"}
		}
		delete(rsp.Header, proxyConnectionField)
	}
	return rsp, nil
}

func (l *proxyErrors) Next() Service { return l.Service }

func (l *proxyErrors) Describe() layer.Node {
	return layer.Node{Name: "proxy_errors", State: layer.State{{Key: "meshed", Value: l.meshed}}}
}

// withoutTrailers makes the body of req, a copy of a received request, filter the trailers.
// Trailers arrive at the end of the body, in the map Trailer that the server made.
func withoutTrailers(req *http.Request, drops func(name string) bool) {
	came := req.Trailer
	req.Trailer = make(http.Header, len(came))
	for name, values := range came {
		if !drops(name) {
			req.Trailer[name] = values
		}
	}
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &trailerFilter{ReadCloser: req.Body, came: came, left: req.Trailer, drops: drops}
	}
}

// trailerFilter is a body that copies the trailers from came to left at its end,
// except those that drops selects.
type trailerFilter struct {
	io.ReadCloser
	came, left http.Header
	drops      func(name string) bool // nil drops none
}

// Pending reports what Read returns without waiting.
func (b *trailerFilter) Pending() (n int, eof bool) { return message.Pending(b.ReadCloser) }

func (b *trailerFilter) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name, values := range b.came {
			if b.drops == nil || !b.drops(name) {
				b.left[name] = values
			}
		}
	}
	return n, err
}
