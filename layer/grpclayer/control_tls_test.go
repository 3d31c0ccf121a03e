package grpclayer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// certificate is self-signed, for one name.
func certificate(t testing.TB, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}

// plainTLS is a TLS proxy without ALPN in front of a server.
func plainTLS(cert tls.Certificate) func(net.Listener) net.Listener {
	return func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	}
}

func TestControlTLS(t *testing.T) {
	cert, roots := certificate(t, "dst.test")
	z := serveZone(t, "127.0.0.1")
	for name, p := range map[string]*plane{
		"a proxy":     servePlane(t, "127.0.0.1:0", plainTLS(cert)),
		"gRPC itself": servePlane(t, "127.0.0.1:0", nil, grpc.Creds(credentials.NewServerTLSFromCert(&cert))),
	} {
		t.Run(name, func(t *testing.T) {
			port := portOf(t, p.addr)
			c := control(t, ControlPlaneConfig{Addr: "dst.test.:" + port, TLS: &tls.Config{RootCAs: roots}, Resolver: z.resolver()})
			var who peer.Peer
			_, err := call(t.Context(), c, grpc.Peer(&who))
			require.NoError(t, err)
			info, ok := who.AuthInfo.(credentials.TLSInfo)
			require.True(t, ok)
			assert.Equal(t, "dst.test", info.State.ServerName)
			assert.Equal(t, credentials.PrivacyAndIntegrity, info.SecurityLevel)
			assert.Equal(t, "dst.test.:"+port, p.header(":authority"))

			// The server name differs from the authority.
			c = control(t, ControlPlaneConfig{Addr: p.addr, TLS: &tls.Config{RootCAs: roots, ServerName: "dst.test"}})
			_, err = call(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, p.addr, p.header(":authority"))
		})
	}
}

// Nothing is sent to a server without the right certificate, and the error has
// the reason.
func TestControlWrongCertificate(t *testing.T) {
	t.Parallel()
	cert, roots := certificate(t, "dst.test")
	p := servePlane(t, "127.0.0.1:0", plainTLS(cert))
	open := servePlane(t, "127.0.0.1:0", nil)
	for name, tt := range map[string]struct {
		server *plane
		tls    *tls.Config
		want   string
	}{
		"another name":     {p, &tls.Config{RootCAs: roots, ServerName: "id.test"}, "not id.test"},
		"unknown issuer":   {p, &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "dst.test"}, "unknown authority"},
		"no TLS":           {open, &tls.Config{RootCAs: roots, ServerName: "dst.test"}, "does not look like a TLS handshake"},
		"TLS not expected": {p, nil, "connect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := control(t, ControlPlaneConfig{Addr: tt.server.addr, TLS: tt.tls, FailFast: 200 * time.Millisecond})
			// Later calls get the reason of the fail-fast.
			eventually(t, func() bool { return failures(c) > 0 }, "it tried")
			_, err := call(t.Context(), c)
			require.ErrorIs(t, err, layer.ErrFailFast)
			_, err = call(t.Context(), c)
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, tt.want)
			assert.Zero(t, tt.server.calls.Load())
		})
	}
}
