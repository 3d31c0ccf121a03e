package mesh

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"strings"

	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Names of header fields between linkerd's proxies and applications, in canonical form.
const (
	clientIDField        = "L5d-Client-Id"
	remoteIPField        = "L5d-Remote-Ip"
	serverIDField        = "L5d-Server-Id"
	requireIDField       = "L5d-Require-Id"
	origProtoField       = "L5d-Orig-Proto"
	proxyErrorField      = "L5d-Proxy-Error"
	proxyConnectionField = "L5d-Proxy-Connection"
)

// ClientID returns a layer that sets l5d-client-id to the client's name. nameOf returns the name
// in the verified certificate, or "" without a name. It is called once per request, concurrently.
// A nil nameOf always returns "". The layer should be in front of an application.
//
// The layer removes l5d-client-id, l5d-remote-ip and l5d-server-id that clients send from headers
// and trailers. It also removes spellings with underscores, because CGI and WSGI servers read
// both as one name. The layer forwards a request unchanged if nameOf returns "", Trailer is nil,
// and none of these headers is present.
func ClientID(nameOf func(*http.Request) string) httplayer.Layer {
	if nameOf == nil {
		nameOf = func(*http.Request) string { return "" }
	}
	removed := []string{remoteIPField, serverIDField}
	anonymous := layer.HeaderMutation{Remove: []string{remoteIPField, serverIDField, clientIDField}}
	return around.Layer("client_id", nil, func(ctx context.Context, req *http.Request, next httplayer.Service) (*http.Response, error) {
		var edit httplayer.HTTP
		switch id := nameOf(req); {
		case id != "":
			named := layer.HeaderMutation{Set: []layer.HeaderField{{Name: clientIDField, Value: id}}, Remove: removed}
			req = edit.EditRequest(req, named)
		case req.Trailer != nil || hasIdentity(req.Header):
			req = edit.EditRequest(req, anonymous)
		}
		return next.Call(ctx, req)
	})
}

// hasIdentity reports whether h has a header that [ClientID] removes. An application may trust such a
// header, because normally only a proxy sets it.
func hasIdentity(h http.Header) bool {
	const prefix = len("l5d-")
	for name := range h {
		if len(name) <= prefix || name[0]|0x20 != 'l' || name[1] != '5' {
			continue
		}
		switch strings.ReplaceAll(strings.ToLower(name), "_", "-") {
		case "l5d-client-id", "l5d-remote-ip", "l5d-server-id":
			return true
		}
	}
	return false
}

// without returns a shallow copy of req without the header field name. The copy has its own header map,
// because layers must not modify the request that they receive.
func without(req *http.Request, name string) *http.Request {
	out := *req
	if out.Header = maps.Clone(req.Header); out.Header == nil {
		out.Header = make(http.Header)
	}
	delete(out.Header, name)
	return &out
}

// RequireID returns a layer that fails a request if the endpoint below does not have the identity
// that the request's header l5d-require-id demands. identity is the endpoint's identity, or "" if
// the endpoint proved none. The two identities are compared byte for byte. The layer does not
// forward the header.
//
// If they differ or identity is "", Call returns an [httplayer.IdentityError]. This is not a rejection,
// because the client requires this endpoint. A request without the header is forwarded, at the
// cost of one look-up.
func RequireID(identity string) httplayer.Layer {
	call := func(ctx context.Context, req *http.Request, next httplayer.Service) (*http.Response, error) {
		identities, ok := req.Header[requireIDField]
		if !ok {
			return next.Call(ctx, req)
		}
		for _, id := range identities {
			if id != identity || id == "" {
				return nil, &layer.Error{Layer: "require_id", Err: &httplayer.IdentityError{Required: id, Found: identity}}
			}
		}
		return next.Call(ctx, without(req, requireIDField))
	}
	return around.Layer("require_id", layer.State{{Key: "identity", Value: identity}}, call)
}

// WithErrorHeaders sets whether the error responses of a server carry the error text in l5d-proxy-error
// and l5d-proxy-connection, see [httplayer.WithErrorHeaders]. [ProxyErrors] in the other proxy reads both.
func WithErrorHeaders(on bool) httplayer.HandlerOption {
	if !on {
		return httplayer.WithErrorHeaders("", "")
	}
	return httplayer.WithErrorHeaders(proxyErrorField, proxyConnectionField)
}

// ProxyErrors returns a layer that removes l5d-proxy-error and l5d-proxy-connection from responses.
// It logs l5d-proxy-error to log, at level Warn, with the limits of [httplayer.WithLogger]. If log is nil,
// the header is not logged. It should be above an endpoint. A response without these headers costs
// two look-ups.
//
// If meshPeer is true, a response with l5d-proxy-connection: close also closes the client's
// connection. You should use true if the endpoint is a mesh proxy and the only endpoint for the
// request, and otherwise false, because the next request on the connection may be sent to another
// endpoint.
func ProxyErrors(log *slog.Logger, meshPeer bool) httplayer.Layer {
	limited := slog.New(slog.DiscardHandler)
	if log != nil {
		limited = slog.New(lograte.New(log.Handler()))
	}
	call := func(ctx context.Context, req *http.Request, next httplayer.Service) (*http.Response, error) {
		rsp, err := next.Call(ctx, req)
		if err != nil || rsp == nil {
			return rsp, err
		}
		if values, ok := rsp.Header[proxyErrorField]; ok {
			if limited.Enabled(ctx, slog.LevelWarn) {
				var a httplayer.HTTP
				limited.LogAttrs(ctx, slog.LevelWarn, "the peer's proxy reports an error",
					slog.String("error", strings.Join(values, ", ")), slog.Int("status", rsp.StatusCode),
					slog.String("authority", a.Authority(req)))
			}
			delete(rsp.Header, proxyErrorField)
		}
		if values, ok := rsp.Header[proxyConnectionField]; ok {
			if meshPeer && len(values) > 0 && strings.EqualFold(values[0], "close") {
				rsp.Header[message.CloseClient] = []string{"close"}
			}
			delete(rsp.Header, proxyConnectionField)
		}
		return rsp, nil
	}
	return around.Layer("proxy_errors", layer.State{{Key: "meshed", Value: meshPeer}}, call)
}
