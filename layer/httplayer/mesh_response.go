package httplayer

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer"
)

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
