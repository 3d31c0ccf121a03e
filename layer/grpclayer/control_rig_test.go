package grpclayer

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/gotower/gotower/layer"
)

// plane is one instance of a control plane on a socket.
type plane struct {
	server
	stop func() // waits until it has stopped

	mu    sync.Mutex
	heard metadata.MD // of the last call
}

func (p *plane) UnaryCall(ctx context.Context, r *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	p.mu.Lock()
	p.heard, _ = metadata.FromIncomingContext(ctx)
	p.mu.Unlock()
	return p.server.UnaryCall(ctx, r)
}

func (p *plane) header(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard.Get(name)[0]
}

// servePlane listens on addr. The port of addr may be 0.
func servePlane(t testing.TB, addr string, wrap func(net.Listener) net.Listener, opts ...grpc.ServerOption) *plane {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	return servePlaneOn(t, l, wrap, opts...)
}

func servePlaneOn(t testing.TB, l net.Listener, wrap func(net.Listener) net.Listener, opts ...grpc.ServerOption) *plane {
	t.Helper()
	p := &plane{}
	p.addr = l.Addr().String()
	p.grpc = grpc.NewServer(opts...)
	pb.RegisterTestServiceServer(p.grpc, p)
	if wrap != nil {
		l = wrap(l)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.grpc.Serve(l)
	}()
	p.stop = sync.OnceFunc(func() {
		p.grpc.Stop()
		<-done
	})
	t.Cleanup(p.stop)
	return p
}

func portOf(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return port
}

// control makes a ControlPlaneConn that reconnects quickly and is closed with
// the test.
func control(t testing.TB, cfg ControlPlaneConfig) *ControlPlaneConn {
	t.Helper()
	if cfg.Backoff == (layer.Backoff{}) {
		cfg.Backoff = layer.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second // the machine may be busy
	}
	c, err := NewControlPlaneConn(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(done)
	})
	return c
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what func() bool, why string) {
	t.Helper()
	require.Eventually(t, what, 30*time.Second, time.Millisecond, why)
}

// nodeOf finds the first node called name.
func nodeOf(n layer.Node, name string) (layer.Node, bool) {
	if n.Name == name {
		return n, true
	}
	for _, child := range n.Children {
		if found, ok := nodeOf(child, name); ok {
			return found, true
		}
	}
	if n.Next != nil {
		return nodeOf(*n.Next, name)
	}
	return layer.Node{}, false
}

func waiting(c *ControlPlaneConn) int {
	n, _ := nodeOf(c.Describe(), "queue")
	for _, a := range n.State {
		if a.Key == "waiting" {
			switch v := a.Value.(type) {
			case int:
				return v
			case int64:
				return int(v)
			}
		}
	}
	return -1
}

func mustPort(t testing.TB, addr string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	require.NoError(t, err)
	return a.Port
}

// listenAlike listens on the same port of several hosts.
func listenAlike(t testing.TB, first, second string) (net.Listener, net.Listener) {
	t.Helper()
	for {
		one, err := net.Listen("tcp", first+":0")
		require.NoError(t, err)
		if two, err := net.Listen("tcp", second+":"+portOf(t, one.Addr().String())); err == nil {
			return one, two
		}
		one.Close() // the port is in use
	}
}
