package sidecar

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/examples/proxy/admin"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// elsewhere makes clients appear to be on another machine.
type elsewhere struct{ net.Listener }

func (e elsewhere) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tcplayer.OverrideAddrs(conn, netip.MustParseAddrPort("10.1.2.3:4567"), netip.AddrPort{}), nil
}

// A TLS client does not count as a client on this machine.
func TestAdminTLSRemoteClient(t *testing.T) {
	mesh, err := ca.New("cluster.local")
	require.NoError(t, err)
	key, _, err := identity.Request("server.cluster.local")
	require.NoError(t, err)
	chain, err := mesh.Issue("server.cluster.local", key.Public())
	require.NoError(t, err)
	cert := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(mesh.TrustAnchors()))
	id, err := identity.Static(cert, roots)
	require.NoError(t, err)
	h := admin.New(admin.Config{Metrics: meters.New(meters.Config{}).Handler(), Describe: func() layer.Node { return layer.Node{} }})
	for name, tt := range map[string]struct {
		from func(net.Listener) net.Listener
		want int
	}{
		"this machine": {func(l net.Listener) net.Listener { return l }, http.StatusOK},
		"elsewhere":    {func(l net.Listener) net.Listener { return elsewhere{l} }, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			var operators serve.Group
			behind := func(l net.Listener) net.Listener { return withOptionalTLS(id.Server())(tt.from(l)) }
			addr := operators.HTTPBehind(behind, "admin", "127.0.0.1:0", h)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- operators.Run(ctx, 30*time.Second, slog.New(slog.DiscardHandler)) }()
			tr := &http.Transport{TLSClientConfig: id.Client("server.cluster.local", "server.cluster.local")}
			for path, want := range map[string]int{"/metrics": http.StatusOK, "/stack": tt.want} {
				rsp, err := (&http.Client{Transport: tr}).Get("https://" + addr + path)
				require.NoError(t, err)
				require.NoError(t, rsp.Body.Close())
				require.Equal(t, want, rsp.StatusCode, path)
			}
			tr.CloseIdleConnections()
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

// A connection is closed at the header timeout if the client begins TLS and then sends nothing.
func TestAdminSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		go func() { _, _ = client.Write([]byte("\x16\x03\x01")) }()
		began := time.Now()
		conn := &optionalConn{Conn: server, cfg: &tls.Config{}, peeked: &peekedConn{server, bufio.NewReader(server)}}
		_, err := conn.Read(make([]byte, 64))
		require.Error(t, err)
		require.Equal(t, handshakeTimeout, time.Since(began))
		_, err = conn.Write([]byte("HTTP/1.1 400 Bad Request"))
		require.Error(t, err, "nothing is sent in cleartext")
		require.NoError(t, conn.Close())
	})
}

// A client that stops sending holds a goroutine only for a limited time, whether it stops before
// its first byte, in the TLS handshake, or later.
func TestTapSilentClient(t *testing.T) {
	for name, tt := range map[string]struct {
		sent   string
		within time.Duration
	}{
		"nothing":           {"", detectTimeout},
		"a record begins":   {"\x16\x03\x01", handshakeTimeout},
		"HTTP/2 in clear":   {"P", handshakeTimeout},
		"half of a preface": {"PRI * HTTP/2.0\r\n", handshakeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close()
				go func() { _, _ = client.Write([]byte(tt.sent)) }()
				began := time.Now()
				conn, _, err := newOptionalTLS(&tls.Config{}).ServerHandshake(server)
				for err == nil { // as gRPC reads on
					_, err = conn.Read(make([]byte, 64))
				}
				if name != "a record begins" {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}
				require.Equal(t, tt.within, time.Since(began))
				server.Close()
			})
		})
	}
}
