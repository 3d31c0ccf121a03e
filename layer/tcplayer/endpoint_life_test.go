package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestEndpointConnectTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		for _, tt := range []struct{ set, want time.Duration }{{0, time.Second}, {-1, time.Second}, {3 * time.Second, 3 * time.Second}} {
			start := time.Now()
			_, err := NewEndpoint(t.Context(), addr, never, WithConnectTimeout(tt.set)).Call(t.Context(), Request{})
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, tt.want, time.Since(start))
		}
	})
}

// A caller with a shorter timeout than the endpoint does not hide that the
// address is unreachable, and leaves no connection.
func TestEndpointCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		p.open(t)
		slow := WithDialContext(func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(time.Second / 2)
			return p.network.DialContext(ctx, network, addr)
		})
		e := p.endpoint(t.Context(), slow)
		leave := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
			defer cancel()
			_, err := e.Call(ctx, Request{})
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		leave()
		conn, err := p.l.Accept()
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		p.l.Close()
		leave()
		require.NoError(t, layer.Poll[Request, net.Conn](e))
		time.Sleep(time.Second / 2)
		require.ErrorIs(t, layer.Poll[Request, net.Conn](e), layer.ErrNotReady)
	})
}

func TestEndpointEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p place
		p.open(t)
		why := errors.New("gone")
		ctx, end := context.WithCancelCause(t.Context())
		e := p.endpoint(ctx)
		near, err := e.Call(t.Context(), Request{})
		require.NoError(t, err)
		far, err := p.l.Accept()
		require.NoError(t, err)
		p.l.Close()

		down := p.endpoint(ctx)
		_, err = down.Call(t.Context(), Request{})
		require.Error(t, err)
		waits := make(chan error)
		go func() { waits <- down.Ready(t.Context()) }()
		stuck := p.endpoint(ctx, WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		connects := make(chan error)
		go func() {
			_, err := stuck.Call(t.Context(), Request{})
			connects <- err
		}()
		synctest.Wait()
		end(why)
		for _, err := range []error{<-waits, <-connects, e.Ready(t.Context())} {
			require.ErrorIs(t, err, layer.ErrClosed)
			require.ErrorIs(t, err, why)
		}
		_, err = e.Call(t.Context(), Request{})
		require.ErrorIs(t, err, layer.ErrClosed)

		// Its connections stay open.
		go io.WriteString(near, "hello")
		_, err = io.ReadFull(far, make([]byte, 5))
		require.NoError(t, err)
		near.Close()
	})
}
