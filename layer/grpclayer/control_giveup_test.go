package grpclayer

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// A call whose own credentials are unavailable costs nobody the connection, and
// does not wait for another.
func TestControlKeepsTheConnectionOfCallsThatFailHere(t *testing.T) {
	p, l := serveCounted(t)
	c := control(t, ControlConfig{Addr: p.addr})
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

// What makes another connection necessary closes the one before.
func TestControlClosesTheConnectionsThatItGivesUp(t *testing.T) {
	p, l := serveCounted(t)
	var closed atomic.Bool
	c := control(t, ControlConfig{Addr: p.addr, DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(
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

// The options of one client are not those of another that begins alike.
func TestDialOptionsLeaveTheCallersAlone(t *testing.T) {
	shared := append(make([]Option, 0, 8), Balance())
	one := append(shared, Calls(NewStack().Limit(0).Layer()))
	_ = DialOptions(name, newSource(), shared...)
	assert.NotNil(t, newSettings(one).calls)
}
