package tcplayer

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/layer"
)

// to is a Service that returns conn.
func to(conn net.Conn) Service {
	return layer.Func[Request, net.Conn](func(context.Context, Request) (net.Conn, error) { return conn, nil })
}

// joined is a client and a server with a Forward between them, over TCP.
type joined struct {
	client, server *net.TCPConn
	holds          *seen
	done           chan error
	traffic        ByteCount
}

func join(t testing.TB, ctx context.Context, opts ...ForwardOption) *joined {
	t.Helper()
	client, accepted := conntest.Pair(t)
	made, server := conntest.Pair(t)
	j := &joined{client: client, server: server, holds: &seen{}, done: make(chan error, 1)}
	f := Forward(to(UntilClosed(ctx, made, j.holds)), opts...)
	go func() {
		var err error
		j.traffic, err = f.Call(ctx, accepted)
		j.done <- err
	}()
	t.Cleanup(func() { // so that a test that failed leaves nothing
		client.Close()
		server.Close()
	})
	return j
}

// both runs a test with and without splice.
func both(t *testing.T, test func(t *testing.T, opts ...ForwardOption)) {
	t.Helper()
	t.Run("splice", func(t *testing.T) { test(t) })
	t.Run("in process", func(t *testing.T) { test(t, inProcess()) })
}

// inProcess hides the methods by which the kernel copies from and to the server.
func inProcess() ForwardOption {
	return func(f *forward) { f.svc = hiding{f.svc} }
}

type hiding struct{ Service }

func (h hiding) Call(ctx context.Context, req Request) (net.Conn, error) {
	conn, err := h.Service.Call(ctx, req)
	if err != nil {
		return nil, err
	}
	return userSpace{conn}, nil
}

type userSpace struct{ net.Conn }

func (u userSpace) CloseWrite() error { return closeWrite(u.Conn) }
func (u userSpace) NetConn() net.Conn { return u.Conn }

func TestForwardHalfClose(t *testing.T) {
	both(t, func(t *testing.T, opts ...ForwardOption) {
		for name, first := range map[string]bool{"client first": true, "server first": false} {
			t.Run(name, func(t *testing.T) {
				j := join(t, t.Context(), opts...)
				one, other := j.client, j.server
				if !first {
					one, other = other, one
				}
				io.WriteString(one, "question")
				one.CloseWrite()
				got, err := io.ReadAll(other)
				require.NoError(t, err)
				assert.Equal(t, "question", string(got))

				io.WriteString(other, "the answer") // long after
				other.Close()
				got, err = io.ReadAll(one)
				require.NoError(t, err)
				assert.Equal(t, "the answer", string(got))
				require.NoError(t, <-j.done)
				want := ByteCount{Sent: 8, Received: 10}
				if !first {
					want = ByteCount{Sent: 10, Received: 8}
				}
				assert.Equal(t, want, j.traffic)
				assert.Equal(t, []error{nil}, j.holds.ended())
				_, err = one.Write([]byte("more"))
				assert.Error(t, err)
			})
		}
	})
}

func TestForwardBothCloseAtOnce(t *testing.T) {
	both(t, func(t *testing.T, opts ...ForwardOption) {
		for range 50 {
			j := join(t, t.Context(), opts...)
			go j.client.CloseWrite()
			go j.server.CloseWrite()
			require.NoError(t, <-j.done)
			assert.Equal(t, []error{nil}, j.holds.ended())
		}
	})
}

func TestForwardReset(t *testing.T) {
	both(t, func(t *testing.T, opts ...ForwardOption) {
		for name, server := range map[string]bool{"of the client": false, "of the server": true} {
			t.Run(name, func(t *testing.T) {
				j := join(t, t.Context(), opts...)
				from, hears := j.client, j.server
				if server {
					from, hears = hears, from
				}
				io.WriteString(from, "the first ha")
				_, err := io.ReadFull(hears, make([]byte, 12))
				require.NoError(t, err)
				reset(from)
				_, err = hears.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
				err = <-j.done
				require.ErrorIs(t, err, syscall.ECONNRESET)
				assert.NotErrorIs(t, err, layer.ErrNotReady)
				var e *layer.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, "forward", e.Layer)
				assert.Equal(t, j.server.LocalAddr().String(), e.Endpoint)
				assert.EqualValues(t, 12, j.traffic.Sent+j.traffic.Received)
				assert.Len(t, j.holds.ended(), 1)
			})
		}
	})
}

