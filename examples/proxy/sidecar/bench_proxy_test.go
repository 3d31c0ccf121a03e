package sidecar_test

import (
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/sidecar"
)

// BenchmarkProxy sends one request at a time through two proxies. The client and the
// application are in the same process, so allocations include theirs.
func BenchmarkProxy(b *testing.B) {
	for _, bb := range []struct {
		name  string
		hints []func(*destination.WeightedAddr)
		mesh  func(b *testing.B, app string, hints ...func(*destination.WeightedAddr)) *testProxy
		h2    bool
	}{
		{"clear/http1", nil, clearMesh, false},
		{"clear/h2", nil, clearMesh, true},
		{"tls/http1", nil, secureMesh, false},
		{"tls/http1_as_h2", []func(*destination.WeightedAddr){speaksH2}, secureMesh, false},
		{"tls/h2", []func(*destination.WeightedAddr){speaksH2}, secureMesh, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			a := bb.mesh(b, served(b), bb.hints...)
			c := a.client(b)
			if bb.h2 {
				c = h2Client(b, a.Addr)
			}
			benchmarkGet(b, c)
		})
	}
	b.Run("direct/http1", func(b *testing.B) {
		a := &testProxy{Proxy: &sidecar.Proxy{Addr: served(b)}}
		benchmarkGet(b, a.client(b))
	})
}

// served is a fast application that accepts HTTP/1 and HTTP/2.
func served(b *testing.B) (addr string) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	})}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	b.Cleanup(func() {
		srv.Close()
		<-done
	})
	return l.Addr().String()
}

func secureMesh(b *testing.B, app string, hints ...func(*destination.WeightedAddr)) *testProxy {
	b.Helper()
	return newMesh(b, app, hints...).a
}

func clearMesh(b *testing.B, app string, hints ...func(*destination.WeightedAddr)) *testProxy {
	b.Helper()
	m := &mesh{ctl: newScript(b)}
	m.ctl.profile(service, &destination.DestinationProfile{FullyQualifiedName: "web.example"})
	m.b = newTestProxy(b, m.ctl.addr, func(c *sidecar.Config) { c.Settings.Inbound.Origin = fixed(app) })
	m.a = newTestProxy(b, m.ctl.addr, toService)
	m.answer(b, endpointAt(m.b.Inbound, hints...))
	return m.a
}

func benchmarkGet(b *testing.B, c *http.Client) {
	b.Helper()
	once := func() {
		rsp, err := c.Get("http://web.example/")
		require.NoError(b, err)
		_, _ = io.Copy(io.Discard, rsp.Body)
		rsp.Body.Close()
		if rsp.StatusCode != http.StatusOK {
			b.Fatal(rsp.Status, rsp.Header)
		}
	}
	once()
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}
