package grpclayer

import (
	"context"
	"io"
	"iter"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
)

// news is one item of a source.
type news struct {
	update resolve.Update
	err    error
}

// source is a resolver that yields the given items, and ends when it is closed.
type source chan news

func newSource(first ...news) source {
	s := make(source, 64)
	for _, n := range first {
		s <- n
	}
	return s
}

func (s source) Resolve(ctx context.Context, _ string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		for {
			select {
			case n, ok := <-s:
				if !ok || !yield(n.update, n.err) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

func replace(addrs ...string) news {
	u := resolve.Update{Kind: resolve.Replace}
	for _, a := range addrs {
		u.Endpoints = append(u.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: netip.MustParseAddrPort(a)}})
	}
	return news{update: u}
}

// server is one instance of the test service of gRPC.
type server struct {
	pb.UnimplementedTestServiceServer
	addr  string
	calls atomic.Int64
	open  atomic.Int64 // streams and calls under way
	delay atomic.Int64 // of a unary call, in ns
	code  atomic.Int32 // to fail with
	grpc  *grpc.Server
}

func (s *server) enter(ctx context.Context) (func(), error) {
	s.calls.Add(1)
	s.open.Add(1)
	leave := func() { s.open.Add(-1) }
	if d := time.Duration(s.delay.Load()); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	if c := codes.Code(s.code.Load()); c != codes.OK {
		leave()
		return nil, status.Error(c, "as requested")
	}
	return leave, nil
}

func (s *server) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return &pb.SimpleResponse{ServerId: s.addr}, nil
}

func (s *server) StreamingOutputCall(
	r *pb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[pb.StreamingOutputCallResponse],
) error {
	leave, err := s.enter(out.Context())
	if err != nil {
		return err
	}
	defer leave()
	for range r.GetResponseParameters() {
		if err := out.Send(new(pb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) StreamingInputCall(in grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	leave, err := s.enter(in.Context())
	if err != nil {
		return err
	}
	defer leave()
	for n := int32(0); ; n++ {
		switch _, err := in.Recv(); err {
		case nil:
		case io.EOF:
			return in.SendAndClose(&pb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		default:
			return err
		}
	}
}

func (s *server) FullDuplexCall(
	both grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse],
) error {
	leave, err := s.enter(both.Context())
	if err != nil {
		return err
	}
	defer leave()
	for {
		switch _, err := both.Recv(); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
		if err := both.Send(new(pb.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

// serve starts a server on a network in memory.
func serve(t *testing.T, n *layertest.Network, addr string, opts ...grpc.ServerOption) *server {
	t.Helper()
	l, err := n.Listen("tcp", addr)
	require.NoError(t, err)
	s := &server{addr: addr, grpc: grpc.NewServer(opts...)}
	pb.RegisterTestServiceServer(s.grpc, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(func() {
		s.grpc.Stop()
		<-done
	})
	return s
}

// dial makes a client with our options. It is closed before the test ends.
func dial(t *testing.T, n *layertest.Network, r resolve.Resolver, opts ...Option) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(name+":///web.default:80", append(DialOptions(name, r, opts...), over(n)...)...)
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// over makes a client connect over a network in memory.
func over(n *layertest.Network) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return n.DialContext(ctx, "tcp", addr)
		}),
	}
}

func call(ctx context.Context, cc grpc.ClientConnInterface, opts ...grpc.CallOption) (string, error) {
	rsp, err := pb.NewTestServiceClient(cc).UnaryCall(ctx, new(pb.SimpleRequest), opts...)
	return rsp.GetServerId(), err
}

func brief(err error) string {
	if err == nil {
		return ""
	}
	_, text, _ := strings.Cut(err.Error(), "desc = ")
	return text
}

var waitForReady = grpc.WaitForReady(true)
