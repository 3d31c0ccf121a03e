package tcplayer

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/conntest"
)

var (
	ofClient = netip.MustParseAddrPort("192.0.2.1:5000")
	ofServer = netip.MustParseAddrPort("[2001:db8::1]:443")
)

func TestOverrideAddrs(t *testing.T) {
	near, far := conntest.Pair(t)
	_, known := OriginalDst(near)
	assert.False(t, known)
	assert.Equal(t, near.RemoteAddr(), OverrideAddrs(near, netip.AddrPort{}, ofServer).RemoteAddr())
	assert.Equal(t, near.LocalAddr(), OverrideAddrs(near, ofClient, netip.AddrPort{}).LocalAddr())

	conn := OverrideAddrs(near, ofClient, ofServer)
	secure := tls.Server(conn, nil)
	for _, c := range []net.Conn{conn, secure, UntilClosed(t.Context(), secure, &seen{})} {
		assert.Equal(t, Request{Client: ofClient, Server: ofServer}, requestOf(c))
		dst, known := OriginalDst(c)
		assert.True(t, known)
		assert.Equal(t, ofServer, dst)
		assert.Same(t, near, innermost(c))
	}
	dst, _ := OriginalDst(OverrideAddrs(conn, netip.AddrPort{}, ofClient))
	assert.Equal(t, ofClient, dst, "the last one to find out is right")

	reset(secure)
	_, err := far.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// Read and WriteTo return first the bytes read before, and then the following
// ones.
func TestBufferedConnUnread(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := net.Pipe()
		defer a.Close()
		text := rapid.StringN(1, 5000, 5000).Draw(rt, "text")
		go func() {
			io.WriteString(b, text)
			b.Close()
		}()
		f := newBufferedConn(a)
		want := rapid.IntRange(0, 3000).Draw(rt, "enough")
		first, err := f.fill(peekSpec{max: 2000, enough: func(seen []byte) bool { return len(seen) >= want }})
		if len(first) < min(want, 2000, len(text)) || !strings.HasPrefix(text, string(first)) {
			rt.Fatalf("saw %d bytes, %v", len(first), err)
		}
		assert.Equal(rt, len(first) < min(2000, want), err != nil, "%v", err)
		var got strings.Builder
		for range rapid.IntRange(0, 5).Draw(rt, "reads") {
			p := make([]byte, rapid.IntRange(0, 1500).Draw(rt, "length"))
			n, _ := f.Read(p)
			got.Write(p[:n])
		}
		_, err = io.Copy(&got, f)
		require.NoError(rt, err)
		if got.String() != text {
			rt.Fatalf("got %d bytes of %d", got.Len(), len(text))
		}
	})
}

func TestBufferedConnUnused(t *testing.T) {
	near, _ := conntest.Pair(t)
	for _, w := range []io.Writer{shortWriter{}, closedWriter{}} {
		f := newBufferedConn(near)
		f.store([]byte("hello"))
		n, err := io.Copy(w, f)
		require.Error(t, err)
		assert.LessOrEqual(t, n, int64(2))
	}
}

type shortWriter struct{}

func (shortWriter) Write([]byte) (int, error) { return 2, nil }

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, net.ErrClosed }

// Splice needs the *net.TCPConn of both sides, after the bytes read before have
// been written.
func TestBufferedConnSplice(t *testing.T) {
	near, far := conntest.Pair(t)
	log := &fast{TCPConn: near}
	f := newBufferedConn(log)
	other, source := conntest.Pair(t)
	io.WriteString(source, "hello")
	source.Close()
	n, err := io.Copy(f, other)
	require.NoError(t, err)
	assert.EqualValues(t, 5, n)
	assert.Equal(t, []string{"ReadFrom net.tcpConnWithoutWriteTo"}, log.did)
	require.NoError(t, f.CloseWrite())
	got, err := io.ReadAll(far)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))

	log.did = nil
	io.WriteString(far, "question")
	far.Close()
	_, err = f.fill(peekSpec{max: 4, enough: func([]byte) bool { return true }})
	require.NoError(t, err)
	to, end := conntest.Pair(t)
	n, err = io.Copy(to, f)
	require.NoError(t, err)
	assert.EqualValues(t, 8, n)
	assert.Equal(t, []string{"WriteTo *net.TCPConn"}, log.did)
	to.Close()
	got, err = io.ReadAll(end)
	require.NoError(t, err)
	assert.Equal(t, "question", string(got))
}
