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
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type (
	outRequest  = pb.StreamingOutputCallRequest
	outResponse = pb.StreamingOutputCallResponse
	inRequest   = pb.StreamingInputCallRequest
)

// shapes are the four kinds of calls, each to its end.
var shapes = map[string]func(ctx context.Context, c pb.TestServiceClient) error{
	"unary": func(ctx context.Context, c pb.TestServiceClient) error {
		_, err := c.UnaryCall(ctx, new(pb.SimpleRequest))
		return err
	},
	"server streams": func(ctx context.Context, c pb.TestServiceClient) error {
		s, err := c.StreamingOutputCall(ctx, &outRequest{ResponseParameters: make([]*pb.ResponseParameters, 3)})
		if err != nil {
			return err
		}
		return readAll(s)
	},
	"client streams": func(ctx context.Context, c pb.TestServiceClient) error {
		s, err := c.StreamingInputCall(ctx)
		if err != nil {
			return err
		}
		for range 3 {
			if err := s.Send(new(inRequest)); err != nil {
				break
			}
		}
		_, err = s.CloseAndRecv()
		return err
	},
	"both stream": func(ctx context.Context, c pb.TestServiceClient) error {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		if err := s.Send(new(outRequest)); err == nil {
			_ = s.CloseSend()
		}
		return readAll(s)
	},
}

func readAll(s interface{ Recv() (*outResponse, error) }) error {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// ends counts the ends of replies.
type ends struct {
	opened, complete, failed atomic.Int64
	data                     atomic.Int64
}

func (e *ends) Data(n int) { e.data.Add(int64(n)) }

func (e *ends) End(err error) {
	if err == nil {
		e.complete.Add(1)
	} else {
		e.failed.Add(1)
	}
}

func (e *ends) layer(next Service) Service {
	return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
		rsp, err := next.Call(ctx, c)
		if err == nil {
			e.opened.Add(1)
			rsp = Completion(ctx, rsp, e)
		}
		return rsp, err
	})
}

// All kinds of calls pass the same layers, on the client and on the server, and
// free their slots at the end.
func TestStreamKinds(t *testing.T) {
	for shape, run := range shapes {
		t.Run(shape, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				var near ends
				far := NewServer(NewStack().Limit(1).Timeout(time.Minute).Layer())
				s := serve(t, &n, a1, far.ServerOptions()...)
				cc := dial(t, &n, newSource(replace(a1)),
					WithCallLayer(NewStack().With("ends", near.layer).Timeout(time.Minute).Limit(1).Layer()),
					WithEndpointLayer(NewEndpointStack().Limit(1).Layer()))
				c := pb.NewTestServiceClient(cc)
				for range 5 {
					require.NoError(t, run(t.Context(), c))
					synctest.Wait()
				}
				assert.EqualValues(t, 5, near.opened.Load())
				assert.EqualValues(t, 5, near.complete.Load())
				assert.Zero(t, near.failed.Load())

				s.code.Store(int32(codes.DataLoss))
				err := run(t.Context(), c)
				require.Equal(t, codes.DataLoss, status.Code(err), "%v", err)
				assert.Equal(t, near.opened.Load()-near.complete.Load(), near.failed.Load(), "each that began has ended")

				// No slot is held.
				s.code.Store(int32(codes.OK))
				synctest.Wait()
				require.NoError(t, run(t.Context(), c))
			})
		})
	}
}

// An abandoned stream ends with the context of its caller.
func TestStreamAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var near ends
		serve(t, &n, a1)
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(NewStack().With("ends", near.layer).Limit(1).Layer()))
		ctx, cancel := context.WithCancel(t.Context())
		_, err := pb.NewTestServiceClient(cc).FullDuplexCall(ctx)
		require.NoError(t, err)
		_, err = call(t.Context(), cc)
		require.ErrorIs(t, err, layer.ErrNotReady)
		cancel()
		synctest.Wait()
		assert.EqualValues(t, 1, near.failed.Load())
		_, err = call(t.Context(), cc)
		require.NoError(t, err)
	})
}

// brittle is a layer that panics at the end of a reply.
type brittle struct{}

func (brittle) Data(int)  {}
func (brittle) End(error) { panic("brittle") }

func (b brittle) layer(next Service) Service {
	return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
		rsp, err := next.Call(ctx, c)
		if err == nil {
			rsp = Completion(ctx, rsp, b)
		}
		return rsp, err
	})
}

// A panic of an observer at the end of a stream does not keep it from other
// observers, and frees the stream.
func TestStreamObserverPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		var far, near ends
		serve(t, &n, a1)
		d := layer.NewDrainer()
		cc := dial(t, &n, newSource(replace(a1)),
			WithCallLayer(NewStack().Drain(d).With("near", near.layer).With("brittle", brittle{}.layer).With("far", far.layer).Layer()))
		s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.CloseSend())
		require.PanicsWithValue(t, "brittle", func() { _, _ = s.Recv() })
		assert.EqualValues(t, 1, far.complete.Load())
		assert.EqualValues(t, 1, near.complete.Load())
		assert.Zero(t, d.InFlight())
		ours := s.(*grpc.GenericClientStream[outRequest, outResponse]).ClientStream.(*stream)
		assert.ErrorIs(t, ours.attempt.Err(), context.Canceled, "it is let go")
	})
}

