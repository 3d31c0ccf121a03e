package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

const (
	a1 = "10.0.0.1:80"
	a2 = "10.0.0.2:80"
	a3 = "10.0.0.3:80"
)

func TestBalancerLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		servers := []*server{serve(t, &n, a1), serve(t, &n, a2), serve(t, &n, a3)}
		servers[0].delay.Store(int64(5 * time.Millisecond))
		servers[1].delay.Store(int64(5 * time.Millisecond))
		servers[2].delay.Store(int64(500 * time.Millisecond))
		cc := dial(t, &n, newSource(replace(a1, a2, a3)))
		_, err := call(t.Context(), cc)
		require.NoError(t, err)
		synctest.Wait()

		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() { _, _ = call(t.Context(), cc) })
			time.Sleep(2 * time.Millisecond)
		}
		wg.Wait()
		slow := servers[2].calls.Load()
		assert.Less(t, slow, int64(30), "a third would be 100")
		assert.Positive(t, slow)
		assert.Greater(t, servers[0].calls.Load(), int64(80))
		assert.Greater(t, servers[1].calls.Load(), int64(80))
	})
}

func TestBalancerRemovedEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1, s2 := serve(t, &n, a1), serve(t, &n, a2)
		src := newSource(replace(a1))
		cc := dial(t, &n, src)

		both, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		require.NoError(t, both.Send(new(pb.StreamingOutputCallRequest)))
		_, err = both.Recv()
		require.NoError(t, err)

		src <- replace(a2)
		synctest.Wait()
		for range 20 {
			who, err := call(t.Context(), cc)
			require.NoError(t, err)
			assert.Equal(t, a2, who)
		}
		require.NoError(t, both.Send(new(pb.StreamingOutputCallRequest)))
		_, err = both.Recv()
		require.NoError(t, err, "what was under way goes on")
		require.NoError(t, both.CloseSend())
		_, err = both.Recv()
		require.EqualError(t, err, "EOF")
		synctest.Wait()
		assert.Zero(t, s1.open.Load())
		assert.EqualValues(t, 20, s2.calls.Load())
	})
}

func TestBalancerRejectingEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		cc := dial(t, &n, newSource(replace(a1, a2)))
		for range 50 {
			who, err := call(t.Context(), cc)
			require.NoError(t, err)
			assert.Equal(t, a1, who)
		}
		// A new endpoint is used at once.
		s2 := serve(t, &n, a2)
		time.Sleep(5 * time.Second)
		for range 50 {
			_, err := call(t.Context(), cc)
			require.NoError(t, err)
		}
		assert.Greater(t, s2.calls.Load(), int64(5))
	})
}

// grpc/grpc-go#8484, #7135, #2191: calls fail or time out without a reason.
func TestBalancerReason(t *testing.T) {
	lookup := errors.New("the registry does not answer")
	for _, tt := range []struct {
		name string
		news []news
		want string // of a call that fails fast
		is   error
	}{
		{
			"a discovery error", []news{{err: lookup}},
			"balance web.default:80: not ready: not resolved yet: the registry does not answer", lookup,
		},
		{
			"no endpoints", []news{{update: resolve.Update{Kind: resolve.Empty}}},
			"balance web.default:80: not ready: the target has no endpoints", discover.ErrNoEndpoints,
		},
		{
			"no such name", []news{{update: resolve.Update{Kind: resolve.DoesNotExist}}},
			"balance web.default:80: not ready: the target does not exist", discover.ErrDoesNotExist,
		},
		{
			"all gone", []news{replace(a1), replace()},
			"balance web.default:80: not ready: the target has no endpoints", discover.ErrNoEndpoints,
		},
		{
			"no listener", []news{replace(a1)},
			"balance web.default:80 10.0.0.1:80: not ready: 0 of 1 endpoints ready: " +
				"grpc web.default:80 10.0.0.1:80: not ready: connection failed: connection error: desc = \"transport: Error while dialing: " +
				"dial tcp 10.0.0.1:80: connect: connection refused\"", layer.ErrNotReady,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				cc := dial(t, &n, newSource(tt.news...))
				cc.Connect()
				synctest.Wait()

				_, err := call(t.Context(), cc)
				require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
				assert.Equal(t, tt.want, brief(err))
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.ErrorIs(t, err, tt.is)
				refusal, ok := errors.AsType[*layer.Error](err)
				require.True(t, ok)
				assert.Equal(t, "balance", refusal.Layer)
				assert.Equal(t, connectivity.TransientFailure, cc.GetState())

				// A wait-for-ready call waits, and its error has the reason.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				_, err = call(ctx, cc, waitForReady)
				assert.Equal(t, time.Second, time.Since(start))
				require.Equal(t, codes.DeadlineExceeded, status.Code(err))
				assert.Contains(t, err.Error(), tt.want)
				require.ErrorIs(t, err, layer.ErrNotReady)
			})
		})
	}
}

// A resolver that never returns makes gRPC wait for the name, with the error of
// gRPC.
func TestBalancerPendingName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		cc := dial(t, &n, newSource())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := call(ctx, cc)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
}

// Calls wait while a connection is made for the first time, and report this at
// a timeout.
func TestBalancerConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		l, err := n.Listen("tcp", a1) // accepts nothing: the handshake hangs
		require.NoError(t, err)
		defer l.Close()
		cc := dial(t, &n, newSource(replace(a1)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err = call(ctx, cc)
		assert.Equal(t, time.Second, time.Since(start))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.Contains(t, err.Error(), "0 of 1 endpoints ready: grpc web.default:80 10.0.0.1:80: not ready: connecting")
		cc.Close()
	})
}

