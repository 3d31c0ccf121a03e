package grpclayer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/gotower/gotower/layer"
)

// After Unary returns, no attempt uses the request, and none starts.
func TestUnaryRequestAfterReturn(t *testing.T) {
	for name, firstWins := range map[string]bool{"the first wins": true, "the second wins": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tries, reading atomic.Int64
				gRPC := func(ctx context.Context, _ string, _, reply any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					reading.Add(1)
					defer reading.Add(-1)
					if first := tries.Add(1) == 1; first == firstWins {
						time.Sleep(2 * time.Second)
						reply.(*pb.SimpleResponse).ServerId = "won"
						return nil
					}
					<-ctx.Done()
					time.Sleep(time.Second) // it encodes the request
					return ctx.Err()
				}
				var reply pb.SimpleResponse
				l := NewStack().Hedge(HedgePolicy{
					MinDelay: time.Second, MaxDelay: time.Second, HedgeIf: func(*Call) bool { return true },
				}).Layer()
				require.NoError(t, NewClient(l).Unary(t.Context(), method, new(pb.SimpleRequest), &reply, nil, gRPC))
				assert.EqualValues(t, 2, tries.Load())
				assert.Zero(t, reading.Load())
				assert.Equal(t, "won", reply.GetServerId())
			})
		})
	}
}

// An attempt after the end of the call is rejected.
func TestUnaryAttemptAfterEnd(t *testing.T) {
	for name, outcome := range map[string]outcome{"served": {id: "one"}, "failed": {err: errPlain}} {
		t.Run(name, func(t *testing.T) {
			late := make(chan error, 1)
			again := make(chan struct{})
			straggle := func(next Service) Service {
				return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
					rsp, err := next.Call(ctx, c)
					go func() {
						<-again
						_, err := next.Call(context.WithoutCancel(ctx), c)
						late <- err
					}()
					return rsp, err
				})
			}
			var a queries
			err := a.call(t.Context(), straggle, invoker(outcome))
			assert.Equal(t, outcome.err, err)
			close(again)
			require.ErrorIs(t, <-late, layer.ErrClosed)
		})
	}
}

// An attempt decodes into a message while another makes one of its type. The
// race detector checks this.
func TestUnaryNewMessage(t *testing.T) {
	for _, m := range []proto.Message{
		new(pb.SimpleResponse), dynamicpb.NewMessage(new(pb.SimpleResponse).ProtoReflect().Descriptor()),
	} {
		wire, err := proto.Marshal(&pb.SimpleResponse{ServerId: "one"})
		require.NoError(t, err)
		var decoding sync.WaitGroup
		decoding.Go(func() { assert.NoError(t, proto.Unmarshal(wire, m)) })
		other := newMessage(m)
		decoding.Wait()
		require.IsType(t, m, other)
		assert.Zero(t, proto.Size(other.(proto.Message)))
		require.NoError(t, assign(other, m))
		assert.True(t, proto.Equal(m, other.(proto.Message)))
	}
}
