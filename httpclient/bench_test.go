package httpclient_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gotower/gotower/httpclient"
)

// BenchmarkRoundTrip is one exchange with a server of net/http in the same process: by a Client with its
// defaults, and by http.Transport.
func BenchmarkRoundTrip(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	b.Cleanup(s.Close)
	for name, rt := range map[string]http.RoundTripper{
		"client":    httpclient.New(b.Context(), "web", httpclient.WithAddrs(s.Listener.Addr().String())),
		"transport": httpclient.NewTransport(b.Context()),
		"nethttp":   &http.Transport{Proxy: http.ProxyFromEnvironment},
	} {
		b.Run(name, func(b *testing.B) {
			c := &http.Client{Transport: rt}
			b.Cleanup(c.CloseIdleConnections)
			b.ReportAllocs()
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.URL+"/", http.NoBody)
				if err != nil {
					b.Fatal(err)
				}
				rsp, err := c.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, rsp.Body)
				_ = rsp.Body.Close()
			}
		})
	}
}
