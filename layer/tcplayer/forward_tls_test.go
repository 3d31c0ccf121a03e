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

	"github.com/gotower/gotower/internal/conntest"
)

// A server may end before the TLS handshake of the client. The client receives
// the end, and may continue to send.
func TestForwardEndBeforeHandshake(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)

	raw, accepted := conntest.Pair(t)
	made, server := conntest.Pair(t)
	require.NoError(t, server.CloseWrite())
	front := tls.Server(accepted, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	done := make(chan error, 1)
	passed := &ends{Conn: made, end: make(chan struct{})}
	go func() {
		_, err := Forward(to(passed)).Call(t.Context(), front)
		done <- err
	}()
	<-passed.end // the EOF of the server was read, before any byte of the client

	client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, client.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = client.Write([]byte("question"))
	require.NoError(t, err)
	rest, err := io.ReadAll(client)
	require.NoError(t, err, "the client hears of the server's end")
	assert.Empty(t, rest)
	require.NoError(t, client.CloseWrite())
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	assert.Equal(t, "question", string(got))
	require.NoError(t, <-done)
}

// ends is a connection that reports when the end of its peer was read.
type ends struct {
	net.Conn
	end chan struct{}
}

func (c *ends) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		close(c.end)
	}
	return n, err
}

func (c *ends) CloseWrite() error { return closeWrite(c.Conn) }
