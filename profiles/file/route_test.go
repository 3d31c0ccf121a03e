package file

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

type (
	httpService = layer.Service[*http.Request, *http.Response]
	httpRouter  = profiles.Router[*http.Request, *http.Response]
)

// newRouter returns a router with targets that answer with the name of the route.
func newRouter(t *testing.T, source profiles.Source, target string, log *slog.Logger) *httpRouter {
	t.Helper()
	mk := func(string) httpService {
		return layer.Func[*http.Request, *http.Response](func(ctx context.Context, _ *http.Request) (*http.Response, error) {
			rsp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
			if route := layer.RouteFromContext(ctx); route != nil {
				rsp.Header.Set("Route", route.Name)
			}
			return rsp, nil
		})
	}
	c := profiles.Config{Target: target, Source: source, InitialWait: time.Minute, Log: log}
	return profiles.New(t.Context(), c, httplayer.HTTP{}, mk)
}

// routed returns the name of the route of a request such as "GET /a?b=c", with
// header fields behind it such as "x-user: ada".
func routed(t *testing.T, p *profiles.Profile, request string) (route string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var source profiles.Static
		source.Set("web:80", p)
		route = call(t, newRouter(t, &source, "web:80", nil), request)
	})
	return route
}

func call(t *testing.T, r *httpRouter, request string) string {
	t.Helper()
	lines := strings.Split(request, "\n")
	method, url, _ := strings.Cut(lines[0], " ")
	if strings.HasPrefix(url, "/") {
		url = "http://web" + url
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	rsp, err := r.Call(t.Context(), req)
	require.NoError(t, err)
	return rsp.Header.Get("Route")
}

// Requests are routed by a short form as written.
func TestShortFormRoutes(t *testing.T) {
	p := parse(t, `
target: web
routes:
- {name: exact, match: {path: /a.b}}
- {name: regex, match: {pathRegex: '/c|/d'}}
- {name: canary, match: {header: {x-canary: {present: true}}, query: {page: ["1", {prefix: x}]}}}
- {name: images, match: {host: {prefix: img.}, method: [GET, HEAD]}}
- {name: buy, match: {grpc: {service: shop.v1.Shop, method: Buy}}}
- {name: shop, match: {grpc: {service: shop.v1.Shop}, not: {header: {x-user: {regex: 'a|b'}}}}}
- {name: static, match: {pathPrefix: /static}}
`).Profile("web:80")
	for request, want := range map[string]string{
		"GET /a.b": "exact", "GET /axb": "", "GET /c": "regex", "GET /cc": "", "GET /x/d": "",
		"GET /?page=1\nx-canary: ": "canary", "GET /?page=2\nx-canary: y": "", "GET /?page=x%20y\nx-canary: y": "canary", "GET /?page=1": "",
		"GET http://IMG.example.com:8080/": "images", "POST http://img.example.com/": "", "HEAD http://img.example.com/": "images",
		"POST /shop.v1.Shop/Buy": "buy", "POST /shop.v1.Shop/Sell": "shop", "POST /shop.v1.Shop/Sell\nx-user: b": "",
		"GET /static": "static", "GET /static/x?y": "static", "GET /statics": "",
	} {
		assert.Equal(t, want, routed(t, p, request), request)
	}
}

// "/a|/b" is two things: linkerd does not group.
func TestPathAnchors(t *testing.T) {
	theirs := parse(t, sp("  routes: [{name: r, condition: {pathRegex: /a|/b}}]\n")).Profile("web.ns.svc.cluster.local:80")
	ours := parse(t, "{target: web, routes: [{name: r, match: {pathRegex: /a|/b}}]}").Profile("web:80")
	for path, want := range map[string][2]string{
		"/a": {"r", "r"}, "/b": {"r", "r"}, "/ax": {"r", ""}, "/x/b": {"r", ""}, "/x": {"", ""},
	} {
		assert.Equal(t, want, [2]string{routed(t, theirs, "GET "+path), routed(t, ours, "GET "+path)}, path)
	}
}
