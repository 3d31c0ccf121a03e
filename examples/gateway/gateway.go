package main

import (
	"context"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// gateway is the path of a request, which reads from top to bottom:
//
//	mux ─┬─ /           404
//	     └─ /books ──▶ auth ─▶ explain ─▶ profile ─────▶ queue ─▶ balance ─▶ endpoint
//	                                      route: retry,  bounded  cheapest   one
//	                                      timeout; split wait                address
type gateway struct {
	books    httplayer.Service
	explains explanations
	resolver resolve.Resolver
	log      *slog.Logger
}

// target is the target of the profile.
const target = "books.example:80"

// newGateway returns a gateway. Its background work ends with ctx.
func newGateway(ctx context.Context, source profiles.Source, resolver resolve.Resolver, key string, log *slog.Logger) *gateway {
	g := &gateway{resolver: resolver, log: log}
	g.books = httplayer.NewStack(layer.WithTarget[*http.Response](target)).
		With("auth", bearer(key)).
		With("explain", g.explains.layer).
		Service(profiles.New(ctx, target, source, httplayer.Accessor{}, g.backend(ctx),
			profiles.WithInitialWait[*http.Request, *http.Response](time.Second),
			profiles.WithRouteLayers(httplayer.Replayer{}, httplayer.Editor{}, httplayer.Classify),
			profiles.WithLogger[*http.Request, *http.Response](log)))
	return g
}

// backend balances the requests of a target over its endpoints. This is the only place
// where requests wait. An endpoint that fails gets few requests from the balancer. There
// is no breaker, because one broken route would open it for all.
func (g *gateway) backend(ctx context.Context) func(target string) httplayer.Service {
	return func(target string) httplayer.Service {
		return httplayer.NewStack(layer.WithTarget[*http.Response](target)).
			Queue(1000, 2*time.Second).
			Service(balance.Resolve(ctx, g.resolver, target, endpoint))
	}
}

// endpoint serves one address.
func endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	return httplayer.NewEndpoint(ctx, t.Endpoint.Addr.String())
}

// clients serves the clients.
func (g *gateway) clients() http.Handler {
	mux := http.NewServeMux()
	books := httplayer.Handler(g.books, httplayer.WithLogger(g.log))
	mux.Handle("/books", books)
	mux.Handle("/books/", books)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, r.URL.Path+" does not exist; /books does, and requires a token", http.StatusNotFound)
	})
	return onlyASCII(mux)
}

// onlyASCII rejects a request target with other bytes, because parsers interpret them
// differently. A URI is ASCII (RFC 3986, section 2).
func onlyASCII(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c >= utf8.RuneSelf }) {
			http.Error(w, "the request target must be ASCII", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admin serves the operator: the live tree of services, and the explanations of requests
// with the header X-Explain.
func (g *gateway) admin() http.Handler {
	page := template.Must(template.New("admin").Parse(pageText))
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if err := page.Execute(w, map[string]any{"Tree": layer.Describe(g.books).String(), "Explained": g.explains.latest()}); err != nil {
			g.log.Warn("admin page", "err", err)
		}
	})
	return mux
}

const pageText = `<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="2">
<title>gateway</title>
<style>:root{color-scheme:light dark}body{font:15px system-ui;margin:2em}pre{overflow:auto;font:13px ui-monospace,monospace}</style>
<h1>gateway</h1>
<h2>The path of a request</h2><pre>{{.Tree}}</pre>
<h2>Explained</h2>
{{range .Explained}}<h3>{{.Request}}</h3><pre>{{.Why}}</pre>{{else}}<p>Send a request with the header <code>X-Explain: 1</code>.{{end}}
`