// The server closes while the client sends more than the buffers hold.
func TestForwardServerCloses(t *testing.T) {
	both(t, func(t *testing.T, opts ...ForwardOption) {
		j := join(t, t.Context(), opts...)
		failed := make(chan error)
		go func() {
			_, err := io.Copy(j.client, forever{})
			failed <- err
		}()
		_, err := io.ReadFull(j.server, make([]byte, 1<<20))
		require.NoError(t, err)
		j.server.Close() // with bytes unread: a reset
		require.Error(t, <-failed)
		require.Error(t, <-j.done)
		assert.GreaterOrEqual(t, j.traffic.Sent, int64(1<<20))
	})
}

func TestForwardSlowReader(t *testing.T) {
	both(t, func(t *testing.T, opts ...ForwardOption) {
		j := join(t, t.Context(), opts...)
		data := make([]byte, 16<<20)
		seed := rand.NewChaCha8([32]byte{1})
		seed.Read(data)
		go func() {
			j.server.Write(data)
			j.server.Close()
		}()
		sum := sha256.New()
		buf := make([]byte, 64<<10)
		for i := 0; ; i++ {
			n, err := j.client.Read(buf)
			sum.Write(buf[:n])
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			if i < 10 {
				<-time.After(time.Millisecond)
			}
		}
		j.client.Close()
		require.NoError(t, <-j.done)
		assert.Equal(t, ByteCount{Received: 16 << 20}, j.traffic)
		want := sha256.Sum256(data)
		assert.Equal(t, want[:], sum.Sum(nil))
	})
}

func TestForwardContext(t *testing.T) {
	both(t, func(t *testing.T, opts ...ForwardOption) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		j := join(t, ctx, opts...)
		io.WriteString(j.client, "hello")
		io.ReadFull(j.server, make([]byte, 5))
		cancel(why)
		err := <-j.done
		require.ErrorIs(t, err, why)
		assert.Equal(t, int64(5), j.traffic.Sent)
		for _, conn := range []net.Conn{j.client, j.server} {
			_, err := conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
	})
}

func TestForwardAdmission(t *testing.T) {
	refusal := &layer.Error{Layer: "balance", Kind: layer.ErrNotReady}
	broken := errors.New("broken")
	var asked Request
	answer := error(refusal)
	svc := layer.Func[Request, net.Conn](func(_ context.Context, r Request) (net.Conn, error) {
		asked = r
		return nil, answer
	})
	f := Forward(svc)
	require.NoError(t, f.Ready(t.Context()))

	client, accepted := conntest.Pair(t)
	_, err := f.Call(t.Context(), accepted)
	require.Same(t, refusal, err)
	assert.Equal(t, Request{Client: addrOf(client.LocalAddr()), Server: addrOf(accepted.LocalAddr())}, asked)
	io.WriteString(accepted, "still open")
	_, err = io.ReadFull(client, make([]byte, 10))
	require.NoError(t, err)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Call(gone, accepted)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, context.Canceled)

	answer = broken
	_, err = f.Call(t.Context(), accepted)
	require.Same(t, broken, err)
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET, "it was admitted, and is closed")
}

// A connection other than TCP loses the bytes of the ClientHello that were read before a rejection.
func TestForwardRejectsAfterHello(t *testing.T) {
	away := layer.Func[Request, net.Conn](func(context.Context, Request) (net.Conn, error) { return nil, layer.ErrNotReady })
	client, accepted := net.Pipe()
	defer client.Close()
	go io.WriteString(client, "not TLS")
	_, err := Forward(away, WithServerName(time.Minute)).Call(t.Context(), accepted)
	require.NotErrorIs(t, err, layer.ErrNotReady)
	require.EqualError(t, err, "forward: rejected after the first bytes were read: not ready")
	_, err = client.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func TestRequestOf(t *testing.T) {
	six := &net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 80}
	assert.Equal(t, netip.MustParseAddrPort("10.0.0.1:80"), addrPort(six))
	assert.Equal(t, netip.AddrPort{}, addrPort(&net.UnixAddr{Name: "/sock"}))
}

func TestForwardDescribe(t *testing.T) {
	e := NewEndpoint(t.Context(), addr)
	assert.Equal(t, "forward\n  endpoint   addr="+addr+" connecting=0 made=0 link=up\n", layer.Describe(Forward(e)).String())
}
