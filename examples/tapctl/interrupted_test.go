package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// mute is an address that accepts connections and sends nothing. taken is called with the
// first.
func mute(t *testing.T, taken func()) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close() // when the listener is closed
			taken()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

// interruptible runs a command that ctx interrupts.
func interruptible(ctx context.Context, t *testing.T, args ...string) (out, said string, status int) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	var stderr safe
	status = report(&stderr, run(ctx, args, file, &stderr))
	data, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return string(data), stderr.String(), status
}

// An interruption before the first response reports no number of requests.
func TestInterruptedBeforeResponse(t *testing.T) {
	for _, name := range []string{"tap", "top", "stat", "endpoints", "profile", "check"} {
		ctx, cancel := context.WithCancel(t.Context())
		var asked atomic.Int64
		addr := mute(t, func() {
			if name != "check" || asked.Add(1) == 2 { // check first only tests whether it can connect
				cancel()
			}
		})
		_, said, status := interruptible(ctx, t, name, addr)
		require.Equal(t, "tapctl: interrupted\n", said, name)
		require.Equal(t, 1, status, name)
	}
}

// A later interruption reports the time until the interruption.
func TestInterruptedWithoutRequests(t *testing.T) {
	for _, name := range []string{"tap", "top", "stat", "profile"} {
		ctx, cancel := context.WithCancel(t.Context())
		var streams atomic.Int64
		p := newTapped(t, ours, grpc.StreamInterceptor(
			func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
				if streams.Add(1) == 2 { // the first checks which service the process has
					cancel()
				}
				return serve(srv, s)
			}))
		out, said, _ := interruptible(ctx, t, name, "--for", "99h", p.addr)
		require.Empty(t, out, name)
		require.True(t, strings.HasPrefix(said, "tapctl: no "), "%s: %s", name, said)
		require.NotContains(t, said, "99h", name)
	}
}
