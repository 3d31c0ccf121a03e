package layertest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// connect returns both ends of a new connection, first the dialed one.
func connect(t *testing.T, n *Network) (near, far net.Conn) {
	t.Helper()
	l, err := n.Listen("tcp", "10.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	near, err = n.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// TestConn runs the tests of golang.org/x/net on both ends.
func TestConn(t *testing.T) {
	pipe := func(t *testing.T, swap bool) nettest.MakePipe {
		return func() (net.Conn, net.Conn, func(), error) {
			a, b := connect(t, &Network{})
			if swap {
				a, b = b, a
			}
			return a, b, func() { a.Close(); b.Close() }, nil
		}
	}
	t.Run("dialed", func(t *testing.T) { nettest.TestConn(t, pipe(t, false)) })
	t.Run("accepted", func(t *testing.T) { nettest.TestConn(t, pipe(t, true)) })
}

func TestNetworkAddresses(t *testing.T) {
	var n Network
	l, err := n.Listen("tcp", "10.0.0.1:80")
	require.NoError(t, err)
	defer l.Close()
	any6, err := n.Listen("tcp", "[::]:81")
	require.NoError(t, err)
	defer any6.Close()

	for _, tt := range []struct{ dial, local, remote string }{
		{"10.0.0.1:80", "127.0.0.1", "10.0.0.1:80"},
		{"10.0.0.7:81", "127.0.0.1", "10.0.0.7:81"},
		{"localhost:81", "127.0.0.1", "127.0.0.1:81"},
		{"[fd00::7]:81", "::1", "[fd00::7]:81"},
	} {
		c, err := n.DialContext(t.Context(), "tcp", tt.dial)
		require.NoError(t, err, tt.dial)
		from := l
		if !strings.HasSuffix(tt.dial, ":80") {
			from = any6
		}
		s, err := from.Accept()
		require.NoError(t, err)
		assert.Equal(t, tt.remote, c.RemoteAddr().String())
		assert.Equal(t, c.LocalAddr(), s.RemoteAddr())
		assert.Equal(t, c.RemoteAddr(), s.LocalAddr())
		peer, err := netip.ParseAddrPort(s.RemoteAddr().String())
		require.NoError(t, err)
		assert.Equal(t, tt.local, peer.Addr().String())
		assert.GreaterOrEqual(t, peer.Port(), uint16(firstPort))
		c.Close()
		s.Close()
	}
	_, err = n.Listen("tcp", "10.0.0.1:80")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

func TestNetworkErrors(t *testing.T) {
	var n Network
	for address, want := range map[string]string{
		"10.0.0.1:80":     "dial tcp 10.0.0.1:80: connect: connection refused",
		"10.0.0.1":        "dial tcp: address 10.0.0.1: missing port in address",
		"10.0.0.1:http":   "dial tcp: address 10.0.0.1:http: port is not a number from 0 to 65535",
		"10.0.0.1:70000":  "dial tcp: address 10.0.0.1:70000: port is not a number from 0 to 65535",
		"web.default:80":  "dial tcp: lookup web.default: no such host",
		"10.0.0.300:8080": "dial tcp: lookup 10.0.0.300: no such host",
	} {
		_, err := n.DialContext(t.Context(), "tcp", address)
		assert.EqualError(t, err, want)
		var op *net.OpError
		assert.ErrorAs(t, err, &op)
	}
	_, err := n.DialContext(t.Context(), "udp", "10.0.0.1:80")
	require.ErrorContains(t, err, "unknown network udp")
	_, err = n.Listen("unix", "/tmp/x")
	require.ErrorContains(t, err, "unknown network unix")

	_, err = n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCancel)
	_, err = n.DialContext(ctx, "tcp", "10.0.0.1:80")
	require.ErrorIs(t, err, errCancel)
}

func TestListenerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		l, err := n.Listen("tcp", "10.0.0.1:80")
		require.NoError(t, err)
		pending, err := n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
		require.NoError(t, err)
		accepted, err := l.Accept()
		require.NoError(t, err)
		waiting, err := n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
		require.NoError(t, err)

		require.NoError(t, l.Close())
		require.ErrorIs(t, l.Close(), net.ErrClosed)
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)

		// Accepted connections continue, and others are reset.
		_, err = accepted.Write([]byte("x"))
		require.NoError(t, err)
		_, err = pending.Read(make([]byte, 1))
		require.NoError(t, err)
		_, err = waiting.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)

		again, err := n.Listen("tcp", "10.0.0.1:80")
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}

func TestListenerAcceptEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		l, err := n.Listen("tcp", ":80")
		require.NoError(t, err)
		failed := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-failed, net.ErrClosed)
	})
}

// DialContext waits only while the backlog is full.
func TestDialWaitsForBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Network
		l, err := n.Listen("tcp", ":80")
		require.NoError(t, err)
		for range backlog {
			_, err := n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCancel)
		defer cancel()
		began := time.Now()
		_, err = n.DialContext(ctx, "tcp", "10.0.0.1:80")
		require.ErrorIs(t, err, errCancel)
		require.Equal(t, time.Second, time.Since(began))

		refused := make(chan error, 1)
		go func() {
			_, err := n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
			refused <- err
		}()
		synctest.Wait()
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-refused, syscall.ECONNREFUSED)
	})
}

// A dial at the time of Close leaves no open connection.
func TestDialDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 500 {
			var n Network
			l, err := n.Listen("tcp", ":80")
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() {
				c, err := n.DialContext(t.Context(), "tcp", "10.0.0.1:80")
				if err == nil {
					_, err = c.Read(make([]byte, 1))
				}
				ended <- err
			}()
			go l.Close()
			synctest.Wait()
			select {
			case err := <-ended:
				if !errors.Is(err, syscall.ECONNREFUSED) {
					require.ErrorIs(t, err, syscall.ECONNRESET)
				}
			default:
				require.Fail(t, "a connection to a closed listener is open")
			}
		}
	})
}

func TestConnHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, &Network{})
		_, err := near.Write([]byte("question"))
		require.NoError(t, err)
		require.NoError(t, near.(interface{ CloseWrite() error }).CloseWrite())
		_, err = near.Write([]byte("more"))
		require.ErrorIs(t, err, syscall.EPIPE)

		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, "question", string(got))
		_, err = far.Write([]byte("answer"))
		require.NoError(t, err)
		require.NoError(t, far.Close())
		got, err = io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "answer", string(got))
	})
}

func TestConnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, &Network{})
		stuck := make(chan error, 2)
		go func() {
			_, err := near.Read(make([]byte, 1))
			stuck <- err
		}()
		go func() {
			_, err := near.Write(make([]byte, 2*window))
			stuck <- err
		}()
		synctest.Wait()
		require.NoError(t, near.Close())
		require.ErrorIs(t, <-stuck, net.ErrClosed)
		require.ErrorIs(t, <-stuck, net.ErrClosed)
		require.ErrorIs(t, near.Close(), net.ErrClosed)
		require.ErrorIs(t, near.SetDeadline(time.Now()), net.ErrClosed)
		require.ErrorIs(t, near.(*conn).CloseWrite(), net.ErrClosed)

		// The other end reads the written bytes, and cannot write.
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Len(t, got, window)
		_, err = far.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

// A writer waits at the window, and concurrent writes are not mixed.
func TestConnWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, &Network{})
		for _, letter := range []string{"a", "b", "c"} {
			go near.Write([]byte(strings.Repeat(letter, 2*window)))
		}
		synctest.Wait()
		require.Equal(t, window, near.(*conn).out.data.Len())
		got := make([]byte, 6*window)
		_, err := io.ReadFull(far, got)
		require.NoError(t, err)
		runs := 1
		for i := range got[1:] {
			if got[i] != got[i+1] {
				runs++
			}
		}
		require.Equal(t, 3, runs)
	})
}

func TestConnDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, &Network{})
		began := time.Now()
		require.NoError(t, near.SetReadDeadline(began.Add(time.Hour)))
		_, err := near.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.Equal(t, time.Hour, time.Since(began))

		require.NoError(t, near.SetWriteDeadline(began.Add(3*time.Hour)))
		n, err := near.Write(make([]byte, window+1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, window, n)
		require.Equal(t, 3*time.Hour, time.Since(began))

		// Without a deadline it waits.
		require.NoError(t, near.SetDeadline(time.Time{}))
		go func() {
			time.Sleep(24 * time.Hour)
			far.Write([]byte("at last"))
		}()
		_, err = near.Read(make([]byte, 7))
		require.NoError(t, err)
		require.Equal(t, 27*time.Hour, time.Since(began))
	})
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"10.0.0.1:80", ":0", "[::1]:65535", "localhost:1", "[fe80::1%eth0]:80", "a:b:c", "", "10.0.0.1:-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		ap, err := parseAddress("tcp", address)
		if err != nil {
			return
		}
		again, err := parseAddress("tcp", ap.String())
		require.NoError(t, err)
		require.Equal(t, ap, again)
	})
}
