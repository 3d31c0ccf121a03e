package tap

import (
	"context"
	"net"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gotower/gotower/internal/freeport"
	"github.com/gotower/gotower/tap/tappb"
)

// running is a process with a gRPC server on 127.0.0.1 that can be stopped.
type running struct {
	addr string
	reg  *Registry
	srv  *Server
	stop func()
}

// serving is the service of a process.
type serving struct {
	reg      *Registry
	srv      *Server
	register func(*grpc.Server)
	opts     []grpc.ServerOption
}

// ours is a process with gotower's tap.
func ours(reg *Registry) serving {
	srv := NewServer(reg)
	return serving{reg: reg, srv: srv, register: func(g *grpc.Server) { srv.Register(g) }}
}

// linkerds is a process with linkerd's tap only.
func linkerds(reg *Registry) serving {
	srv := NewServer(reg)
	return serving{reg: reg, srv: srv, register: func(g *grpc.Server) { pb.RegisterTapServer(g, srv) }}
}

// tapless is a process without a tap.
func tapless() serving { return serving{register: func(*grpc.Server) {}} }

// start starts a process, at addr if that is not "".
func start(t testing.TB, addr string, s serving) *running {
	t.Helper()
	if addr == "" {
		addr = freeport.Addr(t) // and so it is between this process and the next one there
	}
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	g := grpc.NewServer(s.opts...)
	s.register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	p := &running{addr: l.Addr().String(), reg: s.reg, srv: s.srv, stop: func() { g.Stop(); <-done }}
	t.Cleanup(p.stop)
	return p
}

// fromHere has clients that come from this machine.
type fromHere struct{ net.Listener }

type fromHereConn struct{ net.Conn }

func (l fromHere) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return fromHereConn{conn}, nil
}

func (fromHereConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// startInside starts a process in the bubble of a test, where nothing takes time,
// and returns it as one that is followed.
func startInside(t *testing.T, s serving) (p Process, stop func()) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	g := grpc.NewServer(s.opts...)
	s.register(g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(fromHere{l})
	}()
	conn, err := grpc.NewClient("passthrough:///inside", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	return Process{Name: "p", Conn: conn}, func() {
		require.NoError(t, conn.Close())
		g.Stop()
		<-done
	}
}

func (p *running) dial(t testing.TB) *grpc.ClientConn {
	t.Helper()
	return dial(t, p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// process is p as one that is followed.
func (p *running) process(t testing.TB, name string) Process {
	t.Helper()
	return Process{Name: name, Conn: p.dial(t)}
}

// at is a process that may not be there.
func at(t testing.TB, addr, name string) Process {
	t.Helper()
	return (&running{addr: addr}).process(t, name)
}

// quickly returns an option with short backoffs, so that tests do not wait.

// traffic sends requests until the test ends, or the function is called.
func traffic(t testing.TB, reg *Registry, path string) (stop func()) {
	t.Helper()
	svc := stand(reg, endpoint{&reply{status: 200}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			_, _ = svc.Call(ctx, get(path))
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// foreign is a stream of a client of another machine.
type foreign struct {
	grpc.ServerStreamingServer[tappb.TopResponse]
	ctx context.Context
}

func (f foreign) Context() context.Context { return f.ctx }
