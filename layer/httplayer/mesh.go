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

// Names of header fields between linkerd's proxies and applications, in canonical form.
const (
	clientIDField        = "L5d-Client-Id"
	requireIDField       = "L5d-Require-Id"
	canonicalField       = "L5d-Dst-Canonical"
	origProtoField       = "L5d-Orig-Proto"
	proxyErrorField      = "L5d-Proxy-Error"
	proxyConnectionField = "L5d-Proxy-Connection"
)

// edits returns a layer that forwards, instead of each request, the request that edit returns for it.
// edit must not change its argument. name and state are what Describe shows.
func edits(name string, state layer.State, edit func(*http.Request) *http.Request) Layer {
	return newLayer(name, state, func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		return next.Call(ctx, edit(req))
	})
}

// ClientID returns a layer that sets l5d-client-id to the client's name. nameOf returns the name
// in the verified certificate, or "" without a name. It is called once per request, concurrently.
// A nil nameOf always returns "". The layer should be in front of an application.
//
// The layer removes l5d-client-id, l5d-remote-ip and l5d-server-id that clients send from headers
// and trailers. It also removes spellings with underscores, because CGI and WSGI servers read
// both as one name. The layer forwards a request unchanged if nameOf returns "", Trailer is nil,
// and none of these headers is present.
func ClientID(nameOf func(*http.Request) string) layer.Layer[*http.Request, *http.Response] {
	if nameOf == nil {
		nameOf = func(*http.Request) string { return "" }
	}
	edit := func(req *http.Request) *http.Request {
		out, id := strip(req, isIdentity), nameOf(req)
		if id == "" {
			return out
		}
		if out == req {
			out = fork(req)
		}
		out.Header[clientIDField] = []string{id}
		return out
	}
	return edits("client_id", nil, edit)
}

// isIdentity reports whether name is a header that [ClientID] removes. An application may
// trust such a header, because normally only a proxy sets it.
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

// OverrideAuthority returns a layer that replaces every request's Host and the host in its URL
// with authority. You need it for endpoints in other clusters. The layer removes
// l5d-dst-canonical, because that header names a service of this cluster. With an empty authority
// the layer does nothing.
func OverrideAuthority(authority string) layer.Layer[*http.Request, *http.Response] {
	if authority == "" {
		return func(next Service) Service { return next }
	}
	edit := func(req *http.Request) *http.Request {
		out := fork(req)
		delete(out.Header, "Host")
		delete(out.Header, canonicalField)
		out.Host, out.URL = authority, withHost(req.URL, authority)
		return out
	}
	return edits("override_authority", layer.State{{Key: "authority", Value: authority}}, edit)
}

// StripHeader returns a layer that removes the named headers and trailers from every request. An
// example is l5d-dst-override, which is for this proxy only. The layer should be directly above
// the endpoint, so that a rejected request keeps its headers for the next endpoint. The layer
// forwards a request unchanged if Trailer is nil and none of the headers is present.
func StripHeader(names ...string) layer.Layer[*http.Request, *http.Response] {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	drops := func(name string) bool { return slices.Contains(canonical, name) }
	return edits("strip_header", nil, func(req *http.Request) *http.Request { return strip(req, drops) })
}

// strip returns a copy of req without the headers and trailers whose names drops selects. It
// returns req itself if Trailer is nil and none of the headers is present.
func strip(req *http.Request, drops func(name string) bool) *http.Request {
	if req.Trailer == nil && !fields(req.Header).hasName(drops) {
		return req
	}
	out := fork(req)
	removeFields(out, req, drops)
	return out
}

// fork returns a shallow copy of req with its own header map, because layers must not modify the
// request that they receive; see ownHeader.
func fork(req *http.Request) *http.Request {
	out := *req
	out.Header = ownHeader(req)
	return &out
}

// ownHeader returns a copy of req's header map, in which fields can be added, replaced and deleted. The
// two maps share the slices of values, so a slice must be replaced instead of changed. This is cheaper
// than [http.Header.Clone].
func ownHeader(req *http.Request) http.Header {
	if req.Header == nil {
		return make(http.Header)
	}
	return maps.Clone(req.Header)
}

// without returns a shallow copy of req without the header field name.
func without(req *http.Request, name string) *http.Request {
	out := fork(req)
	delete(out.Header, name)
	return out
}

