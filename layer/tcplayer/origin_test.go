package tcplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// asking is a Server that writes the destination of a connection.
func asking() Server {
	return serverFunc(func(_ context.Context, conn net.Conn) (ByteCount, error) {
		dst, ok := OriginalDst(conn)
		_, err := io.WriteString(conn, dst.String()+" "+strconv.FormatBool(ok))
		return ByteCount{}, errors.Join(err, conn.Close())
	})
}

func TestTransparentFixed(t *testing.T) {
	client, accepted := conntest.Pair(t)
	_, err := Transparent(FixedDst(ofServer), asking(), nil).Call(t.Context(), accepted)
	require.NoError(t, err)
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	assert.Equal(t, ofServer.String()+" true", string(got))
}

// Forward connects to the original destination.
func TestTransparentForward(t *testing.T) {
	var asked Request
	client, accepted := conntest.Pair(t)
	made, server := conntest.Pair(t)
	connect := layer.Func[Request, net.Conn](func(_ context.Context, r Request) (net.Conn, error) {
		asked = r
		return made, nil
	})
	go func() {
		io.Copy(server, server)
		server.Close()
	}()
	io.WriteString(client, "GET / HTTP/1.1\r\n\r\n")
	client.CloseWrite()
	traffic, err := Transparent(FixedDst(ofServer), Detect(Protocols{Opaque: Forward(connect)}), nil).Call(t.Context(), accepted)
	require.NoError(t, err)
	assert.Equal(t, traffic.Sent, traffic.Received)
	assert.Equal(t, Request{Client: addrOf(client.LocalAddr()), Server: ofServer}, asked)
}

func TestTransparentRejectsLoops(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	port := addrOf(l.Addr()).Port()
	ours := outside(t)
	for name, tt := range map[string]struct {
		dst  netip.AddrPort
		loop bool
	}{
		"the listener":         {addrOf(l.Addr()), true},
		"by another loopback":  {netip.AddrPortFrom(netip.MustParseAddr("127.9.9.9"), port), true},
		"by IPv6":              {netip.AddrPortFrom(netip.IPv6Loopback(), port), true},
		"by no address":        {netip.AddrPortFrom(netip.IPv4Unspecified(), port), true},
		"by the machine's":     {netip.AddrPortFrom(ours, port), ours.IsValid()},
		"another's, same port": {netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port), false},
		"another port":         {netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port-1), false},
	} {
		t.Run(name, func(t *testing.T) {
			if !tt.dst.IsValid() {
				t.Skip("this machine has no address but loopback")
			}
			for _, direct := range []Server{nil, named("direct")} {
				client, err := net.Dial("tcp", l.Addr().String())
				require.NoError(t, err)
				accepted, err := l.Accept()
				require.NoError(t, err)
				closeWrite(client)
				_, err = Transparent(FixedDst(tt.dst), asking(), direct).Call(t.Context(), accepted)
				got, failed := io.ReadAll(client)
				client.Close()
				switch {
				case !tt.loop:
					require.NoError(t, err)
					assert.Equal(t, tt.dst.String()+" true", string(got))
				case direct == nil:
					require.ErrorIs(t, err, ErrLoop)
					assert.NotErrorIs(t, err, layer.ErrNotReady)
					require.EqualError(t, err, "origin "+tt.dst.String()+": loop: the destination is the listener itself")
					require.ErrorIs(t, failed, syscall.ECONNRESET)
				default:
					require.NoError(t, err)
					assert.Equal(t, "direct: ", string(got))
				}
			}
		})
	}
}

// outside is an address of this machine that is not a loopback address.
func outside(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP); ok && !ip.IsLoopback() {
			return ip.Unmap()
		}
	}
	return netip.Addr{}
}

// A connection without a redirect is addressed to the listener itself, or has
// no known destination. It is never forwarded.
func TestRedirectedWithoutRules(t *testing.T) {
	for network, at := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		t.Run(network, func(t *testing.T) {
			l, err := net.Listen(network, at)
			if err != nil {
				t.Skip(err)
			}
			defer l.Close()
			client, err := net.Dial(network, l.Addr().String())
			require.NoError(t, err)
			defer client.Close()
			accepted, err := l.Accept()
			require.NoError(t, err)
			_, err = Transparent(SOOriginalDst(), named("forwarded"), nil).Call(t.Context(), accepted)
			t.Log(err)
			require.Error(t, err)
			assert.NotErrorIs(t, err, layer.ErrNotReady)
			_, err = client.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
	a, b := net.Pipe()
	defer b.Close()
	_, err := Transparent(SOOriginalDst(), named("forwarded"), nil).Call(t.Context(), a)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestTransparentRejects(t *testing.T) {
	_, accepted := conntest.Pair(t)
	svc := Transparent(FixedDst(ofServer), rejecting(), nil)
	_, err := svc.Call(t.Context(), accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = svc.Call(gone, accepted)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.NoError(t, accepted.SetDeadline(time.Time{}), "it is open")
}

func TestTransparentDescribe(t *testing.T) {
	assert.Equal(t, "origin\n  direct\n    layer.Func\nforward\n  layer.Func\n",
		layer.Describe(Transparent(FixedDst(ofServer), Forward(to(nil)), asking())).String())
	assert.Equal(t, "origin\nlayer.Func\n", layer.Describe(Transparent(FixedDst(ofServer), asking(), nil)).String())
}
