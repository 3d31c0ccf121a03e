package grpclayer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestAttemptContext(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	a := &attempt{Context: parent}
	below, stop := context.WithTimeout(a, time.Hour)
	defer stop()
	assert.Same(t, a, attemptOf(below))
	assert.Equal(t, "value", below.Value(key{}))
	assert.Nil(t, attemptOf(t.Context()))
	cancel()
	<-below.Done()
}

// The reason of a rejection is reported while nothing was sent. After an
// earlier attempt of gRPC the error is that of a call.
func TestAttemptExplain(t *testing.T) {
	late := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	why := &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "0 of 3 endpoints ready"}
	a := new(attempt)
	assert.Equal(t, late, a.explain(late, nil, nil), "not refused")

	a.rejection.Store(&pickError{why})
	err := a.explain(late, nil, nil)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, late)
	require.EqualError(t, err, "rpc error: code = DeadlineExceeded desc = context deadline exceeded: "+
		"balance: not ready: 0 of 3 endpoints ready")
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	assert.Equal(t, codes.DeadlineExceeded, Code(&layer.Error{Layer: "retry", Err: err}), "also inside of others")

	told := status.Error(codes.Unavailable, "latest balancer error: "+why.Error())
	assert.Equal(t, told.Error(), a.explain(told, nil, nil).Error(), "not twice")

	a.sent.Store(true)
	require.NotErrorIs(t, a.explain(late, nil, nil), layer.ErrNotReady)

	err = a.explain(late, nil, metadata.Pairs(pushbackKey, "7"))
	assert.Equal(t, late.Error(), err.Error())
	require.ErrorIs(t, err, late)
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
}

// credsFunc are call credentials that make a call.
type credsFunc func(ctx context.Context) error

func (f credsFunc) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	return nil, f(ctx)
}

func (credsFunc) RequireTransportSecurity() bool { return false }

// A call for the credentials of another is distinguished from it by the
// balancer.
func TestAttemptOfNestedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		serve(t, &n, a2)
		plain := func(addr string) *grpc.ClientConn {
			config := grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"` + name + `":{}}]}`)
			cc, err := grpc.NewClient("passthrough:///"+addr, append(over(&n), config)...)
			require.NoError(t, err)
			t.Cleanup(func() { cc.Close() })
			return cc
		}
		up, down := plain(a2), plain(a3)
		var seen layer.Describer
		cc := dial(t, &n, newSource(replace(a1)), WithOnBalancer(func(d layer.Describer) { seen = d }))
		c := pb.NewTestServiceClient(cc)

		s, err := c.FullDuplexCall(t.Context(), grpc.PerRPCCredentials(credsFunc(func(ctx context.Context) error {
			_, err := call(ctx, up)
			return err
		})))
		require.NoError(t, err)
		require.NoError(t, s.Send(new(outRequest)))
		_, err = s.Recv()
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, s.CloseSend())
		require.NoError(t, readAll(s))
		synctest.Wait()
		assert.Less(t, seen.Describe().Children[0].State.Get("ewma"), time.Second, "it is the time to the first message")

		_, err = c.UnaryCall(t.Context(), new(pb.SimpleRequest), grpc.PerRPCCredentials(credsFunc(func(ctx context.Context) error {
			_, err := pb.NewTestServiceClient(down).FullDuplexCall(ctx)
			return err
		})))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.NotErrorIs(t, err, layer.ErrNotReady)
	})
}
