package balance_test

import (
	"context"
	"iter"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	wire "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/linkerd"
)

type getStream = grpc.ServerStreamingServer[destination.Update]

// mood is the behaviour of a control plane. The zero mood is healthy.
type mood struct {
	lost    bool           // packets to it are lost
	refuses bool           // no listener
	frozen  bool           // health checks are not answered
	accept  func(net.Conn) // instead of speaking gRPC
	answer  func(firstMessage *destination.Update, to getStream) error
}

// plane is a destination controller on a network in memory, with one connection to it.
type plane struct {
	destination.UnimplementedDestinationServer
	network layertest.Network
	stop    func()
	conn    *grpc.ClientConn
	dials   atomic.Int64

	mu           sync.Mutex
	mood         mood
	firstMessage *destination.Update
	opened       map[string]int // streams, by target

	live map[string]bool // endpoints in use
}

const (
	planeAt = "10.9.9.9:8086"
	// mostDial is gRPC's longest pause between dials, but for a fifth at random.
	mostDial = 10 * time.Second
)

// firstMessage returns the first message of a stream, with the given endpoints.
func firstMessage(addrs ...string) *destination.Update {
	set := &destination.WeightedAddrSet{}
	for _, a := range addrs {
		tcp := &wire.TcpAddress{Port: 80} // without an IP it cannot be read
		if ip, err := netip.ParseAddr(a); err == nil {
			b := ip.As4()
			n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
			tcp.Ip = &wire.IPAddress{Ip: &wire.IPAddress_Ipv4{Ipv4: n}}
		}
		set.Addrs = append(set.Addrs, &destination.WeightedAddr{Addr: tcp})
	}
	return &destination.Update{Update: &destination.Update_Add{Add: set}}
}

func noEndpointsMessage(exists bool) *destination.Update {
	return &destination.Update{Update: &destination.Update_NoEndpoints{NoEndpoints: &destination.NoEndpoints{Exists: exists}}}
}

func newPlane(t *testing.T, first *destination.Update) *plane {
	p := &plane{stop: func() {}, opened: map[string]int{}, live: map[string]bool{}}
	p.become(t, mood{}, first)
	var err error
	p.conn, err = grpc.NewClient("passthrough:///"+planeAt,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(p.dial),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute}), // the least that servers allow
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostDial},
			MinConnectTimeout: mostDial,
		}),
		grpc.WithStreamInterceptor(p.count),
	)
	require.NoError(t, err)
	return p
}

func (p *plane) close() {
	_ = p.conn.Close()
	p.stop()
}

// become changes the mood and the answer. Open streams end, unless their end is lost too.
func (p *plane) become(t *testing.T, m mood, firstMessage *destination.Update) {
	p.mu.Lock()
	p.mood, p.firstMessage = m, firstMessage
	p.mu.Unlock()
	if m.lost {
		return
	}
	p.stop()
	p.stop = func() {}
	if m.refuses {
		return
	}
	l, err := p.network.Listen("tcp", planeAt)
	require.NoError(t, err)
	var done sync.WaitGroup
	if m.accept == nil {
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			if m.frozen {
				<-s.Context().Done()
			}
			return status.Error(codes.Unimplemented, "unknown service")
		}))
		destination.RegisterDestinationServer(server, p)
		done.Go(func() { _ = server.Serve(l) })
		p.stop = func() { server.Stop(); done.Wait() }
		return
	}
	done.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			defer conn.Close()
			m.accept(conn)
		}
	})
	p.stop = func() { _ = l.Close(); done.Wait() }
}

func (p *plane) now() (mood, *destination.Update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mood, p.firstMessage
}

func (p *plane) Get(_ *destination.GetDestination, to getStream) error {
	m, firstMessage := p.now()
	if m.answer != nil {
		return m.answer(firstMessage, to)
	}
	return sendAndWait(firstMessage, to)
}

func sendAndWait(firstMessage *destination.Update, to getStream) error {
	if err := to.Send(firstMessage); err != nil {
		return err
	}
	<-to.Context().Done()
	return to.Context().Err()
}

func fails(code codes.Code) mood {
	return mood{answer: func(*destination.Update, getStream) error { return status.Error(code, "out of order") }}
}

func (p *plane) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.dials.Add(1)
	conn, err := p.network.DialContext(ctx, "tcp", planeAt)
	return leaky{conn, p}, err
}

// leaky is a connection that drops data.
type leaky struct {
	net.Conn
	to *plane
}

func (l leaky) Write(b []byte) (int, error) {
	if m, _ := l.to.now(); m.lost {
		return len(b), nil
	}
	return l.Conn.Write(b)
}

type targetKey struct{}

func (p *plane) count(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	p.mu.Lock()
	p.opened[ctx.Value(targetKey{}).(string)]++
	p.mu.Unlock()
	return next(ctx, desc, cc, method, opts...)
}

// serve makes the service of an endpoint, which responds with its name. It is live until
// the balancer releases it.
func (p *plane) serve(ctx context.Context, t discover.Target) layer.Service[string, string] {
	at := t.Endpoint.Addr.Addr().String()
	p.mu.Lock()
	p.live[at] = true
	p.mu.Unlock()
	context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.live, at)
	})
	return layer.Func[string, string](func(context.Context, string) (string, error) { return at, nil })
}

// services are the balancers of a program: one for each target, released after a minute
// without requests. A request names its target, and a response the endpoint.
func (p *plane) services(ctx context.Context, r resolve.Resolver) layer.Service[string, string] {
	targets := layer.NewCache(ctx, func(ctx context.Context, target string) layer.Service[string, string] {
		return layer.NewStack[string, string]().Queue(10, 3*time.Second).Service(balance.Resolve(ctx, r, target, p.serve))
	}, layer.CachePolicy{IdleTimeout: time.Minute})
	return targets.Router(func(target string) (string, error) { return target, nil })
}

// source resolves by the controller.
func (p *plane) source(b resolve.Backoff) resolve.Resolver {
	source := linkerd.New(p.conn, linkerd.WithBackoff(b), linkerd.WithStreamLimits(linkerd.Limits{}))
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		return source.Resolve(context.WithValue(ctx, targetKey{}, target), target)
	})
}

func (p *plane) attempts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.opened)
}