func TestBalancerUnresolvable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		src := newSource()
		cc := dial(t, &n, src)
		failed := make(chan error, 1)
		go func() {
			_, err := call(t.Context(), cc, waitForReady)
			failed <- err
		}()
		synctest.Wait()
		src <- news{err: fmt.Errorf("not a name: %w", resolve.ErrUnresolvable)}
		close(src)
		err := <-failed
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorIs(t, err, layer.ErrClosed)
		require.ErrorIs(t, err, resolve.ErrUnresolvable)
	})
}

// After a discovery error the endpoints remain.
func TestBalancerDiscoveryError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		src := newSource(replace(a1))
		cc := dial(t, &n, src)
		_, err := call(t.Context(), cc)
		require.NoError(t, err)
		src <- news{err: errors.New("lost the registry")}
		synctest.Wait()
		_, err = call(t.Context(), cc)
		require.NoError(t, err)
	})
}

func TestBalancerWaitingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		src := newSource(news{update: resolve.Update{Kind: resolve.Empty}})
		cc := dial(t, &n, src)
		const callers = 50
		failed := make(chan error, callers)
		for range callers {
			go func() {
				_, err := call(t.Context(), cc, waitForReady)
				failed <- err
			}()
		}
		synctest.Wait()
		assert.Empty(t, failed)
		src <- replace(a1)
		for range callers {
			require.NoError(t, <-failed)
		}
	})
}

// A limit for each endpoint: the slot is held until the end of the call, and
// then used by a waiting call.
func TestEndpointLayerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1 := serve(t, &n, a1)
		s1.delay.Store(int64(time.Second))
		cc := dial(t, &n, newSource(replace(a1)), WithEndpointLayer(NewEndpointStack().Limit(2).Layer()))
		_, err := call(t.Context(), cc)
		require.NoError(t, err)

		start := time.Now()
		const callers = 10
		failed := make(chan error, callers)
		for range callers {
			go func() {
				_, err := call(t.Context(), cc, waitForReady)
				failed <- err
			}()
		}
		synctest.Wait()
		assert.EqualValues(t, 2, s1.open.Load())

		_, err = call(t.Context(), cc)
		require.Equal(t, codes.Unavailable, status.Code(err))
		assert.Contains(t, err.Error(), "0 of 1 endpoints ready: limit: not ready: 2 of 2 in flight")

		for range callers {
			require.NoError(t, <-failed)
		}
		assert.InDelta(t, 5*time.Second, time.Since(start), float64(100*time.Millisecond))
	})
}

// A canceled call frees its slot.
func TestEndpointLayerCanceledCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1 := serve(t, &n, a1)
		cc := dial(t, &n, newSource(replace(a1)), WithEndpointLayer(NewEndpointStack().Limit(1).Layer()))
		ctx, cancel := context.WithCancel(t.Context())
		both, err := pb.NewTestServiceClient(cc).FullDuplexCall(ctx)
		require.NoError(t, err)
		_, err = call(t.Context(), cc)
		require.ErrorIs(t, err, layer.ErrNotReady)
		cancel()
		_, err = both.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
		synctest.Wait()
		_, err = call(t.Context(), cc)
		require.NoError(t, err)
		assert.EqualValues(t, 2, s1.calls.Load())
	})
}

// breaker is a layer that opens for a second after a failure.
func breaker(next layer.Service[pick, *Pick]) layer.Service[pick, *Pick] {
	return &shutting{Service: next}
}

// The layer of an endpoint rejects calls to a failing server, and admits them
// later.
func TestEndpointLayerBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1, s2 := serve(t, &n, a1), serve(t, &n, a2)
		cc := dial(t, &n, newSource(replace(a1, a2)), WithEndpointLayer(breaker))
		cc.Connect()
		synctest.Wait() // both connect at the same time
		s1.code.Store(int32(codes.Internal))
		failures := 0
		for range 100 {
			if _, err := call(t.Context(), cc); err != nil {
				failures++
			}
		}
		assert.Equal(t, 1, failures)
		assert.EqualValues(t, 1, s1.calls.Load())

		time.Sleep(time.Second / 2)
		s2.code.Store(int32(codes.Internal))
		_, err := call(t.Context(), cc)
		require.Equal(t, codes.Internal, status.Code(err))
		_, err = call(t.Context(), cc)
		require.Equal(t, codes.Unavailable, status.Code(err))
		assert.Contains(t, err.Error(), "0 of 2 endpoints ready: breaker: not ready: open")
		assert.Equal(t, connectivity.Ready, cc.GetState(), "the connections are well")

		s1.code.Store(int32(codes.OK))
		start := time.Now()
		who, err := call(t.Context(), cc, waitForReady)
		require.NoError(t, err)
		assert.Equal(t, a1, who)
		assert.InDelta(t, time.Second/2, time.Since(start), float64(10*time.Millisecond))
	})
}

// A connection closed by the server is made again, and calls wait for it.
func TestBalancerReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s1 := serve(t, &n, a1)
		cc := dial(t, &n, newSource(replace(a1)))
		_, err := call(t.Context(), cc)
		require.NoError(t, err)
		s1.grpc.Stop()
		synctest.Wait()
		_, err = call(t.Context(), cc)
		require.Equal(t, codes.Unavailable, status.Code(err))
		assert.Contains(t, err.Error(), "connection refused")

		s1 = serve(t, &n, a1)
		_, err = call(t.Context(), cc, waitForReady)
		require.NoError(t, err)
		assert.EqualValues(t, 1, s1.calls.Load())
	})
}

func TestDialOptionsNotRegistered(t *testing.T) {
	_, err := grpc.NewClient("unregistered:///web:80", append(DialOptions("unregistered", newSource()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.ErrorContains(t, err, "unregistered")
	require.ErrorContains(t, err, "no supported policies found in config", "as DialOptions says")
}
