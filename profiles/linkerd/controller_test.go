package linkerd

import (
	"context"
	"iter"
	"net"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

// controller is a destination service. The test plays its streams, each one
// as it comes.
type controller struct {
	destination.UnimplementedDestinationServer
	streams chan *profileStream
}

type profileStream struct {
	*destination.GetDestination
	ctx      context.Context
	messages chan *destination.DestinationProfile
	end      chan error
}

func newController() *controller { return &controller{streams: make(chan *profileStream)} }

func (c *controller) GetProfile(req *destination.GetDestination, out grpc.ServerStreamingServer[destination.DestinationProfile]) error {
	s := &profileStream{req, out.Context(), make(chan *destination.DestinationProfile), make(chan error)}
	select {
	case c.streams <- s:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	for {
		select {
		case m := <-s.messages:
			if err := out.Send(m); err != nil {
				return err
			}
		case err := <-s.end:
			return err
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// serve starts a gRPC server on addr ("" is any free port of the loopback),
// and returns its address and what stops it.
func (c *controller) serve(t testing.TB, addr string) (string, func()) {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	server := grpc.NewServer()
	destination.RegisterDestinationServer(server, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop := func() {
		server.Stop()
		<-done
	}
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

func dial(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	fast := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: fast, MinConnectTimeout: 20 * time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// watching is one watch of a controller, from both sides.
type watching struct {
	t *testing.T
	*controller
	pull func() (*profiles.Profile, error, bool)
	stop func()
}

func watch(ctx context.Context, t *testing.T, opts ...Option) *watching {
	t.Helper()
	c := newController()
	addr, _ := c.serve(t, "")
	opts = append([]Option{WithBackoff(layer.Backoff{Min: 1, Max: 1})}, opts...)
	pull, stop := iter.Pull2(New(dial(t, addr), opts...).Watch(ctx, "web:80"))
	t.Cleanup(stop)
	return &watching{t, c, pull, stop}
}

// during pulls once while play plays the controller's side.
func (w *watching) during(play func()) (*profiles.Profile, bool, error) {
	w.t.Helper()
	played := make(chan struct{})
	go func() {
		defer close(played)
		play()
	}()
	p, err, ok := w.pull()
	select {
	case <-played:
	case <-time.After(20 * time.Second): // only in a test that fails
		require.FailNow(w.t, "the play was not over", "%v, %v, %v", p, err, ok)
	}
	return p, ok, err
}

func fqn(name string) *destination.DestinationProfile {
	return &destination.DestinationProfile{FullyQualifiedName: name}
}
