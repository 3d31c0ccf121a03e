package grpclayer

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// A stream that is not read ends with its ClientConn, for layers shared with
// other clients.
func TestStreamEndsWithConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var far ends
		serve(t, &n, a1)
		d := layer.NewDrainer()
		shared := NewClient(NewStack().Drain(d).Limit(1).With("ends", far.layer).Layer())
		dial := func() *grpc.ClientConn {
			cc, err := grpc.NewClient("passthrough:///"+a1, append(shared.DialOptions(), over(&n)...)...)
			require.NoError(t, err)
			return cc
		}
		cc := dial()
		for range 10 { // these end normally
			require.NoError(t, shapes["both stream"](t.Context(), pb.NewTestServiceClient(cc)))
		}
		_, err := pb.NewTestServiceClient(cc).FullDuplexCall(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 1, d.InFlight())
		require.NoError(t, cc.Close())
		synctest.Wait()
		assert.Zero(t, d.InFlight())
		assert.EqualValues(t, 10, far.complete.Load())
		assert.EqualValues(t, 1, far.failed.Load())

		cc = dial()
		defer cc.Close()
		_, err = call(t.Context(), cc)
		require.NoError(t, err)
	})
}

// OnFinish is called once with the result of the caller, for any number of
// attempts.
func TestStreamOnFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var finished []error
		queries := []grpc.CallOption{grpc.OnFinish(func(err error) { finished = append(finished, err) })}
		again := WithCallLayer(NewStack().Retry(RetryPolicy{}).Layer())
		down := dial(t, &n, newSource(replace(a2)), again) // without a listener
		down.Connect()
		synctest.Wait()
		_, err := pb.NewTestServiceClient(down).FullDuplexCall(t.Context(), queries...)
		require.Error(t, err)
		assert.Equal(t, []error{err}, finished)

		finished = nil
		serve(t, &n, a1)
		discard := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				first, err := next.Call(ctx, c)
				if err != nil {
					return nil, err
				}
				GRPC{}.Drain(first)
				synctest.Wait()
				return next.Call(ctx, c)
			})
		}
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(discard))
		s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context(), queries...)
		require.NoError(t, err)
		assert.Empty(t, finished)
		require.NoError(t, s.CloseSend())
		_, err = s.Recv()
		require.ErrorIs(t, err, io.EOF)
		assert.Equal(t, []error{nil}, finished)
	})
}

// It is called for a stream that has ended before the caller gets it.
func TestStreamOnFinishAtOnce(t *testing.T) {
	var finished []error
	_, err := NewClient(nil).Stream(t.Context(), new(grpc.StreamDesc), nil, method,
		func(_ context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			reportEnd(opts, errPlain)
			return nil, nil
		}, grpc.OnFinish(func(err error) { finished = append(finished, err) }))
	require.NoError(t, err)
	assert.Equal(t, []error{errPlain}, finished)
}
