package tap

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/layer/grpclayer"
	"github.com/gotower/gotower/tap/tappb"
)

// interop is gRPC's test service.
type interop struct {
	testpb.UnimplementedTestServiceServer
	half chan struct{} // a stream continues when it is closed
}

func (s interop) code(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md["fail"]) > 0 {
		return status.Error(codes.NotFound, "no such thing")
	}
	return nil
}

func (s interop) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: "me"}, s.code(ctx)
}

func (s interop) StreamingOutputCall(
	_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	out.SetTrailer(metadata.Pairs("sum", "2"))
	_ = out.SetHeader(metadata.Pairs("color", "blue"))
	if err := out.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
		return err
	}
	select {
	case <-s.half:
	case <-out.Context().Done():
		return out.Context().Err()
	}
	if err := out.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
		return err
	}
	return s.code(out.Context())
}

func (s interop) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	if err := in.SendHeader(metadata.Pairs("color", "red")); err != nil {
		return err
	}
	for {
		if _, err := in.Recv(); err != nil {
			break
		}
	}
	if err := s.code(in.Context()); err != nil {
		return err
	}
	return in.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: 3})
}

func (s interop) FullDuplexCall(
	both grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse],
) error {
	for {
		if _, err := both.Recv(); err != nil {
			return s.code(both.Context())
		}
		if err := both.Send(new(testpb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

// rig is a gRPC server and a client, each with its own tap.
type rig struct {
	client testpb.TestServiceClient
	addr   string
	conn   *grpc.ClientConn
	server *grpc.Server
	half   chan struct{}
	near   *watcher // of the client
	far    *watcher // of the server
}

func newRig(t *testing.T, sopts ...grpc.ServerOption) *rig {
	t.Helper()
	here, there := new(Registry), new(Registry)
	r := &rig{half: make(chan struct{}), near: watchOn(t, here, &tappb.WatchRequest{Fields: true}), far: watchOn(t, there, &tappb.WatchRequest{Fields: true})}
	l, err := net.Listen("tcp", freeport.Addr(t))
	require.NoError(t, err)
	r.addr = l.Addr().String()
	r.server = grpc.NewServer(append(grpclayer.NewServer(Layer(there, grpclayer.Accessor{}, Inbound)).ServerOptions(), sopts...)...)
	testpb.RegisterTestServiceServer(r.server, interop{half: r.half})
	var served sync.WaitGroup
	served.Go(func() { _ = r.server.Serve(l) })
	t.Cleanup(func() { r.server.Stop(); served.Wait() })
	r.conn, err = grpc.NewClient(r.addr, append(grpclayer.NewClient(Layer(here, grpclayer.Accessor{}, Outbound)).DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.conn.Close() })
	r.client = testpb.NewTestServiceClient(r.conn)
	return r
}

// calls are the four shapes, each to its end.
func (r *rig) calls() map[string]func(ctx context.Context, opts ...grpc.CallOption) error {
	return map[string]func(ctx context.Context, opts ...grpc.CallOption) error{
		"UnaryCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := r.client.UnaryCall(ctx, new(testpb.SimpleRequest), opts...)
			return err
		},
		"StreamingOutputCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := r.client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest), opts...)
			if err != nil {
				return err
			}
			return drain(s.Recv)
		},
		"StreamingInputCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := r.client.StreamingInputCall(ctx, opts...)
			if err != nil {
				return err
			}
			_ = s.Send(new(testpb.StreamingInputCallRequest))
			_, err = s.CloseAndRecv()
			return err
		},
		"FullDuplexCall": func(ctx context.Context, opts ...grpc.CallOption) error {
			s, err := r.client.FullDuplexCall(ctx, opts...)
			if err != nil {
				return err
			}
			_ = s.Send(new(testpb.StreamingOutputCallRequest))
			_ = s.CloseSend()
			return drain(s.Recv)
		},
	}
}

func drain[M any](recv func() (M, error)) error {
	for {
		switch _, err := recv(); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// Calls of all four kinds, successful and failed, as their client and their server see
// them.
func TestGRPCEvents(t *testing.T) {
	bytes := map[string]uint64{"UnaryCall": 5 + 4, "StreamingOutputCall": 2 * 5, "StreamingInputCall": 5 + 2, "FullDuplexCall": 5}
	r := newRig(t)
	close(r.half)
	for shape, run := range r.calls() {
		for _, fail := range []bool{false, true} {
			t.Run(shape+map[bool]string{true: "/fails"}[fail], func(t *testing.T) {
				ctx, want, code := t.Context(), bytes[shape], codes.OK
				if fail {
					ctx, code = metadata.AppendToOutgoingContext(ctx, "fail", "yes"), codes.NotFound
					if shape == "UnaryCall" || shape == "StreamingInputCall" {
						want = 0
					}
				}
				var p peer.Peer
				err := run(ctx, grpc.Peer(&p))
				require.Equal(t, code, status.Code(err))
				for side, w := range map[string]*watcher{"client": r.near, "server": r.far} {
					got := readAll(w)
					require.Equal(t, "qre", kinds(got), side)
					e := got[0]
					require.Equal(t, r.addr, e.Destination.String(), side)
					require.Equal(t, "POST", e.RequestInit.Method)
					require.Equal(t, r.addr, e.RequestInit.Authority, side)
					require.Equal(t, "/grpc.testing.TestService/"+shape, e.RequestInit.Path)
					require.Equal(t, 200, got[1].ResponseInit.Status)
					end := got[2].ResponseEnd
					require.NotNil(t, end.GRPCStatus, side)
					require.Equal(t, code, *end.GRPCStatus, side)
					require.Nil(t, end.ResetCode)
					require.Equal(t, want, end.Bytes, side)
					if side == "server" {
						require.Equal(t, p.LocalAddr.String(), e.Source.String())
						require.Equal(t, map[string]string{"tls": "loopback"}, e.SourceLabels)
					}
					if shape == "StreamingInputCall" {
						require.Contains(t, got[1].ResponseInit.Headers, Field{"color", "red"}, side)
					}
					if shape == "StreamingOutputCall" {
						require.Contains(t, got[1].ResponseInit.Headers, Field{"color", "blue"}, side)
						require.Contains(t, end.Trailers, Field{"sum", "2"}, side)
					}
				}
			})
		}
	}
}

// A response starts with the first message, not with the open stream.
func TestGRPCStreamDurations(t *testing.T) {
	r := newRig(t)
	s, err := r.client.StreamingOutputCall(t.Context(), new(testpb.StreamingOutputCallRequest))
	require.NoError(t, err)
	require.Equal(t, "q", kinds(readAll(r.near)), "there is no header yet")
	_, err = s.Recv()
	require.NoError(t, err)
	for _, w := range []*watcher{r.near, r.far} {
		got := readAll(w)
		require.Equal(t, "r", kinds(got[len(got)-1:]))
	}
	began := time.Now()
	_, err = s.Header()
	require.NoError(t, err)
	pause := time.Since(began)
	close(r.half)
	require.NoError(t, drain(s.Recv))
	for _, w := range []*watcher{r.near, r.far} {
		got := readAll(w)
		require.Equal(t, "e", kinds(got))
		require.GreaterOrEqual(t, *got[0].ResponseEnd.SinceResponseInit, pause)
	}
}

// A call without a response has no ResponseInit.
func TestGRPCWithoutResponse(t *testing.T) {
	r := newRig(t)
	t.Run("the client leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := r.client.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		cancel()
		require.Equal(t, codes.Canceled, status.Code(drain(s.Recv)))
		// The end may come in another goroutine, which saw ctx end first.
		require.Eventually(t, func() bool { return r.near.inFlight.Load() == 0 }, 20*time.Second, time.Millisecond)
		got := readAll(r.near)
		require.Equal(t, "qre", kinds(got))
		require.Equal(t, uint32(8), *got[2].ResponseEnd.ResetCode)
		require.Nil(t, got[2].ResponseEnd.GRPCStatus)
		require.Eventually(t, func() bool { return r.far.inFlight.Load() == 0 }, 20*time.Second, time.Millisecond)
		got = readAll(r.far)
		require.Equal(t, uint32(8), *got[len(got)-1].ResponseEnd.ResetCode)
	})
	t.Run("the server is not there", func(t *testing.T) {
		r.server.Stop()
		for shape, run := range r.calls() {
			require.Equal(t, codes.Unavailable, status.Code(run(t.Context())), shape)
			got := readAll(r.near)
			require.Equal(t, "qe", kinds(got), shape)
			require.Nil(t, got[1].ResponseEnd.GRPCStatus)
		}
	})
}

// Rows of Top have the same outcome as events.
func TestGRPCTop(t *testing.T) {
	there := new(Registry)
	rows := countAll(t, there, nil).rows
	svc := grpclayer.NewServer(Layer(there, grpclayer.Accessor{}, Inbound))
	info := &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}
	for _, code := range []codes.Code{codes.OK, codes.NotFound, codes.Internal} {
		_, _ = svc.Unary(t.Context(), nil, info, func(context.Context, any) (any, error) {
			return new(testpb.Empty), status.Error(code, "as told")
		})
	}
	row := rows.answer(1).GetRows()[0]
	require.EqualValues(t, 3, row.GetCount())
	require.EqualValues(t, 2, row.GetSuccesses())
}
