package httplayer

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkMeshLayers measures the cost of each layer, for a request without headers for
// proxies and for one with them.
func BenchmarkMeshLayers(b *testing.B) {
	rsp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
	for name, l := range meshLayers() {
		svc := l(serviceFunc(func(context.Context, *http.Request) (*http.Response, error) { return rsp, nil }))
		plain := request(b, "GET", "http://web/", "")
		plain.Header = http.Header{"Accept": {"*/*"}, "User-Agent": {"me"}, "X-Request-Id": {"1"}}
		said := plain.Clone(plain.Context())
		said.Proto, said.ProtoMajor, said.ProtoMinor = "HTTP/2.0", 2, 0
		said.Header.Set("L5d-Orig-Proto", "HTTP/1.1")
		said.Header.Set("L5d-Require-Id", "web.id")
		said.Header.Set("L5d-Client-Id", "forged")
		said.Header.Set("L5d-Dst-Override", "web:80")
		for kind, req := range map[string]*http.Request{"plain": plain, "said": said} {
			b.Run(strings.ReplaceAll(name, " ", "_")+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = svc.Call(b.Context(), req)
				}
			})
		}
	}
}

// BenchmarkMeshHop measures one HTTP/1.1 request through two proxies, with HTTP/1.1 and with HTTP/2
// between them. Client, proxies and server are in one process.
func BenchmarkMeshHop(b *testing.B) {
	up := serve(b, http.HandlerFunc(small))
	for name, proxy := range map[string]string{
		"http1":      oneProxy(b, oneProxy(b, up)),
		"orig-proto": twoProxies(b, up),
	} {
		b.Run(name, func(b *testing.B) {
			c := client(b, false)
			b.ReportAllocs()
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+proxy+"/", http.NoBody)
				if err != nil {
					b.Fatal(err)
				}
				drained(b, func() (*http.Response, error) { return c.Do(req) })
			}
		})
	}
}

// BenchmarkTunnel measures a short message through a CONNECT tunnel and its echo.
func BenchmarkTunnel(b *testing.B) {
	up, _ := tunnelled(b, established)
	c := wireTo(b, oneProxy(b, up))
	c.askEarly(connectHead, "")
	word := make([]byte, 4)
	b.ReportAllocs()
	for b.Loop() {
		say(c, "ping")
		if _, err := io.ReadFull(c.in, word); err != nil {
			b.Fatal(err)
		}
	}
}
