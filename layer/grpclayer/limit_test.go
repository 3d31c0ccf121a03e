package grpclayer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// limits are layers that end a call.
var limits = map[string]Stack{
	"timeout": NewStack().Timeout(100 * time.Millisecond),
	"head":    NewStack().ResponseHeaderTimeout(100 * time.Millisecond),
	"per try": NewStack().Retry(RetryPolicy{AttemptTimeout: 100 * time.Millisecond}),
}

// A hanging endpoint opens its breaker and that of the calls, for each kind of
// limit.
func TestBreakerHangingCalls(t *testing.T) {
	for name, limit := range limits {
		for where, opts := range map[string][]Option{
			"endpoint": {WithCallLayer(limit.Layer()), WithEndpointLayer(NewEndpointStack().Breaker(layer.BreakerPolicy{}).Layer())},
			"calls":    {WithCallLayer(limit.Breaker(layer.BreakerPolicy{}).Layer())},
		} {
			t.Run(name+" "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var n layertest.Network
					hangs := make(chan struct{})
					serveFront(t, &n, a1, &front{unary: func(context.Context) error {
						<-hangs
						return nil
					}})
					t.Cleanup(func() { close(hangs) })
					cc := dial(t, &n, newSource(replace(a1)), opts...)
					cc.Connect()
					synctest.Wait()
					var err error
					for range 12 {
						_, err = call(t.Context(), cc)
						require.Error(t, err)
					}
					require.ErrorIs(t, err, layer.ErrNotReady)
					require.ErrorContains(t, err, "breaker")
				})
			})
		}
	}
}

// So does an endpoint with hanging streams.
func TestBreakerHangingStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		serve(t, &n, a1)
		part := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(time.Second, func() { cancel(layer.ErrIdleTimeout) })
				return next.Call(ctx, c)
			})
		}
		cc := dial(t, &n, newSource(replace(a1)),
			WithCallLayer(part), WithEndpointLayer(NewEndpointStack().Breaker(layer.BreakerPolicy{}).Layer()))
		var err error
		for range 12 {
			var s grpc.BidiStreamingClient[outRequest, outResponse]
			if s, err = pb.NewTestServiceClient(cc).FullDuplexCall(t.Context()); err != nil {
				break
			}
			_, err = s.Recv()
			require.Error(t, err)
			synctest.Wait()
		}
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorContains(t, err, "breaker")
	})
}

// gRPC reports CANCELLED for a limit that is not the deadline of the context.
func TestAttemptLimit(t *testing.T) {
	cancelled := status.Error(codes.Canceled, "context canceled")
	ended := func(cause error) *attempt {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return &attempt{Context: ctx}
	}
	err := ended(layer.ErrResponseHeaderTimeout).explain(cancelled, nil, nil)
	require.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
	require.ErrorIs(t, err, cancelled)
	require.EqualError(t, err, "rpc error: code = DeadlineExceeded desc = context canceled: response header timeout")
	assert.Equal(t, codes.DeadlineExceeded, Code(err))
	assert.Equal(t, codes.DeadlineExceeded, status.Code(toStatus(t.Context(), err)))
	assert.Equal(t, layer.Failure, Classify(layer.Outcome[*Reply]{Err: err}))
	assert.Equal(t, layer.Retryable, Classify(layer.Outcome[*Reply]{Err: ended(layer.ErrAttemptTimeout).explain(cancelled, nil, nil)}))

	for _, other := range []*attempt{ended(nil), ended(errPlain), {Context: t.Context()}} {
		assert.Equal(t, cancelled, other.explain(cancelled, nil, nil))
	}
	lost := status.Error(codes.Unavailable, "lost")
	assert.Equal(t, lost, ended(layer.ErrResponseHeaderTimeout).explain(lost, nil, nil))
	require.NoError(t, ended(layer.ErrResponseHeaderTimeout).explain(nil, nil, nil))
}

// failingCreds are call credentials that fail.
type failingCreds struct{}

func (failingCreds) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, status.Error(codes.Unavailable, "no token")
}

func (failingCreds) RequireTransportSecurity() bool { return false }

// A message that the client cannot send is not a failure of an endpoint. The
// test checks the texts of gRPC.
func TestBreakerUnsentCalls(t *testing.T) {
	for name, tt := range map[string]struct {
		req  *pb.SimpleRequest
		opts []grpc.CallOption
		want codes.Code
	}{
		"too big": {
			&pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, 100)}},
			[]grpc.CallOption{grpc.MaxCallSendMsgSize(50)}, codes.ResourceExhausted,
		},
		"not UTF-8":   {&pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Message: "\xff"}}, nil, codes.Internal},
		"credentials": {new(pb.SimpleRequest), []grpc.CallOption{grpc.PerRPCCredentials(failingCreds{})}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				s := serve(t, &n, a1)
				cc := dial(t, &n, newSource(replace(a1)), WithEndpointLayer(NewEndpointStack().Breaker(layer.BreakerPolicy{}).Layer()))
				for range 20 {
					_, err := pb.NewTestServiceClient(cc).UnaryCall(t.Context(), tt.req, tt.opts...)
					require.Equal(t, tt.want, status.Code(err), "%v", err)
				}
				assert.Zero(t, s.calls.Load())
				_, err := call(t.Context(), cc)
				require.NoError(t, err)
			})
		})
	}
}

// A server that cannot send its reply returns the same text as a client.
func TestBreakerServerMarshalError(t *testing.T) {
	unsent := status.Error(codes.Internal, "grpc: error while marshaling: string field contains invalid UTF-8")
	for name, tt := range map[string]struct {
		info balancer.DoneInfo
		want layer.Class
	}{
		"here":          {balancer.DoneInfo{Err: unsent, BytesSent: true}, layer.Ignorable},
		"there":         {balancer.DoneInfo{Err: unsent, BytesSent: true, BytesReceived: true}, layer.Failure},
		"nothing sent":  {balancer.DoneInfo{Err: unsent}, layer.Ignorable},
		"no call":       {balancer.DoneInfo{}, layer.Ignorable},
		"served":        {balancer.DoneInfo{BytesSent: true, BytesReceived: true}, layer.Success},
		"another error": {balancer.DoneInfo{Err: status.Error(codes.Internal, ""), BytesSent: true}, layer.Failure},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Pick{conn: newConn("web:80", a1), attempt: &attempt{Context: t.Context()}}
			err := p.outcome(tt.info)
			assert.Equal(t, tt.want, layer.Classifier[*Pick](Classify[*Pick]).Classify(t.Context(), layer.Outcome[*Pick]{Err: err, Ended: true}))
		})
	}
}
