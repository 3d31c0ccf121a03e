package tcplayer_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// Connections to a removed endpoint continue with either completion. New ones
// use other endpoints.
func TestBalanceRemovedEndpoint(t *testing.T) {
	for name, until := range map[string]layer.Completion[net.Conn]{
		"at return": layer.AtReturn[net.Conn], "until closed": tcplayer.UntilClosed,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var network layertest.Network
				one, two := echoOn(t, &network, "10.0.0.1:80"), echoOn(t, &network, "10.0.0.2:80")
				r := static.New(map[string][]resolve.Endpoint{"db": one})
				lives := make(map[string]context.Context)
				connect := balance.Resolve(t.Context(), r, balance.Config{Target: "db"}, func(ctx context.Context, to discover.Target) tcplayer.Service {
					lives[to.Endpoint.Addr.String()] = ctx
					return tcplayer.NewEndpoint(ctx, to.Endpoint.Addr.String(), tcplayer.WithDialContext(network.DialContext))
				}, balance.WithCompletion(until))
				require.NoError(t, connect.Ready(t.Context()))
				old, err := connect.Call(t.Context(), tcplayer.Request{})
				require.NoError(t, err)

				r.Set("db", two...)
				synctest.Wait()
				assert.Equal(t, name == "at return", lives["10.0.0.1:80"].Err() != nil)
				newer, err := connect.Call(t.Context(), tcplayer.Request{})
				require.NoError(t, err)
				assert.Equal(t, "10.0.0.2:80", newer.RemoteAddr().String())
				_, err = io.WriteString(old, "hello")
				require.NoError(t, err)
				_, err = io.ReadFull(old, make([]byte, 5))
				require.NoError(t, err)
				old.Close()
				newer.Close()
				synctest.Wait()
				assert.Error(t, lives["10.0.0.1:80"].Err())
			})
		})
	}
}

// An unreachable endpoint fails no connection, and is used again when it is
// reachable.
func TestBalanceUnreachableEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network layertest.Network
		up := echoOn(t, &network, "10.0.0.1:80")
		down, err := static.Endpoints("10.0.0.2:80", "10.0.0.3:80")
		require.NoError(t, err)
		r := static.New(map[string][]resolve.Endpoint{"db": append(up, down...)})
		connect := balance.Resolve(t.Context(), r, balance.Config{Target: "db"}, func(ctx context.Context, to discover.Target) tcplayer.Service {
			return tcplayer.NewEndpoint(ctx, to.Endpoint.Addr.String(), tcplayer.WithDialContext(network.DialContext))
		}, balance.WithCompletion(layer.AtReturn[net.Conn]))
		synctest.Wait()
		for range 20 {
			conn, err := connect.Call(t.Context(), tcplayer.Request{})
			require.NoError(t, err)
			assert.Equal(t, "10.0.0.1:80", conn.RemoteAddr().String())
			conn.Close()
		}
		r.Set("db", down...)
		synctest.Wait()
		for range 2 { // until both have been tried
			_, err = connect.Call(t.Context(), tcplayer.Request{})
			require.ErrorIs(t, err, layer.ErrNotReady)
		}
		echoOn(t, &network, "10.0.0.3:80")
		require.NoError(t, connect.Ready(t.Context()))
		conn, err := connect.Call(t.Context(), tcplayer.Request{})
		require.NoError(t, err)
		assert.Equal(t, "10.0.0.3:80", conn.RemoteAddr().String())
		conn.Close()
	})
}

// echoOn is an echo server on a network in memory.
func echoOn(t *testing.T, network *layertest.Network, addr string) []resolve.Endpoint {
	t.Helper()
	l, err := network.Listen("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	endpoints, err := static.Endpoints(addr)
	require.NoError(t, err)
	return endpoints
}
