package grpclayer

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// A time limit ends a stream at that moment, for a handler that waits for the
// client and for one that ignores its context.
func TestServerStreamLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		limit   Stack
		handler func(ctx context.Context, both grpc.BidiStreamingServer[outRequest, outResponse]) error
	}{
		"in Recv": {NewStack().Timeout(time.Second), func(_ context.Context, both grpc.BidiStreamingServer[outRequest, outResponse]) error {
			_, err := both.Recv()
			return err
		}},
		"in Send": {NewStack().Timeout(time.Second), func(_ context.Context, both grpc.BidiStreamingServer[outRequest, outResponse]) error {
			for {
				if err := both.Send(&outResponse{Payload: &pb.Payload{Body: make([]byte, 1<<16)}}); err != nil {
					return err
				}
			}
		}},
		"deaf": {NewStack().Timeout(time.Second), func(ctx context.Context, _ grpc.BidiStreamingServer[outRequest, outResponse]) error {
			<-ctx.Done()
			time.Sleep(time.Hour)
			return nil
		}},
		"head": {NewStack().ResponseHeaderTimeout(time.Second), func(_ context.Context, both grpc.BidiStreamingServer[outRequest, outResponse]) error {
			_, err := both.Recv()
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				var got error
				d := layer.NewDrainer()
				f := &front{}
				f.both = func(both grpc.BidiStreamingServer[outRequest, outResponse]) error {
					got = tt.handler(both.Context(), both)
					return got
				}
				var answer error
				look := func(next Service) Service {
					return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
						rsp, err := next.Call(ctx, c)
						answer = err
						return rsp, err
					})
				}
				s := NewStack().Drain(d).With("look", look).With("limit", tt.limit.Layer())
				serveFront(t, &n, a1, f, NewServer(s.Layer()).ServerOptions()...)
				cc := dial(t, &n, newSource(replace(a1)))
				both, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
				require.NoError(t, err)
				start := time.Now()
				if name == "in Send" {
					time.Sleep(2 * time.Second) // its window is full
				}
				for err == nil {
					_, err = both.Recv()
				}
				require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
				assert.Less(t, time.Since(start), 3*time.Second)
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				require.ErrorIs(t, answer, layer.ErrTimeout)
				assert.Zero(t, d.InFlight())
				if name != "deaf" {
					assert.Equal(t, codes.DeadlineExceeded, status.Code(got), "%v", got)
				}
			})
		})
	}
}

// A stream that ends in time is unchanged, and one that its client cancels reports it.
func TestServerStreamWithinLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var got error
		f := &front{both: func(both grpc.BidiStreamingServer[outRequest, outResponse]) error {
			_, got = both.Recv()
			if got == io.EOF {
				return nil
			}
			return got
		}}
		serveFront(t, &n, a1, f, NewServer(NewStack().Timeout(time.Hour).Layer()).ServerOptions()...)
		cc := dial(t, &n, newSource(replace(a1)))
		both, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		require.NoError(t, both.CloseSend())
		_, err = both.Recv()
		require.ErrorIs(t, err, io.EOF)

		ctx, cancel := context.WithCancel(t.Context())
		_, err = pb.NewTestServiceClient(cc).FullDuplexCall(ctx)
		require.NoError(t, err)
		synctest.Wait()
		cancel()
		synctest.Wait()
		assert.Equal(t, codes.Canceled, status.Code(got))
	})
}
