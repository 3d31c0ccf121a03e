package tcplayer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestEndpointTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"web.default"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	require.NoError(t, err)
	defer l.Close()
	names := make(chan string, 10)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_ = conn.(*tls.Conn).Handshake()
			names <- conn.(*tls.Conn).ConnectionState().ServerName
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	for name, tt := range map[string]struct{ given, sent, fails string }{
		"the host":   {"", "", ""}, // an IP address is not sent
		"a name":     {"web.default", "web.default", ""},
		"wrong name": {"other.default", "other.default", "certificate is valid for web.default, not other.default"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &tls.Config{RootCAs: roots, ServerName: tt.given}
			e := NewEndpoint(t.Context(), l.Addr().String(), WithTLS(cfg), WithConnectTimeout(10*time.Second))
			conn, err := e.Call(t.Context(), Request{})
			assert.Equal(t, tt.sent, <-names)
			if tt.fails != "" {
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.ErrorContains(t, err, tt.fails)
				return
			}
			require.NoError(t, err)
			held := UntilClosed(t.Context(), conn, &seen{})
			io.WriteString(held, "hello")
			require.NoError(t, closeWrite(held))
			got, err := io.ReadAll(held)
			require.NoError(t, err)
			assert.Equal(t, "hello", string(got))
			require.NoError(t, held.Close())
		})
	}
	plain := NewEndpoint(t.Context(), l.Addr().String(), WithTLS(nil))
	conn, err := plain.Call(t.Context(), Request{})
	require.NoError(t, err)
	assert.IsType(t, &net.TCPConn{}, conn)
	conn.Close()
}
