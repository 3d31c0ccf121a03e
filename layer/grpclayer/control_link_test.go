package grpclayer

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2" //nolint:depguard // its Framer: net/http exports none
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// counted is a listener that counts its connections.
type counted struct {
	net.Listener
	made, open atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.made.Add(1)
	l.open.Add(1)
	return &countedConn{Conn: c, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func serveCounted(t *testing.T) (*plane, *counted) {
	l := new(counted)
	p := servePlane(t, "127.0.0.1:0", func(inner net.Listener) net.Listener {
		l.Listener = inner
		return l
	})
	return p, l
}

// If the credentials of a call are unavailable, the connection is not closed, and the call
// does not wait for another one.
func TestControlKeepsConnection(t *testing.T) {
	p, l := serveCounted(t)
	c := control(t, ControlPlaneConfig{Addr: p.addr})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 10 {
		_, err := call(ctx, c)
		require.NoError(t, err)
		_, err = call(ctx, c, grpc.PerRPCCredentials(failingCreds{}))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "no token")
		require.NotErrorIs(t, err, layer.ErrNotReady)
	}
	assert.EqualValues(t, 1, l.made.Load())
}

// A connection is closed when another one replaces it.
func TestControlClosesConnections(t *testing.T) {
	p, l := serveCounted(t)
	var closed atomic.Bool
	c := control(t, ControlPlaneConfig{Addr: p.addr, DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if closed.Swap(false) {
				return &layer.Error{Layer: "inside", Kind: layer.ErrClosed}
			}
			return next(ctx, method, req, reply, cc, opts...)
		})}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 5 {
		_, err := call(ctx, c)
		require.NoError(t, err)
		closed.Store(true)
		_, _ = call(ctx, c)
	}
	_, err := call(ctx, c)
	require.NoError(t, err)
	assert.Greater(t, l.made.Load(), int64(1))
	eventually(t, func() bool { return l.open.Load() == 1 }, "the others are closed")
}

// An address may have a zone.
func TestControlZone(t *testing.T) {
	p := servePlane(t, "127.0.0.1:0", nil)
	dialled := make(chan string, 1)
	addr := "[fe80::1%lo]:" + portOf(t, p.addr)
	c := control(t, ControlPlaneConfig{Addr: addr, DialOptions: []grpc.DialOption{grpc.WithContextDialer(
		func(ctx context.Context, to string) (net.Conn, error) {
			dialled <- to
			return new(net.Dialer).DialContext(ctx, "tcp", p.addr)
		})}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := call(ctx, c)
	require.NoError(t, err)
	assert.Equal(t, addr, <-dialled)
}

// A failed attempt ends at once, also for wait-for-ready calls.
func TestControlWaitForReady(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveConns(t, l, func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) })
	c := control(t, ControlPlaneConfig{
		Addr: l.Addr().String(), ConnectTimeout: time.Hour,
		DialOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(waitForReady)},
	})
	eventually(t, func() bool { return failures(c) > 2 }, "it tries again")
}

// A server that closes its connection at once is not waited for.
func TestControlLostAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var made atomic.Int64
	serveConns(t, l, func(conn net.Conn) {
		made.Add(1)
		f := http2.NewFramer(conn, conn)
		_ = f.WriteSettings()
		_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
		_, _ = io.Copy(io.Discard, conn)
	})
	c := control(t, ControlPlaneConfig{Addr: l.Addr().String(), ConnectTimeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var caller sync.WaitGroup
	caller.Go(func() {
		for ctx.Err() == nil {
			_, _ = call(ctx, c)
		}
	})
	eventually(t, func() bool { return made.Load() > 3 }, "it tries again")
	cancel()
	caller.Wait()
}

// The options of a client do not overwrite those of another in the same slice.
func TestDialOptionsCopy(t *testing.T) {
	shared := append(make([]Option, 0, 8), WithBalance(balance.Config{}))
	one := append(shared, WithCallLayer(NewStack().Limit(0).Layer()))
	_ = DialOptions(name, newSource(), shared...)
	assert.NotNil(t, newSettings(one).calls)
}

// The client sends no PING to measure the bandwidth.
func TestControlSendsNoPings(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var requests, pings atomic.Int64
	serveConns(t, l, func(conn net.Conn) {
		serveWildConn(&wild{Conn: conn, Framer: http2.NewFramer(conn, conn)}, func(p *wild, id uint32) {
			requests.Add(1)
			pings.Store(int64(p.pings))
			p.answer(id)
			_ = p.WriteData(id, false, make([]byte, frameHeader))
			p.head(id, true, "grpc-status", "0")
		})
	})
	c := control(t, ControlPlaneConfig{Addr: l.Addr().String()})
	for range 3 { // gRPC would send a PING before the next request
		_, err := call(t.Context(), c)
		require.NoError(t, err)
	}
	assert.Equal(t, int64(3), requests.Load())
	assert.Zero(t, pings.Load())
}
