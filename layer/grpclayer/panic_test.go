package grpclayer

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

// panicError is an error that panics in its method Error.
type panicError struct{}

func (panicError) Error() string { panic("text") }

// A panic of a callback in another goroutine does not stop the process or the
// client.
func TestPanicOfCallback(t *testing.T) {
	withEnd := func(next layer.Service[pick, *Pick]) layer.Service[pick, *Pick] {
		return layer.Func[pick, *Pick](func(ctx context.Context, p pick) (*Pick, error) {
			rsp, err := next.Call(ctx, p)
			if err == nil {
				rsp = PickCompletion(ctx, rsp, brittle{})
			}
			return rsp, err
		})
	}

	for name, tt := range map[string]struct {
		resolver resolve.Resolver
		opt      Option
		want     string // in the error of a call, if it fails
	}{
		"resolver at once": {resolver: resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
			panic("resolver")
		}), want: ": resolver"},
		"resolver later": {resolver: resolve.Func(func(context.Context, string) iter.Seq2[resolve.Update, error] {
			return func(yield func(resolve.Update, error) bool) {
				yield(replace(a1).update, nil)
				panic("resolver")
			}
		})},
		"Introspect": {opt: WithOnBalancer(func(layer.Describer) { panic("introspect") })},
		"WithEndpointLayer": {opt: WithEndpointLayer(func(layer.Service[pick, *Pick]) layer.Service[pick, *Pick] {
			panic("endpoint")
		}), want: ": endpoint"},
		"WithEndpointLayer of nil": {opt: WithEndpointLayer(func(layer.Service[pick, *Pick]) layer.Service[pick, *Pick] {
			return nil
		}), want: "no service"},
		"the end of a pick": {opt: WithEndpointLayer(withEnd)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				serve(t, &n, a1)
				r := tt.resolver
				if r == nil {
					r = newSource(replace(a1))
				}
				cc := dial(t, &n, r, tt.opt)
				cc.Connect()
				synctest.Wait()
				for range 3 {
					_, err := call(t.Context(), cc)
					if tt.want == "" {
						require.NoError(t, err)
						continue
					}
					require.Equal(t, codes.Unavailable, status.Code(err))
					require.ErrorContains(t, err, tt.want)
				}
				if tt.want == "" { // its pick is ended by a goroutine of gRPC
					ctx, cancel := context.WithCancel(t.Context())
					_, err := pb.NewTestServiceClient(cc).FullDuplexCall(ctx)
					require.NoError(t, err)
					cancel()
					synctest.Wait()
				}
			})
		})
	}
}

// The cause of a context panics when a layer of a server ends a stream. The
// client gets the status.
func TestPanicOfCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n layertest.Network
		l := func(next Service) Service {
			return layer.Func[*Call, *Reply](func(ctx context.Context, c *Call) (*Reply, error) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(time.Second, func() { cancel(panicError{}) })
				return next.Call(ctx, c)
			})
		}
		serve(t, &n, a1, NewServer(l).ServerOptions()...)
		s, err := pb.NewTestServiceClient(dial(t, &n, newSource(replace(a1)))).FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = s.Recv()
		require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
	})
}

type panicCreds struct{ failingCreds }

func (panicCreds) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	panic("creds")
}

// brokenDecoder panics when a message is decoded.
type brokenDecoder struct{ encoding.CodecV2 }

func (brokenDecoder) Name() string                         { return "proto" }
func (brokenDecoder) Unmarshal(mem.BufferSlice, any) error { panic("decoder") }

// A stream that ends by a panic or an error of the client frees the slots of
// the call and of the endpoint at once.
func TestPanicOfStream(t *testing.T) {
	big := &outRequest{Payload: &pb.Payload{Body: make([]byte, 100)}}
	for name, tt := range map[string]struct {
		opt    grpc.CallOption
		panics any
		want   codes.Code
	}{
		"credentials": {opt: grpc.PerRPCCredentials(panicCreds{}), panics: "creds"},
		"encoder":     {opt: grpc.ForceCodecV2(brokenCodec{encoding.GetCodecV2("proto")}), panics: "broken"},
		"decoder":     {opt: grpc.ForceCodecV2(brokenDecoder{encoding.GetCodecV2("proto")}), panics: "decoder"},
		"too large":   {opt: grpc.MaxCallSendMsgSize(50), want: codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n layertest.Network
				serve(t, &n, a1)
				var seen layer.Describer
				var near ends
				cc := dial(t, &n, newSource(replace(a1)), WithCallLayer(NewStack().Limit(1).With("ends", near.layer).Layer()),
					WithEndpointLayer(NewEndpointStack().Limit(1).Layer()), WithOnBalancer(func(d layer.Describer) { seen = d }))
				use := func(opts ...grpc.CallOption) error {
					s, err := pb.NewTestServiceClient(cc).FullDuplexCall(t.Context(), opts...)
					if err != nil {
						return err
					}
					if err := s.Send(big); err != nil {
						return err
					}
					if _, err := s.Recv(); err != nil {
						return err
					}
					require.NoError(t, s.CloseSend())
					_, _ = s.Recv()
					return nil
				}
				for range 3 {
					if tt.panics != nil {
						require.PanicsWithValue(t, tt.panics, func() { _ = use(tt.opt) })
					} else {
						require.Equal(t, tt.want, status.Code(use(tt.opt)))
					}
					synctest.Wait()
					assertFree(t, seen)
				}
				require.NoError(t, use())
				assert.EqualValues(t, 1, near.complete.Load(), "only the last one is a success")
			})
		})
	}
}
