package tcplayer

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gotower/gotower/internal/conntest"
)

// sockOption returns the value of an option in the kernel.
func sockOption(t *testing.T, conn net.Conn, level, name int) int {
	t.Helper()
	raw, err := innermost(conn).(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var value int
	require.NoError(t, raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, name) }))
	require.NoError(t, err)
	return value
}

func TestSocketOptions(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	kept := WithKeepAlive(net.KeepAliveConfig{Enable: true, Idle: 7 * time.Second, Interval: 3 * time.Second, Count: 2})
	accepted := make(chan net.Conn, 1)
	release := make(chan struct{})
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Serve(ctx, l, serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
			accepted <- conn
			<-release
			return ByteCount{}, nil
		}), kept, WithUserTimeout(30*time.Second))
	}()
	made, err := NewEndpoint(t.Context(), l.Addr().String(), kept, WithUserTimeout(time.Microsecond)).Call(t.Context(), Request{})
	require.NoError(t, err)
	for conn, timeout := range map[net.Conn]int{<-accepted: 30_000, made: 1} {
		assert.Equal(t, timeout, sockOption(t, conn, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
		assert.Equal(t, 7, sockOption(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
		assert.Equal(t, 3, sockOption(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL))
		assert.Equal(t, 2, sockOption(t, conn, unix.IPPROTO_TCP, unix.TCP_KEEPCNT))
		assert.Equal(t, 1, sockOption(t, conn, unix.SOL_SOCKET, unix.SO_KEEPALIVE))
		assert.Equal(t, 1, sockOption(t, conn, unix.IPPROTO_TCP, unix.TCP_NODELAY))
	}
	made.Close()
	close(release)
	plain, _ := conntest.Pair(t)
	none := sockets{}
	require.NoError(t, none.set(plain))
	WithUserTimeout(-1).apply(&endpointOptions{sockets: none})
	require.NoError(t, none.set(plain))
	assert.Zero(t, sockOption(t, plain, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
	end()
	require.NoError(t, <-done)
}

func TestSocketOptionsFail(t *testing.T) {
	closed, _ := conntest.Pair(t)
	closed.Close()
	for _, opt := range []SocketOption{WithKeepAlive(net.KeepAliveConfig{Enable: true}), WithUserTimeout(time.Second)} {
		dial := func(context.Context, string, string) (net.Conn, error) { return closed, nil }
		_, err := NewEndpoint(t.Context(), addr, opt, WithDialContext(dial)).Call(t.Context(), Request{})
		require.ErrorIs(t, err, net.ErrClosed)

		s := newServer(holding(), []ServeOption{opt})
		s.serve(t.Context(), closed) // returns
		a, b := net.Pipe()
		b.Close()
		require.NoError(t, s.sockets.set(a), "not a TCP connection")
	}
}
