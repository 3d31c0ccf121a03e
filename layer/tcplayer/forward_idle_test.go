package tcplayer

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// memory is a connection in memory without CloseWrite.
func memory(t *testing.T) (near, far net.Conn) {
	t.Helper()
	near, far = net.Pipe()
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

func TestForwardWithoutHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := memory(t)
		made, server := memory(t)
		done := make(chan error)
		go func() {
			_, err := Forward(to(made)).Call(t.Context(), accepted)
			done <- err
		}()
		go io.WriteString(client, "hello")
		_, err := io.ReadFull(server, make([]byte, 5))
		require.NoError(t, err)
		client.Close()
		_, err = server.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, <-done)
	})
}

// A TLS server that reads nothing for 5 s cannot receive close_notify, because crypto/tls then
// gives up. The connection ends, because the server would wait for more bytes.
func TestForwardCloseNotifyTimeout(t *testing.T) {
	theirs, roots := identity(t, "web.default")
	synctest.Test(t, func(t *testing.T) {
		client, accepted := memory(t)
		made, raw := memory(t)
		server := tls.Server(raw, theirs)
		go server.Handshake()
		now := theirs.Certificates[0].Leaf.NotBefore.UTC // the clock of synctest is earlier
		secure := tls.Client(newEOFConn(made), &tls.Config{RootCAs: roots, ServerName: "web.default", Time: now})
		require.NoError(t, secure.Handshake())
		done := make(chan error)
		go func() {
			_, err := Forward(to(secure)).Call(t.Context(), accepted)
			done <- err
		}()
		client.Close()
		assert.ErrorIs(t, <-done, os.ErrDeadlineExceeded)
	})
}
