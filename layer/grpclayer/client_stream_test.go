package grpclayer

import (
	"context"
	"io"
	"sync/atomic"
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

// safe is a stack with a Retry that repeats every method.
func safe(opts ...layer.Option[*Reply]) Stack {
	return NewStack(append(opts, layer.WithProtocol(GRPC{IsIdempotent: func(*Call) bool { return true }}))...)
}

// firstStreams ends the first n streams of a server by handle.
func firstStreams(n int64, handle func(grpc.ServerStream) error) (grpc.ServerOption, *atomic.Int64) {
	calls := new(atomic.Int64)
	return grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		if calls.Add(1) <= n {
			return handle(ss)
		}
		return h(srv, ss)
	}), calls
}

var errAway = status.Error(codes.Unavailable, "away")

func threeResponses(ctx context.Context, cc grpc.ClientConnInterface, opts ...grpc.CallOption) (
	grpc.ServerStreamingClient[outResponse], error,
) {
	return pb.NewTestServiceClient(cc).StreamingOutputCall(ctx,
		&outRequest{ResponseParameters: make([]*pb.ResponseParameters, 3)}, opts...)
}

func TestStreamRepeatedBeforeHeader(t *testing.T) {
	away := func(grpc.ServerStream) error { return errAway }
	for name, tt := range map[string]struct {
		n      int64
		handle func(grpc.ServerStream) error
		stack  Stack
		calls  int64
		code   codes.Code
		read   int
	}{
		"at once":           {2, away, safe(), 3, codes.OK, 3},
		"too often":         {9, away, safe(), 3, codes.Unavailable, 0},
		"not a safe method": {2, away, NewStack(), 1, codes.Unavailable, 0},
		"not retryable":     {2, func(grpc.ServerStream) error { return status.Error(codes.NotFound, "") }, safe(), 1, codes.NotFound, 0},
		"the request was read": {2, func(ss grpc.ServerStream) error {
			if err := ss.RecvMsg(new(outRequest)); err != nil {
				return err
			}
			return errAway
		}, safe(), 3, codes.OK, 3},
		"after the header": {2, func(ss grpc.ServerStream) error {
			_ = ss.SendHeader(nil)
			return errAway
		}, safe(), 1, codes.Unavailable, 0},
		"after a message": {2, func(ss grpc.ServerStream) error {
			_ = ss.SendMsg(new(outResponse))
			return errAway
		}, safe(), 1, codes.Unavailable, 1},
		"the server asks for no more": {2, func(ss grpc.ServerStream) error {
			ss.SetTrailer(metadata.Pairs(pushbackKey, "-1"))
			return errAway
		}, safe(), 1, codes.Unavailable, 0},
		"no responses": {1, func(grpc.ServerStream) error { return nil }, safe(), 1, codes.OK, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				option, calls := firstStreams(tt.n, tt.handle)
				s := serve(t, &n, a1, option)
				var near ends
				stack := tt.stack.Limit(1).With("ends", near.layer).Retry(RetryPolicy{}).Timeout(time.Hour).Limit(1)
				cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(stack.Layer()), WithEndpointLayer(NewEndpointStack().Limit(1).Layer()))
				var finished []error
				stream, err := threeResponses(t.Context(), cc, grpc.OnFinish(func(err error) { finished = append(finished, err) }))
				require.NoError(t, err)
				read := 0
				for err == nil {
					if _, err = stream.Recv(); err == nil {
						read++
					}
				}
				if err == io.EOF {
					err = nil
				}
				assert.Equal(t, tt.code, status.Code(err), "%v", err)
				assert.Equal(t, tt.read, read)
				assert.Equal(t, tt.calls, calls.Load())
				synctest.Wait()
				assert.Zero(t, s.open.Load())
				assert.Equal(t, near.opened.Load(), near.complete.Load()+near.failed.Load())
				require.Len(t, finished, 1, "OnFinish is called once")
				assert.Equal(t, tt.code, status.Code(finished[0]))
				if name == "the server asks for no more" {
					assert.Equal(t, []string{"-1"}, stream.Trailer().Get(pushbackKey))
					header, err := stream.Header()
					require.NoError(t, err)
					assert.Empty(t, header)
				}

				// No slot is held.
				calls.Store(tt.n)
				stream, err = threeResponses(t.Context(), cc)
				require.NoError(t, err)
				require.NoError(t, readAll(stream))
			})
		})
	}
}

