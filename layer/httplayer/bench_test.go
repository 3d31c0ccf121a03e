package httplayer

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

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

func BenchmarkDeadline(b *testing.B) {
	req := &http.Request{Header: http.Header{"Grpc-Timeout": {"4999m"}, "Te": {"trailers"}, "User-Agent": {"x"}}}
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			GRPCTimeout(req)
		}
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			SetGRPCTimeout(req, time.Second)
		}
	})
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

// BenchmarkMiddleware measures a request to a handler that does nothing: without a middleware,
// without layers, with a limit, and with a limit and a timeout.
func BenchmarkMiddleware(b *testing.B) {
	bare := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for name, h := range map[string]http.Handler{
		"bare":          bare,
		"empty":         Middleware(nil)(bare),
		"limit":         Middleware(NewStack().Limit(10).Layer())(bare),
		"limit+timeout": Middleware(NewStack().Limit(10).Timeout(time.Minute).Layer())(bare),
	} {
		b.Run(name, func(b *testing.B) {
			w, r := silent{make(http.Header)}, httptest.NewRequest(http.MethodGet, "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

// silent is a writer of no cost.
type silent struct{ header http.Header }

func (s silent) Header() http.Header       { return s.header }
func (silent) Write(p []byte) (int, error) { return len(p), nil }
func (silent) WriteHeader(int)             {}
func (silent) Flush()                      {}

// BenchmarkReplay measures the preparation of a request body for further attempts, and one attempt.
func BenchmarkReplay(b *testing.B) {
	r := httptest.NewRequest(http.MethodPut, "/", http.NoBody)
	for name, body := range map[string]func(){
		"none": func() { r.Body, r.GetBody = http.NoBody, nil },
		"kept": func() { r.Body = struct{ silentBody }{} },
	} {
		b.Run(name, func(b *testing.B) {
			body()
			b.ReportAllocs()
			for b.Loop() {
				if replay := (HTTP{}).Replay(r, 1<<16); replay != nil {
					again, _ := replay.Next()
					_ = again.Body.Close()
					replay.End()
				}
			}
		})
	}
}

type silentBody struct{}

func (silentBody) Read([]byte) (int, error) { return 0, nil }
func (silentBody) Close() error             { return nil }

// BenchmarkTeeRequest measures the copy of a request without its transport.
func BenchmarkTeeRequest(b *testing.B) {
	head := http.Header{"Accept": {"*/*"}, "User-Agent": {"bench"}, "Cookie": {"a=b"}, "Content-Type": {"text/plain"}}
	url := &url.URL{Scheme: "http", Host: "web", Path: "/"}
	for name, size := range map[string]int{"no body": 0, "1 KiB": 1 << 10, "64 KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			text, buf := make([]byte, size), make([]byte, 32<<10)
			b.ReportAllocs()
			for b.Loop() {
				req := &http.Request{Method: http.MethodPost, URL: url, Header: head, ContentLength: int64(size)}
				if size > 0 {
					req.Body = io.NopCloser(bytes.NewReader(text))
				}
				req = HTTP{}.TeeRequest(req, 64<<10, func(*http.Request, bool) {})
				for err := error(nil); err == nil && size > 0; {
					_, err = req.Body.Read(buf)
				}
			}
		})
	}
}
