package grpclayer

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The system sends no keep-alive probes while sent data is not acknowledged. Therefore a connection
// also has a limit for the acknowledgment.
func TestControlUserTimeout(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	for every, want := range map[time.Duration]int{0: 40_000, 5 * time.Second: 20_000, -1: 0} {
		c := control(t, ControlPlaneConfig{Addr: p.addr, KeepAlive: every})
		conn, err := c.dial(t.Context(), p.addr)
		require.NoError(t, err)
		raw, err := conn.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			assert.NoError(t, err)
			assert.Equal(t, want, got, every)
		}))
		require.NoError(t, conn.Close())
	}
}
