package sidecar_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// sums is an application that reports its requests' trailers.
func sums(t testing.TB) (addr string, got <-chan http.Header) {
	t.Helper()
	out := make(chan http.Header, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && string(body) == "hello" {
			out <- r.Trailer
		}
		_, _ = io.WriteString(w, "ok")
	}))
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), out
}

// Trailers that only the proxy may set are removed, and others are forwarded.
func TestG5ForgedTrailer(t *testing.T) {
	up, got := sums(t)
	m := newMesh(t, up, speaksH2)
	alone := newTestProxy(t, m.ctl.addr, func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(up) })
	for name, proxy := range map[string]string{"in clear": alone.Inbound, "with an identity": m.a.Addr} {
		for announced, trailers := range map[string]string{
			"X-Sum":                                "X-Sum: 1\n",
			"X-Sum, l5d-client-id, L5D-Orig-Proto": "l5d-client-id: root\nX-Sum: 1\nL5D-Orig-Proto: HTTP/1.0\n",
			"L5d-Client-Id, X-Sum":                 "L5d-Client-Id: root\nX-Sum: 1\nl5d-client-id: admin\nl5d-orig-proto: HTTP/1.0\n",
			"l5d-client-id, x-sum":                 "X-Sum: 1\n",
		} {
			t.Run("HTTP1 "+name+"/"+announced, func(t *testing.T) {
				first, _, _ := dialWire(t, proxy).ask(t,
					"POST / HTTP/1.1\nHost: web\nTransfer-Encoding: chunked\nTrailer: "+announced+"\n\n5\nhello\n0\n"+trailers+"\n")
				require.Equal(t, "HTTP/1.1 200 OK", first)
				require.Equal(t, http.Header{"X-Sum": {"1"}}, <-got)
			})
		}
		t.Run("HTTP2 "+name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web.example/", io.NopCloser(strings.NewReader("hello")))
			require.NoError(t, err)
			req.Trailer = http.Header{"X-Sum": {"1"}, "L5d-Client-Id": {"root"}, "L5d-Orig-Proto": {"HTTP/1.0"}}
			rsp, err := h2Client(t, proxy).Do(req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
			require.Equal(t, http.StatusOK, rsp.StatusCode)
			require.Equal(t, http.Header{"X-Sum": {"1"}}, <-got)
		})
		t.Run("nothing else "+name, func(t *testing.T) {
			first, _, _ := dialWire(t, proxy).ask(t,
				"POST / HTTP/1.1\nHost: web\nTransfer-Encoding: chunked\nTrailer: l5d-client-id\n\n5\nhello\n0\nl5d-client-id: root\n\n")
			require.Equal(t, "HTTP/1.1 200 OK", first)
			require.Empty(t, <-got)
		})
	}
}
