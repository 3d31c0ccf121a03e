package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
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

// front is a service with handlers that make calls.
type front struct {
	pb.UnimplementedTestServiceServer
	calls atomic.Int64
	unary func(context.Context) error
	both  func(grpc.BidiStreamingServer[outRequest, outResponse]) error
}

func (f *front) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	f.calls.Add(1)
	if err := f.unary(ctx); err != nil {
		return nil, err
	}
	return new(pb.SimpleResponse), nil
}

func (f *front) FullDuplexCall(both grpc.BidiStreamingServer[outRequest, outResponse]) error {
	f.calls.Add(1)
	return f.both(both)
}

func serveFront(t *testing.T, n *layertest.Network, addr string, f *front, opts ...grpc.ServerOption) {
	t.Helper()
	l, err := n.Listen("tcp", addr)
	require.NoError(t, err)
	g := grpc.NewServer(opts...)
	pb.RegisterTestServiceServer(g, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
}

// A rejected call of a handler is not a rejection of the handler, so that the
// handler is not run again.
func TestHandlerRunsOnce(t *testing.T) {
	for name, s := range map[string]Stack{
		"queue":   NewStack().Queue(10, 10*time.Second).Limit(10),
		"retry":   NewStack().Retry(RetryPolicy{}).Limit(10),
		"timeout": NewStack().Queue(10, 10*time.Second).Timeout(time.Hour).Limit(10),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				down := dial(t, &n, newSource(replace(a2))) // without a listener
				f := &front{unary: func(ctx context.Context) error {
					_, err := call(ctx, down)
					return err
				}}
				f.both = func(both grpc.BidiStreamingServer[outRequest, outResponse]) error {
					if err := both.Send(new(outResponse)); err != nil {
						return err
					}
					return f.unary(both.Context())
				}
				serveFront(t, &n, a1, f, NewServer(s.Layer()).ServerOptions()...)
				cc := dial(t, &n, newSource(replace(a1)))
				_, err := call(t.Context(), cc)
				require.Equal(t, codes.Unavailable, status.Code(err))
				assert.EqualValues(t, 1, f.calls.Load())

				both, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context())
				require.NoError(t, err)
				_, err = both.Recv()
				require.NoError(t, err)
				_, err = both.Recv()
				require.Equal(t, codes.Unavailable, status.Code(err), "there is one message, not one for each run")
				assert.EqualValues(t, 2, f.calls.Load())
			})
		})
	}
}

// An error of a handler reaches the client unchanged.
func TestHandlerErrorUnchanged(t *testing.T) {
	st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&pb.Payload{Body: []byte("why")})
	require.NoError(t, err)
	for name, failure := range map[string]error{
		"plain":                      errPlain,
		"a status":                   st.Err(),
		"wrapped":                    fmt.Errorf("around: %w", st.Err()),
		"joined with a cancellation": fmt.Errorf("%w (while %w)", st.Err(), context.Canceled),
		"joined the other way":       errors.Join(context.DeadlineExceeded, st.Err()),
		"a refusal":                  fmt.Errorf("%w: %w", st.Err(), layer.ErrNotReady),
		"a refusal of a layer":       refused("rate", time.Second, nil),
		"out of time":                fmt.Errorf("around: %w", context.DeadlineExceeded),
		"cancelled":                  context.Canceled,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				f := &front{unary: func(context.Context) error { return failure }}
				f.both = func(grpc.BidiStreamingServer[outRequest, outResponse]) error { return failure }
				serveFront(t, &n, a1, f)
				serveFront(t, &n, a2, f, NewServer(NewStack().Retry(RetryPolicy{}).Limit(10).Layer()).ServerOptions()...)
				var unary, both [2]*status.Status
				for i, addr := range []string{a1, a2} {
					c := pb.NewTestServiceClient(dial(t, &n, newSource(replace(addr))))
					_, err := c.UnaryCall(t.Context(), new(pb.SimpleRequest))
					unary[i] = status.Convert(err)
					s, err := c.FullDuplexCall(t.Context())
					require.NoError(t, err)
					_, err = s.Recv()
					both[i] = status.Convert(err)
				}
				assert.Equal(t, unary[0].String(), unary[1].String())
				assert.Len(t, unary[1].Details(), len(unary[0].Details()))
				assert.Equal(t, both[0].String(), both[1].String())
				assert.Len(t, both[1].Details(), len(both[0].Details()))
			})
		})
	}
}

// The error of the layers has its status, and matches the error of the handler.
func TestHandlerErrorInLayers(t *testing.T) {
	st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&pb.Payload{Body: []byte("why")})
	require.NoError(t, err)
	failure := fmt.Errorf("%w (while %w): %w: %w", st.Err(), context.Canceled, layer.ErrNotReady, errPlain)
	inside := &layer.Error{Layer: "retry", Err: newHandlerError(failure)}
	for _, kind := range []error{layer.ErrNotReady, context.Canceled, errPlain} {
		require.NotErrorIs(t, inside, kind)
	}
	outside := toStatus(t.Context(), inside)
	for _, kind := range []error{layer.ErrNotReady, context.Canceled, errPlain} {
		require.ErrorIs(t, outside, kind)
	}
	assert.Equal(t, codes.FailedPrecondition, status.Code(outside))
	assert.Len(t, status.Convert(outside).Details(), 1)
	var out *layer.Error
	require.ErrorAs(t, outside, &out)
	assert.Equal(t, "retry", out.Layer)

	late := &layer.Error{Layer: "timeout", Kind: layer.ErrTimeout, Err: newHandlerError(failure)}
	assert.Equal(t, codes.DeadlineExceeded, Code(late), "the limit is the layer's")
	assert.Equal(t, codes.Canceled, Code(newHandlerError(fmt.Errorf("around: %w", context.Canceled))))
	assert.Equal(t, codes.Unknown, Code(newHandlerError(errPlain)))
}
