package tap

import (
	"context"
	"net"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// process is a real gRPC server on 127.0.0.1 and a client of it.
type process struct {
	reg   *Registry
	srv   *Server
	grpc  *grpc.Server
	conn  *grpc.ClientConn
	ended chan error // what each Observe returned
}

// listen starts a process. wrap may change the listener.
func listen(t testing.TB, srv *Server, wrap func(net.Listener) net.Listener, opts ...grpc.ServerOption) *process {
	t.Helper()
	p := &process{reg: srv.reg, srv: srv, ended: make(chan error, 200)}
	opts = append(opts, grpc.StreamInterceptor(
		func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			err := h(srv, s)
			p.ended <- err
			return err
		}))
	p.grpc = grpc.NewServer(opts...)
	srv.Register(p.grpc)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if wrap != nil {
		l = wrap(l)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.grpc.Serve(l)
	}()
	t.Cleanup(func() { p.grpc.Stop(); <-done })
	p.conn = dial(t, l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	return p
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// observe opens a stream, and returns when the server has sent the headers.
func (p *process) observe(ctx context.Context, t testing.TB, req *pb.ObserveRequest) grpc.ServerStreamingClient[pb.TapEvent] {
	t.Helper()
	stream, err := pb.NewTapClient(p.conn).Observe(ctx, req)
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	return stream
}

func recv(t testing.TB, stream grpc.ServerStreamingClient[pb.TapEvent]) Event {
	t.Helper()
	m, err := stream.Recv()
	require.NoError(t, err)
	return eventOf(m)
}