// Client streams and bidirectional streams are not repeated after they are open. When one
// fails, all slots are free.
func TestStreamRequestsNotRepeated(t *testing.T) {
	for _, shape := range []string{"client streams", "both stream"} {
		t.Run(shape, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				option, calls := firstStreams(1, func(grpc.ServerStream) error { return errAway })
				s := serve(t, &n, a1, option)
				stack := safe().Limit(1).Retry(RetryPolicy{}).Timeout(time.Hour).Limit(1)
				cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(stack.Layer()), WithEndpointLayer(NewEndpointStack().Limit(1).Layer()))
				require.Equal(t, codes.Unavailable, status.Code(shapes[shape](t.Context(), pb.NewTestServiceClient(cc))))
				assert.EqualValues(t, 1, calls.Load())
				synctest.Wait()
				assert.Zero(t, s.open.Load())
				require.NoError(t, shapes[shape](t.Context(), pb.NewTestServiceClient(cc)))
			})
		})
	}
}

// The caller has the stream while the server is silent. The end of its context
// frees all slots.
func TestStreamRepeatedOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		silent := make(chan struct{})
		option, calls := firstStreams(2, func(ss grpc.ServerStream) error {
			select {
			case <-silent:
				return ss.SendMsg(new(outResponse))
			case <-ss.Context().Done():
				return ss.Context().Err()
			}
		})
		serve(t, &n, a1, option)
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(safe().Retry(RetryPolicy{}).Limit(1).Layer()))
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := threeResponses(ctx, cc)
		require.NoError(t, err)
		assert.NotNil(t, stream.Context())
		synctest.Wait()
		require.EqualValues(t, 1, calls.Load())
		cancel()
		_, err = stream.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))

		stream, err = threeResponses(t.Context(), cc)
		require.NoError(t, err)
		require.NoError(t, stream.CloseSend())
		require.Equal(t, codes.Internal, status.Code(stream.SendMsg(new(outRequest))), "there is one request")
		synctest.Wait()
		close(silent)
		_, err = stream.Recv()
		require.NoError(t, err)
		require.ErrorIs(t, stream.RecvMsg(new(outResponse)), io.EOF)
		assert.EqualValues(t, 2, calls.Load())
	})
}

// An error of the request is the error of RecvMsg, and holds no slot.
func TestStreamRepeatedSendError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s := serve(t, &n, a1)
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(safe().Retry(RetryPolicy{MaxAttempts: 2}).Limit(1).Layer()))
		large := &outRequest{Payload: &pb.Payload{Body: make([]byte, 100)}}
		stream, err := pb.NewTestServiceClient(cc).StreamingOutputCall(t.Context(), large, grpc.MaxCallSendMsgSize(50))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		synctest.Wait()
		assert.Zero(t, s.open.Load())
		stream, err = threeResponses(t.Context(), cc)
		require.NoError(t, err)
		require.NoError(t, readAll(stream))
	})
}

// The layers run in another goroutine. Their panic reaches the caller, and the
// process continues.
func TestStreamRepeatedPanic(t *testing.T) {
	for name, tt := range map[string]struct {
		broken bool // before a stream is open
		panics func(t *testing.T, cc *grpc.ClientConn)
	}{
		"at once": {true, func(t *testing.T, cc *grpc.ClientConn) {
			require.PanicsWithValue(t, "broken", func() { _, _ = threeResponses(t.Context(), cc) })
		}},
		"later": {false, func(t *testing.T, cc *grpc.ClientConn) {
			stream, err := threeResponses(t.Context(), cc)
			require.NoError(t, err)
			require.PanicsWithValue(t, "classifier", func() { _, _ = stream.Recv() })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				option, _ := firstStreams(1, func(grpc.ServerStream) error { return errAway })
				serve(t, &n, a1, option)
				broken := tt.broken
				classify := layer.WithClassifier(func(o layer.Outcome[*Reply]) layer.Class {
					if o.Err != nil {
						panic("classifier")
					}
					return layer.Success
				})
				cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(safe(classify).Limit(1).Retry(RetryPolicy{}).
					MapRequest(func(c *Call) *Call {
						if broken {
							panic("broken")
						}
						return c
					}).Layer()))
				tt.panics(t, cc)
				broken = false
				if tt.broken {
					stream, err := threeResponses(t.Context(), cc)
					require.NoError(t, err)
					require.Panics(t, func() { _ = readAll(stream) }, "the server's first stream fails")
				}
				stream, err := threeResponses(t.Context(), cc)
				require.NoError(t, err, "the slot is free")
				require.NoError(t, readAll(stream))
			})
		})
	}
}
