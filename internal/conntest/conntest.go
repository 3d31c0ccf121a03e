// Package conntest makes TCP connections over the loopback for tests.
package conntest

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Pair returns both ends of a connection. They are closed when the test ends.
func Pair(t testing.TB) (dialed, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer l.Close()
	dialed, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)) //nolint:errcheck,forcetypeassert // the address of a TCP listener
	require.NoError(t, err)
	t.Cleanup(func() { _ = dialed.Close() })
	accepted, err = l.AcceptTCP()
	require.NoError(t, err)
	t.Cleanup(func() { _ = accepted.Close() })
	return dialed, accepted
}

// Serve calls handle for each connection to addr, on a goroutine, and then closes the connection. n
// is the number of earlier connections. All connections are closed when the test ends.
func Serve(t testing.TB, handle func(n int, conn net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				handle(n, conn)
			})
		}
	})
	t.Cleanup(func() {
		// The listener closes first, so that no further connection is added.
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}
