package grpclayer

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

// A client's call in a handler has the context of the handler, but not its peer.
func TestAccessorSourceOfClient(t *testing.T) {
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80}})
	assert.Equal(t, "10.0.0.1:80", GRPC{}.Source(&Call{ctx: ctx, incoming: true}).String())
	assert.False(t, GRPC{}.Source(&Call{ctx: ctx}).IsValid())
	assert.False(t, GRPC{}.Source(&Call{incoming: true}).IsValid())
}

func TestPushbackLimit(t *testing.T) {
	for after, want := range map[time.Duration]metadata.MD{
		1500 * time.Microsecond: metadata.Pairs(pushbackKey, "2"),
		48 * time.Hour:          metadata.Pairs(pushbackKey, "86400000"),
	} {
		assert.Equal(t, want, pushback(&layer.Error{Kind: layer.ErrNotReady, RetryAfter: after}))
	}
	assert.Nil(t, pushback(layer.ErrNotReady))
}

func TestUnsendableErrors(t *testing.T) {
	for text, want := range map[string]bool{
		"grpc: error while marshaling: no message":                   true,
		"grpc: error while compressing: disk full":                   true,
		"grpc: message too large (9 bytes)":                          true,
		"trying to send message larger than max (9 vs. 8)":           true,
		"grpc: error unmarshalling request":                          false,
		"upstream said: grpc: error while marshaling: not this call": false,
	} {
		assert.Equal(t, want, unsendable(status.Error(codes.Internal, text)), text)
	}
}

// The time limit of a layer is DEADLINE_EXCEEDED, also if the caller has canceled and
// the error has the caller's cause.
func TestToStatusOfTimeoutAfterCancel(t *testing.T) {
	cause := errors.New("left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for kind, want := range map[error]codes.Code{
		layer.ErrTimeout:  codes.DeadlineExceeded,
		layer.ErrNotReady: codes.Canceled,
	} {
		err := toStatus(ctx, &layer.Error{Layer: "x", Kind: kind, Err: cause})
		assert.Equal(t, want, status.Code(err), "%v", err)
	}
}

// A stream that cannot be opened releases its context.
func TestClientStreamFailedOpen(t *testing.T) {
	var opening context.Context
	failed := errors.New("failed")
	_, err := NewClient(nil).Stream(t.Context(), new(grpc.StreamDesc), nil, "/a.B/C",
		func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			opening = ctx
			require.NoError(t, ctx.Err())
			return nil, failed
		})
	require.ErrorIs(t, err, failed)
	require.Error(t, opening.Err())
}

// A call that waits for an endpoint picks again when an endpoint is ready, and not at
// intervals.
func TestWaitingCallPicksRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		release := make(chan struct{})
		serveFront(t, &n, a1, &front{unary: func(context.Context) error { <-release; return nil }})
		var picks atomic.Int64
		count := func(next layer.Service[balancer.PickInfo, *Pick]) layer.Service[balancer.PickInfo, *Pick] {
			return countedPicks{next, &picks}
		}
		cc := dial(t, &n, newSource(replace(a1)),
			WithEndpointLayer(NewEndpointStack().With("count", count).Limit(1).Layer()))
		results := make(chan error)
		for range 2 {
			go func() {
				_, err := call(t.Context(), cc, waitForReady)
				results <- err
			}()
			synctest.Wait()
		}
		picks.Store(0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Less(t, picks.Load(), int64(100))
		close(release)
		require.NoError(t, <-results)
		require.NoError(t, <-results)
	})
}

// countedPicks counts the calls of Ready and Call.
type countedPicks struct {
	layer.Service[balancer.PickInfo, *Pick]
	n *atomic.Int64
}

func (c countedPicks) Ready(ctx context.Context) error {
	c.n.Add(1)
	return c.Service.Ready(ctx)
}

func (c countedPicks) Call(ctx context.Context, info balancer.PickInfo) (*Pick, error) {
	c.n.Add(1)
	return c.Service.Call(ctx, info)
}

// The end of a resolver is not an error.
func TestResolverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{make(chan any, 16)}
		ended := resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
			return func(func(resolve.Update, error) bool) {}
		})
		r, err := NewResolver("ours", ended).Build(resolver.Target{}, h, resolver.BuildOptions{})
		require.NoError(t, err)
		defer r.Close()
		synctest.Wait()
		assert.Empty(t, h.items)
	})
}

// A panic of an encoder while a Retry may repeat a stream ends the stream at the server.
func TestStreamRepeatedEncoderPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var open, all atomic.Int64
		serve(t, &n, a1, grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			all.Add(1)
			open.Add(1)
			defer open.Add(-1)
			return h(srv, ss)
		}))
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(safe().Retry(RetryPolicy{}).Layer()))
		require.Panics(t, func() {
			s, err := threeResponses(t.Context(), cc, grpc.ForceCodecV2(brokenCodec{encoding.GetCodecV2("proto")}))
			require.NoError(t, err)
			_, _ = s.Recv()
		})
		synctest.Wait()
		assert.Positive(t, all.Load())
		assert.Zero(t, open.Load())
	})
}

// A lost connection to the control plane is logged.
func TestControlLogsLostConnection(t *testing.T) {
	var log lockedLog
	p := servePlane(t, freeAddr(t), nil)
	c := control(t, ControlPlaneConfig{Addr: p.addr, Log: slog.New(slog.NewTextHandler(&log, nil))})
	_, err := call(t.Context(), c)
	require.NoError(t, err)
	assert.Contains(t, log.String(), "connected to the control plane")
	p.grpc.Stop()
	eventually(t, func() bool { return strings.Contains(log.String(), "disconnected from the control plane") }, "it is logged")
}

// lockedLog is a buffer that is safe for concurrent use.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
