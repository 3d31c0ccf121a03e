package tcplayer

import (
	"io"
	"net"
	"testing"
	"testing/synctest"

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
