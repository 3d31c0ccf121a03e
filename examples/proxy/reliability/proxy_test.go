package reliability

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/internal/h2spectest"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// patience is how long a test waits at most.
const patience = time.Minute

// maxStreams is how many streams a connection may have.
const maxStreams = 100

// testProxy is a proxy on real sockets, in cleartext and with TLS, with one upstream.
type testProxy struct {
	addr, tls string

	requests            atomic.Int64 // requests that reached the upstream
	started, open, peak atomic.Int64 // counts of requests for /hold
}

func newTestProxy(t testing.TB, opts ...httplayer.ServerOption) *testProxy {
	t.Helper()
	return newTestProxyBehind(t, func(s tcplayer.Server) tcplayer.Server { return s }, opts...)
}

// newTestProxyBehind is newTestProxy with an additional layer for connections.
func newTestProxyBehind(t testing.TB, front func(tcplayer.Server) tcplayer.Server, opts ...httplayer.ServerOption) *testProxy {
	t.Helper()
	tn := &testProxy{}
	there := goleak.IgnoreCurrent()
	t.Cleanup(func() { // net/http keeps an aborted HTTP/2 connection for up to a second
		require.Eventually(t, func() bool { return goleak.Find(there) == nil }, patience, time.Millisecond)
	})
	ctx, cancel := context.WithCancel(context.Background())
	svc := httplayer.NewStack().
		Limit(100_000).
		Service(httplayer.NewEndpoint(ctx, tn.serveUpstream(t)))
	server := front(httplayer.NewServer(svc, append([]httplayer.ServerOption{httplayer.WithDrainOnDone(ctx)}, opts...)...))
	detect := tcplayer.Detect(tcplayer.Protocols{HTTP1: server, HTTP2: server, Opaque: h2spectest.Opaque{}})

	var ended []chan error
	serve := func(l net.Listener) {
		done := make(chan error, 1)
		ended = append(ended, done)
		go func() { done <- tcplayer.Serve(ctx, l, detect, tcplayer.WithShutdownTimeout(0)) }()
	}
	open, secure := listen(t), listen(t)
	tn.addr, tn.tls = open.Addr().String(), secure.Addr().String()
	serve(open)
	serve(tls.NewListener(secure, &tls.Config{
		Certificates: []tls.Certificate{certificate(t)}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
	}))
	t.Cleanup(func() {
		cancel()
		for _, done := range ended {
			<-done
		}
	})
	return tn
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// serveUpstream responds immediately, except to /hold: such a request waits until it is canceled.
func (tn *testProxy) serveUpstream(t testing.TB) (addr string) {
	t.Helper()
	l := listen(t)
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tn.requests.Add(1)
		if r.URL.Path == "/hold" {
			tn.started.Add(1)
			tn.see(tn.open.Add(1))
			defer tn.open.Add(-1)
		}
		_, err := io.Copy(io.Discard, r.Body) // net/http notices that the caller leaves only after the body is read
		if r.URL.Path == "/hold" {
			if err == nil {
				<-r.Context().Done()
			}
			return
		}
		_, _ = io.WriteString(w, "hello")
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	return l.Addr().String()
}

func (tn *testProxy) see(open int64) {
	for peak := tn.peak.Load(); open > peak && !tn.peak.CompareAndSwap(peak, open); {
		peak = tn.peak.Load()
	}
}

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
