package httplayer

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// small answers a few bytes.
func small(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "hello")
}

// drained makes one request and reads the response.
func drained(b *testing.B, do func() (*http.Response, error)) {
	b.Helper()
	rsp, err := do()
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, rsp.Body)
	_ = rsp.Body.Close()
}

// BenchmarkCall is one exchange with a server on loopback, client and server
// together: by an Endpoint, and by http.Transport.
func BenchmarkCall(b *testing.B) {
	addr := serve(b, http.HandlerFunc(small))
	ctx := b.Context()
	for name, opt := range map[string]EndpointOption{"http1": WithHTTP1(), "h2": WithHTTP2()} {
		e := endpoint(b, addr, opt)
		tr := client(b, name == "h2").Transport
		for which, do := range map[string]func(*http.Request) (*http.Response, error){
			"endpoint":  func(r *http.Request) (*http.Response, error) { return e.Call(ctx, r) },
			"transport": tr.RoundTrip,
		} {
			for body, text := range map[string]string{"get": "", "post": strings.Repeat("x", 100)} {
				b.Run(name+"/"+which+"/"+body, func(b *testing.B) {
					b.ReportAllocs()
					method := http.MethodGet
					if text != "" {
						method = http.MethodPost
					}
					for b.Loop() {
						req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+"/", strings.NewReader(text))
						if err != nil {
							b.Fatal(err)
						}
						drained(b, func() (*http.Response, error) { return do(req) })
					}
				})
			}
		}
	}
}

// BenchmarkCallParallel is BenchmarkCall with as many callers as there are
// processors.
func BenchmarkCallParallel(b *testing.B) {
	addr := serve(b, http.HandlerFunc(small))
	for name, opt := range map[string]EndpointOption{"http1": WithHTTP1(), "h2": WithHTTP2()} {
		b.Run(name, func(b *testing.B) {
			e := endpoint(b, addr, opt)
			require.NoError(b, get(b.Context(), e, "/"))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				req, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://web/", http.NoBody)
				for pb.Next() {
					drained(b, func() (*http.Response, error) { return e.Call(b.Context(), req) })
				}
			})
		})
	}
}

// BenchmarkHop is one request through a proxy, all three parties together:
// ours, and httputil.ReverseProxy over http.Transport.
func BenchmarkHop(b *testing.B) {
	up := serve(b, http.HandlerFunc(small))
	for name, two := range map[string]bool{"http1": false, "h2": true} {
		std := &httputil.ReverseProxy{
			Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: up}) },
			Transport: client(b, two).Transport,
		}
		flushing := *std
		flushing.FlushInterval = -1
		for which, h := range map[string]http.Handler{
			"handler":            Handler(endpoint(b, up)),
			"reverseproxy":       std,
			"reverseproxy-flush": &flushing,
			"none":               nil,
		} {
			b.Run(name+"/"+which, func(b *testing.B) {
				addr := up
				if h != nil {
					addr = serve(b, h)
				}
				c := client(b, two)
				b.ReportAllocs()
				for b.Loop() {
					req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+addr+"/", http.NoBody)
					if err != nil {
						b.Fatal(err)
					}
					drained(b, func() (*http.Response, error) { return c.Do(req) })
				}
			})
		}
	}
}

// BenchmarkHandler measures Handler without a network.
func BenchmarkHandler(b *testing.B) {
	svc := layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}, nil
	})
	h := Handler(svc)
	req := httptest.NewRequest(http.MethodGet, "http://web/", http.NoBody)
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), req)
	}
}

// BenchmarkRejection measures a call that is rejected at capacity.
func BenchmarkRejection(b *testing.B) {
	addr := h2Server(b, 0, func(int, *rawH2) {})
	e := endpoint(b, addr, WithHTTP2())
	req, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://web/", http.NoBody)
	_, err := e.Call(b.Context(), req)
	require.ErrorIs(b, err, layer.ErrNotReady)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = e.Call(b.Context(), req)
	}
}
