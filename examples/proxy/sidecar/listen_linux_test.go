package sidecar

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const enough = 30 * time.Second

func mustListen(t *testing.T, addr string, reuse bool) net.Listener {
	t.Helper()
	l, err := listen(netip.MustParseAddrPort(addr), 0, reuse)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func dialTo(t *testing.T, l net.Listener) {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
}

func acceptFrom(t *testing.T, l net.Listener) {
	t.Helper()
	require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(enough)))
	conn, err := l.Accept()
	require.NoError(t, err)
	conn.Close()
}

// A successor immediately gets all new connections, and so does the next one.
func TestNewestListener(t *testing.T) {
	first := mustListen(t, anyPort, true)
	dialTo(t, first)
	acceptFrom(t, first)
	old := first
	for range 3 {
		next := mustListen(t, old.Addr().String(), true)
		for range 50 {
			dialTo(t, next)
			acceptFrom(t, next)
			require.False(t, waiting(old))
		}
		require.NoError(t, old.Close())
		dialTo(t, next)
		acceptFrom(t, next)
		old = next
	}
}

// The kernel does not report an MPTCP connection's original destination.
func TestListenDisablesMPTCP(t *testing.T) {
	fallback := &Proxy{config: Config{Fallback: true}}
	taken, err := fallback.bind(netip.MustParseAddrPort("203.0.113.1:1"), 0)
	require.NoError(t, err)
	defer taken.Close()
	for name, l := range map[string]net.Listener{
		"alone": mustListen(t, anyPort, false), "beside": mustListen(t, anyPort, true), "where it may": taken,
	} {
		t.Run(name, func(t *testing.T) {
			var d net.Dialer
			d.SetMultipathTCP(true)
			client, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			require.NoError(t, err)
			defer client.Close()
			conn, err := l.Accept()
			require.NoError(t, err)
			defer conn.Close()
			multipath, err := conn.(*net.TCPConn).MultipathTCP()
			require.NoError(t, err)
			require.False(t, multipath)
		})
	}
}

func TestReusePortRequiresBothListeners(t *testing.T) {
	l := mustListen(t, anyPort, false)
	_, err := listen(netip.MustParseAddrPort(l.Addr().String()), 0, true)
	require.ErrorContains(t, err, "in use")
}

// Connections that wait to be accepted at shutdown are accepted.
func TestUntilAccepted(t *testing.T) {
	l := mustListen(t, anyPort, false)
	for range 3 {
		dialTo(t, l)
	}
	require.Eventually(t, func() bool { return waiting(l) }, enough, time.Millisecond)
	ctx, end := context.WithCancel(t.Context())
	accepting, cancel := untilAccepted(ctx, l)
	defer cancel()
	start := time.Now()
	end()
	for range 3 {
		if err := accepting.Err(); time.Since(start) < maxAcceptDelay {
			require.NoError(t, err)
		}
		acceptFrom(t, l)
	}
	<-accepting.Done()
	require.False(t, waiting(l))
}
