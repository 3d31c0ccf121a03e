package linkerd

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/resolve"
)

// linkerd's controller sends nothing for a Service without endpoints. Its stream stays
// open for the first one.
func TestSilenceFirstEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		var streams atomic.Int64
		m.start(t, func(_ *destination.GetDestination, to getStream) error {
			streams.Add(1)
			select {
			case <-time.After(4 * time.Second): // longer than Limits.Initial
			case <-to.Context().Done():
				return to.Context().Err()
			}
			return repeats(addMessage(tcp(addr1)), 0)(nil, to)
		})
		var log bytes.Buffer
		start := time.Now()
		for u, err := range New(m.connect(t), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))).Resolve(t.Context(), "web:80") {
			require.NoError(t, err)
			require.Equal(t, resolve.Replace, u.Kind)
			break
		}
		assert.Equal(t, 4*time.Second, time.Since(start).Round(time.Second))
		assert.EqualValues(t, 1, streams.Load())
		assert.Empty(t, log.String())
	})
}

// A silent stream of a controller that answers health checks means an empty set after 10
// s. It stays open for the first endpoint.
func TestSilenceIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m inMemory
		var log bytes.Buffer
		var streams atomic.Int64
		m.start(t, func(_ *destination.GetDestination, to getStream) error {
			switch streams.Add(1) {
			case 1:
				if err := to.Send(addMessage(tcp(addr1))); err != nil {
					return err
				}
				time.Sleep(time.Minute)
				return status.Error(codes.Unavailable, "a new version")
			default:
				time.Sleep(2 * time.Minute)
				return repeats(addMessage(tcp(addr2)), 0)(nil, to)
			}
		})
		r := New(m.connect(t), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		var got []resolve.Kind
		var at []time.Duration
		start := time.Now()
		for u, err := range r.Resolve(t.Context(), "web:80") {
			if err == nil {
				got, at = append(got, u.Kind), append(at, time.Since(start).Round(time.Second))
			}
			if len(got) == 3 {
				break
			}
		}
		assert.Equal(t, []resolve.Kind{resolve.Replace, resolve.Empty, resolve.Add}, got)
		assert.Equal(t, []time.Duration{0, 70 * time.Second, 3 * time.Minute}, at)
		assert.EqualValues(t, 2, streams.Load())
		assert.NotContains(t, log.String(), "not answer")
	})
}

// The set stays if the controller is frozen, with and without time limits.
func TestSilenceFrozenController(t *testing.T) {
	for name, limits := range map[string]Limits{"limits": {}, "no limits": {Initial: -1, Idle: -1, Lifetime: -1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m inMemory
				m.frozen = true
				var streams atomic.Int64
				m.start(t, func(_ *destination.GetDestination, to getStream) error {
					if streams.Add(1) == 1 {
						_ = to.Send(addMessage(tcp(addr1)))
						return status.Error(codes.Unavailable, "a new version")
					}
					return repeats(nil, 0)(nil, to)
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var known resolve.Set
				for u, err := range New(m.connect(t), WithStreamLimits(limits)).Resolve(ctx, "web:80") {
					if err == nil {
						known.Apply(u)
					}
				}
				assert.Greater(t, streams.Load(), int64(1))
				assert.Equal(t, 1, known.Len())
			})
		})
	}
}

// An answer of another server keeps the stream and the set.
func TestSilenceOtherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var frozen, healthy inMemory
		frozen.frozen, frozen.name, healthy.name = true, "frozen", "healthy"
		frozen.start(t, repeats(nil, 0))
		healthy.start(t, repeats(nil, 0))
		conn := &twoServers{frozen.connect(t), healthy.connect(t)}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		for u, err := range New(conn).Resolve(ctx, "web:80") {
			if ctx.Err() == nil {
				assert.Failf(t, "unexpected", "%v %v", u, err)
			}
		}
	})
}

func TestNewPanicsWithoutConnection(t *testing.T) {
	assert.PanicsWithValue(t, "linkerd: New: the connection is nil; want a gRPC connection to a destination controller",
		func() { New(nil) })
}

func TestWithBackoffPanics(t *testing.T) {
	assert.Panics(t, func() { WithBackoff(resolve.Backoff{Min: 2 * time.Minute, Max: time.Minute}) })
	assert.Panics(t, func() { WithBackoff(resolve.Backoff{Max: -1}) })
	assert.NotPanics(t, func() { WithBackoff(resolve.Backoff{Min: time.Second}) })
}

// badStream panics when a message is received.
type badStream struct{ grpc.ClientStream }

func (badStream) RecvMsg(any) error { panic("receive boom") }

// A panic of the connection, on a goroutine of the resolver, is an error of the
// stream.
func TestConnectionPanics(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serve(t, l, repeats(nil, 0))
	checked := make(chan struct{}, 1)
	var receives atomic.Bool
	conn := client(t, "passthrough:///"+l.Addr().String(),
		grpc.WithUnaryInterceptor(func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
			select {
			case checked <- struct{}{}:
			default:
			}
			panic("check boom")
		}),
		grpc.WithStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			if err != nil || receives.Load() {
				return s, err
			}
			return badStream{s}, nil
		}))
	for _, err := range New(conn).Resolve(t.Context(), "web:80") {
		require.ErrorContains(t, err, "the connection: panic at silence_test.go")
		require.ErrorContains(t, err, "receive boom")
		break
	}
	receives.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		<-checked
		cancel()
	}()
	for range New(conn).Resolve(ctx, "web:80") {
		continue
	}
	require.ErrorIs(t, ctx.Err(), context.Canceled, "a health check was sent")
}
