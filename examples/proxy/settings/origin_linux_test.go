package settings_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

// A connection whose original destination is unknown may have any destination.
func TestRedirectedWithoutConntrack(t *testing.T) {
	find := settings.Origin{Kind: settings.Redirected}.Find()
	for _, multipath := range []bool{false, true} {
		var listen net.ListenConfig
		var dial net.Dialer
		listen.SetMultipathTCP(multipath)
		dial.SetMultipathTCP(multipath)
		l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		client, err := dial.DialContext(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		defer client.Close()
		accepted, err := l.Accept()
		require.NoError(t, err)
		defer accepted.Close()
		got, err := find(t.Context(), accepted)
		is, err2 := accepted.(*net.TCPConn).MultipathTCP()
		require.NoError(t, err2)
		switch {
		case is:
			require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		case multipath:
			t.Log("NOT RUN: this kernel has no MPTCP")
		default:
			require.NoError(t, err)
			require.Equal(t, l.Addr(), got.LocalAddr(), "the connection is not redirected")
		}
	}
}