// RequireID returns a layer that fails a request if the endpoint below does not have the identity
// that the request's header l5d-require-id demands. identity is the endpoint's identity, or "" if
// the endpoint proved none. The two identities are compared byte for byte. The layer does not
// forward the header.
//
// If they differ or identity is "", Call returns an [IdentityError]. This is not a rejection,
// because the client requires this endpoint. A request without the header is forwarded, at the
// cost of one look-up.
func RequireID(identity string) layer.Layer[*http.Request, *http.Response] {
	call := func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		asked, ok := req.Header[requireIDField]
		if !ok {
			return next.Call(ctx, req)
		}
		for _, id := range asked {
			if id != identity || id == "" {
				return nil, &layer.Error{Layer: "require_id", Err: &IdentityError{Required: id, Found: identity}}
			}
		}
		return next.Call(ctx, without(req, requireIDField))
	}
	return newLayer("require_id", layer.State{{Key: "identity", Value: identity}}, call)
}

// IdentityError reports that an endpoint does not have the required identity. It is answered with
// the status 502, or UNAVAILABLE for gRPC.
type IdentityError struct {
	Required string
	Found    string // identity of the endpoint; "" if it proved none
}

// Error returns a text with both identities.
func (e *IdentityError) Error() string {
	found := "has none"
	if e.Found != "" {
		found = "is " + strconv.Quote(e.Found)
	}
	return "identity required: " + strconv.Quote(e.Required) + ", but the endpoint " + found
}

// ProxyErrors returns a layer that removes l5d-proxy-error and l5d-proxy-connection from responses.
// It logs l5d-proxy-error to log, at level Warn, with the limits of [WithLogger]. If log is nil,
// the header is not logged. It should be above an endpoint. A response without these headers costs
// two look-ups.
//
// If meshPeer is true, a response with l5d-proxy-connection: close also closes the client's
// connection. You should use true if the endpoint is a mesh proxy and the only endpoint for the
// request, and otherwise false, because the next request on the connection may be sent to another
// endpoint.
func ProxyErrors(log *slog.Logger, meshPeer bool) layer.Layer[*http.Request, *http.Response] {
	log = limitedLog(log)
	call := func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		rsp, err := next.Call(ctx, req)
		if err != nil || rsp == nil {
			return rsp, err
		}
		if values, ok := rsp.Header[proxyErrorField]; ok {
			if log.Enabled(ctx, slog.LevelWarn) {
				var a HTTP
				log.LogAttrs(ctx, slog.LevelWarn, "the peer's proxy reports an error",
					slog.String("error", strings.Join(values, ", ")), slog.Int("status", rsp.StatusCode),
					slog.String("authority", a.Authority(req)))
			}
			delete(rsp.Header, proxyErrorField)
		}
		if values, ok := rsp.Header[proxyConnectionField]; ok {
			if meshPeer && len(values) > 0 && strings.EqualFold(values[0], "close") {
				rsp.Header[closesClient] = []string{"close"}
			}
			delete(rsp.Header, proxyConnectionField)
		}
		return rsp, nil
	}
	return newLayer("proxy_errors", layer.State{{Key: "meshed", Value: meshPeer}}, call)
}

// closesClient is the name of a response header with which layers close the client's connection:
// the Handler then adds Connection: close. An endpoint cannot send this header, because the name
// is in lower case and the names of received headers are canonical.
const closesClient = "connection"

// removeFields removes the headers and trailers whose names drops selects from out, which is a copy of
// received with its own header map. Trailers arrive when a body ends, so out gets its own Trailer map,
// and a body that fills the map at its end.
func removeFields(out, received *http.Request, drops func(name string) bool) {
	maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return drops(name) })
	removeTrailers(out, received, drops)
}

// removeTrailers is removeFields for the trailers alone.
func removeTrailers(out, received *http.Request, drops func(name string) bool) {
	if received.Trailer == nil {
		return
	}
	source := &received.Trailer
	if out == received { // the fields are edited in place, so received.Trailer will be replaced
		original := received.Trailer
		source = &original
	}
	out.Trailer = source.Clone()
	maps.DeleteFunc(out.Trailer, func(name string, _ []string) bool { return drops(name) })
	if out.Trailer != nil && hasBody(out) {
		out.Body = &trailerFilter{wrappedBody{out.Body}, source, &out.Trailer, drops}
	}
}

// trailerFilter wraps a received message's body. When the body ends, it copies the received
// message's trailers to the forwarded message, except those that drops selects.
type trailerFilter struct {
	wrappedBody
	received  *http.Header           // the trailers of the received message
	forwarded *http.Header           // the trailers of the forwarded message
	drops     func(name string) bool // nil drops none
}

// Read reads from the body. At its end, when the trailers have arrived, it forwards those that may be
// forwarded.
func (b *trailerFilter) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		if *b.forwarded == nil && *b.received != nil {
			*b.forwarded = make(http.Header, len(*b.received))
		}
		for name, values := range *b.received {
			if b.drops == nil || !b.drops(name) {
				(*b.forwarded)[name] = values
			}
		}
	}
	return n, err
}
