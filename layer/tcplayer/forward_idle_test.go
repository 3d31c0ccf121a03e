package tcplayer

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestForwardIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, accepted := memory(t)
		made, server := memory(t)
		start := time.Now()
		done := make(chan error)
		go func() {
			_, err := Forward(to(made), WithIdleTimeout(10*time.Second)).Call(t.Context(), accepted)
			done <- err
		}()
		for i := range 5 { // either direction counts
			time.Sleep(9 * time.Second)
			from, at := client, server
			if i%2 == 1 {
				from, at = at, from
			}
			go from.Write([]byte("x"))
			_, err := io.ReadFull(at, make([]byte, 1))
			require.NoError(t, err)
		}
		err := <-done
		require.ErrorIs(t, err, layer.ErrIdleTimeout)
		require.ErrorContains(t, err, "no data for 10s")
		assert.Equal(t, 55*time.Second, time.Since(start))
		_, err = client.Read(make([]byte, 1))
		require.Error(t, err)
	})
}

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
