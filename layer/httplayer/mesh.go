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
)

// The fields by which linkerd's proxies talk to each other and to applications,
// as net/http writes their names.
const (
	clientIDField        = "L5d-Client-Id"
	requireIDField       = "L5d-Require-Id"
	canonicalField       = "L5d-Dst-Canonical"
	origProtoField       = "L5d-Orig-Proto"
	proxyErrorField      = "L5d-Proxy-Error"
	proxyConnectionField = "L5d-Proxy-Connection"
)

// edited is a layer that gives next what edit makes of a request: the request
// itself, or a copy.
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

// ClientID tells an application which client calls it: l5d-client-id becomes the
// name that of returns for a request. For the name "" the request has no such
// field, and a nil of returns "" for all. of is called once a request, for many
// requests at a time, and returns the name of a verified certificate. Place it in
// front of an application.
//
// A client cannot send l5d-client-id, l5d-remote-ip or l5d-server-id itself: the
// layer drops them from headers and trailers. It also drops their spellings with
// underscores, because CGI and WSGI servers read both as one name.
//
// A request that the layer does not change, and that announces no trailers, is
// passed as it is.
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

// isIdentity reports whether an application may read the field as one by which a
// proxy vouches for a client.
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

// Canonical sets l5d-dst-canonical to name, "web.default.svc.cluster.local:80":
// the name that a request was balanced by, for the metrics of the proxy that
// receives it.
func Canonical(name string) layer.Layer[*http.Request, *http.Response] {
	value := []string{name}
	edit := func(req *http.Request) *http.Request {
		if said := req.Header[canonicalField]; len(said) == 1 && said[0] == name {
			return req
		}
		out := fork(req)
		out.Header[canonicalField] = value[:1:1]
		return out
	}
	state := layer.State{{Key: "name", Value: name}}
	return func(next Service) Service {
		return &edited{Service: next, name: "canonical", state: state, edit: edit}
	}
}

// OverrideAuthority sends every request to another authority, as an endpoint
// in another cluster asks for: Host and the host of the URL become authority,
// and l5d-dst-canonical, the name that it has here, is dropped. With an empty
// authority the layer does nothing.
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

// StripHeader drops the named fields from every request, its trailers included:
// those that are said to this proxy and to nobody behind it, such as
// l5d-dst-override. Put it right above the endpoint, where a request is sent: one
// that is refused there goes elsewhere as it is. A request that has none of them,
// and announces no trailers, is passed as it is, for a look-up each.
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

// fork returns a shallow copy of req with a header of its own.
func fork(req *http.Request) *http.Request {
	out := *req
	if out.Header = req.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header)
	}
	return &out
}

// RequireID refuses to send a request to an endpoint other than the one that
// it asks for: l5d-require-id names an identity, and the endpoint has the one
// given here, "" if it proved none. They are compared as they are. The header
// field goes no further.
//
// A request that asks for another one fails with an [IdentityError]: it was not
// sent, and it is no refusal, since the client asked for just this. A request
// that asks for none costs a look-up.
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

// IdentityError says that an endpoint is not who a request was for. It is
// answered with 502, or UNAVAILABLE.
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

// ProxyErrorsOption sets what [ProxyErrors] does.
type ProxyErrorsOption interface{ apply(l *proxyErrors) }

type proxyErrorsOption func(*proxyErrors)

func (f proxyErrorsOption) apply(l *proxyErrors) { f(l) }

// WithMeshPeer says that the endpoint is another proxy of the mesh, the only one that
// was there to choose: its l5d-proxy-connection: close asks to close the
// client's connection, and is obeyed. The default is not to.
func WithMeshPeer() ProxyErrorsOption {
	return proxyErrorsOption(func(l *proxyErrors) { l.meshed = true })
}

// WithProxyErrorLogger logs the l5d-proxy-error of other proxies at level Warn. Repeated
// messages are limited as those of [WithLogger] are. The default, and nil, is silence.
func WithProxyErrorLogger(log *slog.Logger) ProxyErrorsOption {
	return proxyErrorsOption(func(l *proxyErrors) { l.log = log })
}

// ProxyErrors takes off responses what another proxy says to this one: the
// error in l5d-proxy-error, which is logged, and l5d-proxy-connection. Put it
// above an endpoint; a response without these fields costs two look-ups.
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

// closesClient is Connection as no peer can spell it: net/http has the names that it
// reads in canonical form, so this is ours. ReverseProxy, which drops the
// Connection of the endpoint, passes it on to the client.
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

// withoutTrailers drops fields from the trailers of req, a copy of what a client
// sent. They come with the end of the body, into the Trailer that the server made,
// when a client has announced any.
func withoutTrailers(req *http.Request, drops func(name string) bool) {
	came := req.Trailer
	req.Trailer = make(http.Header, len(came))
	for name, values := range came {
		if !drops(name) {
			req.Trailer[name] = values
		}
	}
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &untrailed{ReadCloser: req.Body, came: came, left: req.Trailer, drops: drops}
	}
}

// untrailed is a body that passes the trailers on when it ends, but for some. They
// are complete then, and not before.
type untrailed struct {
	io.ReadCloser
	came, left http.Header
	drops      func(name string) bool // nil: none
}

func (b *untrailed) Read(p []byte) (int, error) {
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