// The same applies to a pick.
func TestPickObserverPanic(t *testing.T) {
	var near ends
	p := PickCompletion(t.Context(), &Pick{conn: &conn{}}, brittle{})
	p = PickCompletion(t.Context(), p, &near)
	require.NotPanics(t, func() { p.done(balancer.DoneInfo{BytesSent: true}) }, "gRPC holds locks")
	assert.EqualValues(t, 1, near.complete.Load())
}

// The time limit of a stream applies until its end.
func TestStreamTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(NewStack().Timeout(time.Second).Layer()))
		s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		start := time.Now()
		_, err = s.Recv()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.Equal(t, time.Second, time.Since(start))
	})
}

// A discarded reply is canceled on the server too.
func TestGRPCDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		s := serve(t, &n, a1)
		discard := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				first, err := next.Call(ctx, c)
				if err != nil {
					return nil, err
				}
				GRPC{}.Drain(first)
				return next.Call(ctx, c)
			})
		}
		cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(discard))
		both, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		assert.EqualValues(t, 2, s.calls.Load())
		assert.EqualValues(t, 1, s.open.Load())
		require.NoError(t, both.CloseSend())
		_, err = both.Recv()
		require.ErrorIs(t, err, io.EOF)
		GRPC{}.Drain(nil)
		GRPC{}.Drain(&Reply{})
	})
}

// A rejection by the layers of a server has a code, and a pushback for the
// retries of the client.
func TestServerPushback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		slow := func(Service) Service {
			return layer.Func[*Call, *Reply](func(context.Context, *Call) (*Reply, error) {
				return nil, &layer.Error{Layer: "rate", Kind: layer.ErrNotReady, RetryAfter: 1500 * time.Millisecond, Reason: "too many"}
			})
		}
		serve(t, &n, a1, NewServer(slow).ServerOptions()...)
		cc := dial(t, &n, newSource(replace(a1)))

		var trailer metadata.MD
		_, err := call(t.Context(), cc, grpc.Trailer(&trailer))
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.Equal(t, "rate: not ready: too many", brief(err))
		assert.Equal(t, []string{"1500"}, trailer.Get(pushbackKey))
		after, ok := GRPC{}.RetryAfter(nil, err)
		assert.True(t, ok)
		assert.Equal(t, 1500*time.Millisecond, after)
		require.NotErrorIs(t, err, layer.ErrNotReady, "another process refused: the call was sent")

		s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = s.Recv()
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.Equal(t, []string{"1500"}, s.Trailer().Get(pushbackKey))
	})
}

// Handlers get the context of the layers, and layers get the metadata of the
// call.
func TestServerContextAndCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var n layertest.Network
		var seen []*Call
		mark := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				seen = append(seen, c)
				return next.Call(context.WithValue(ctx, key{}, "marked"), c)
			})
		}
		var marks []any
		serve(t, &n, a1, append(NewServer(mark).ServerOptions(),
			grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				marks = append(marks, ctx.Value(key{}))
				return h(ctx, req)
			}),
			grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				marks = append(marks, ss.Context().Value(key{}))
				return h(srv, ss)
			}))...)
		cc := dial(t, &n, newSource(replace(a1)))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "tenant", "seven")
		for _, shape := range []string{"unary", "both stream"} {
			require.NoError(t, shapes[shape](ctx, pb.NewTestServiceClient(cc)))
		}
		synctest.Wait()
		assert.Equal(t, []any{"marked", "marked"}, marks)
		require.Len(t, seen, 2)
		assert.Equal(t, "/grpc.testing.TestService/UnaryCall", seen[0].Method)
		assert.IsType(t, new(pb.SimpleRequest), seen[0].Message)
		assert.Equal(t, "seven", seen[0].Get("tenant"))
		assert.Equal(t, []string{"seven"}, seen[1].Header().Get("tenant"))
		assert.True(t, seen[1].ClientStreams && seen[1].ServerStreams)
		assert.Nil(t, seen[1].Message)
	})
}

// An error of a handler reaches the client unchanged.
func TestServerHandlerError(t *testing.T) {
	info := &grpc.UnaryServerInfo{FullMethod: method}
	handler := func(context.Context, any) (any, error) { return "partial", errPlain }
	rsp, err := NewServer(NewStack().Limit(1).Timeout(time.Minute).Layer()).Unary(t.Context(), nil, info, handler)
	assert.Equal(t, errPlain, err)
	assert.Nil(t, rsp)
}
