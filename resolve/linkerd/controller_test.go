package linkerd

import (
	"context"
	stdnet "net"
	"sync"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/gotower/gotower/resolve"
)

type getStream = grpc.ServerStreamingServer[destination.Update]

// handler is a Destination service that is one function.
type handler struct {
	destination.UnimplementedDestinationServer
	get func(*destination.GetDestination, getStream) error
}

func (h handler) Get(req *destination.GetDestination, to getStream) error { return h.get(req, to) }

// serve serves a controller on l until the test ends. Like linkerd's, it has no
// health service.
func serve(t testing.TB, l stdnet.Listener, get func(*destination.GetDestination, getStream) error, opts ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(opts...)
	destination.RegisterDestinationServer(server, handler{get: get})
	var done sync.WaitGroup
	done.Go(func() { assert.NoError(t, server.Serve(l)) })
	t.Cleanup(func() {
		server.Stop()
		done.Wait()
	})
	return server
}

func client(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient(target, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn
}

// loopback serves a controller on 127.0.0.1 and connects to it.
func loopback(t testing.TB, get func(*destination.GetDestination, getStream) error) *grpc.ClientConn {
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serve(t, l, get)
	return client(t, "passthrough:///"+l.Addr().String())
}

// inMemory is a controller that can be stopped and started within a bubble.
type inMemory struct {
	frozen bool   // answers no health check
	name   string // as its address

	mu       sync.Mutex
	listener *bufconn.Listener
}

func (m *inMemory) start(t testing.TB, get func(*destination.GetDestination, getStream) error) *grpc.Server {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener = bufconn.Listen(64 << 10)
	return serve(t, m.listener, get, grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if m.frozen {
			<-s.Context().Done()
		}
		return status.Error(codes.Unimplemented, "unknown service")
	}))
}

// connect returns a connection that tries again once a second.
func (m *inMemory) connect(t testing.TB) *grpc.ClientConn {
	return client(t, "passthrough:///controller",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (stdnet.Conn, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			conn, err := m.listener.DialContext(ctx)
			return named{conn, m.name}, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	)
}

// named is a connection to a server with a name.
type named struct {
	stdnet.Conn
	name string
}

func (n named) RemoteAddr() stdnet.Addr { return &stdnet.UnixAddr{Name: n.name} }

// twoServers opens streams to one server and sends calls to another.
type twoServers struct{ streams, calls grpc.ClientConnInterface }

func (c *twoServers) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.calls.Invoke(ctx, method, args, reply, opts...)
}

func (c *twoServers) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.streams.NewStream(ctx, desc, method, opts...)
}

// counted counts the calls that are made through a connection.
type counted struct {
	grpc.ClientConnInterface
	mu    sync.Mutex
	calls []time.Time
}

func (c *counted) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	c.mu.Lock()
	c.calls = append(c.calls, time.Now())
	c.mu.Unlock()
	return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}

func (c *counted) since(start time.Time) (calls []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.calls {
		if !at.Before(start) {
			calls = append(calls, at.Sub(start))
		}
	}
	return calls
}

// controller answers Get as the real one does: all that is known first, then
// what changes. It is the source that resolvetest scripts.
type controller struct {
	mu      sync.Mutex
	targets map[string]*served
	garble  func(*destination.Update) []*destination.Update // replaces the message that tell sends
}

type served struct {
	known resolve.Set
	cut   error // streams are refused with it
	feeds map[*feed]bool
	ends  int
}

type feed struct {
	queue []*destination.Update
	cut   *error // the stream ends with it; what it points to may be nil
	wake  chan struct{}
}

func (c *controller) target(name string) *served {
	if c.targets == nil {
		c.targets = map[string]*served{}
	}
	if c.targets[name] == nil {
		c.targets[name] = &served{feeds: map[*feed]bool{}}
	}
	return c.targets[name]
}

func (c *controller) get(req *destination.GetDestination, to getStream) error {
	c.mu.Lock()
	t := c.target(req.GetPath())
	if cut := t.cut; cut != nil {
		c.mu.Unlock()
		return cut
	}
	f := &feed{wake: make(chan struct{}, 1)}
	if t.known.State() != resolve.StatePending {
		f.queue = []*destination.Update{first(&t.known)}
	}
	t.feeds[f] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(t.feeds, f)
		c.mu.Unlock()
	}()
	for {
		c.mu.Lock()
		queue, cut := f.queue, f.cut
		f.queue = nil
		c.mu.Unlock()
		for _, m := range queue {
			if err := to.Send(m); err != nil {
				return err
			}
		}
		if cut != nil {
			return *cut
		}
		select {
		case <-f.wake:
		case <-to.Context().Done():
			return to.Context().Err()
		}
	}
}

// first is the message with all endpoints.
func first(s *resolve.Set) *destination.Update {
	switch s.State() {
	case resolve.StateEmpty:
		return noEndpoints(true)
	case resolve.StateDoesNotExist:
		return noEndpoints(false)
	}
	return message(resolve.Update{Kind: resolve.Add, Endpoints: s.Endpoints()})
}

// message is the other direction of update.
func message(u resolve.Update) *destination.Update {
	switch u.Kind {
	case resolve.Add:
		set := &destination.WeightedAddrSet{}
		for _, e := range u.Endpoints {
			set.Addrs = append(set.Addrs, weighted(e))
		}
		return &destination.Update{Update: &destination.Update_Add{Add: set}}
	case resolve.Remove:
		set := &destination.AddrSet{}
		for _, a := range u.Removed {
			set.Addrs = append(set.Addrs, tcp(a))
		}
		return &destination.Update{Update: &destination.Update_Remove{Remove: set}}
	}
	return noEndpoints(u.Kind == resolve.Empty)
}

func weighted(e resolve.Endpoint) *destination.WeightedAddr {
	a := &destination.WeightedAddr{Addr: tcp(e.Addr), Weight: e.Weight, MetricLabels: e.Labels}
	if e.Identity != "" {
		a.TlsIdentity = dnsIdentity(e.Identity)
		a.TlsIdentity.ServerName = dns(e.ServerName)
	}
	a.ProtocolHint = &destination.ProtocolHint{}
	if e.Protocol == resolve.H2 {
		a.ProtocolHint.Protocol = &destination.ProtocolHint_H2_{H2: &destination.ProtocolHint_H2{}}
	}
	if e.OpaquePort != 0 {
		a.ProtocolHint.OpaqueTransport = &destination.ProtocolHint_OpaqueTransport{InboundPort: uint32(e.OpaquePort)}
	}
	if e.Authority != "" {
		a.AuthorityOverride = &destination.AuthorityOverride{AuthorityOverride: e.Authority}
	}
	return a
}

// tell changes a target by an update, and sends it unchanged.
func (c *controller) tell(name string, updates ...resolve.Update) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.target(name)
	for _, u := range updates {
		t.known.Apply(u)
		for f := range t.feeds {
			sent := []*destination.Update{message(u)}
			if c.garble != nil {
				sent = c.garble(sent[0])
			}
			f.queue = append(f.queue, sent...)
			f.signal()
		}
	}
}

func (f *feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// set sends a new set as linkerd's controller does: added endpoints, then removed ones.
func (c *controller) set(name string, endpoints ...resolve.Endpoint) {
	c.mu.Lock()
	gone := resolve.Update{Kind: resolve.Remove}
	for _, e := range c.target(name).known.Endpoints() {
		if !containsAddr(endpoints, e) {
			gone.Removed = append(gone.Removed, e.Addr)
		}
	}
	c.mu.Unlock()
	c.tell(name, resolve.Update{Kind: resolve.Add, Endpoints: endpoints})
	if len(gone.Removed) > 0 {
		c.tell(name, gone)
	}
}

func containsAddr(list []resolve.Endpoint, e resolve.Endpoint) bool {
	for _, l := range list {
		if l.Addr == e.Addr {
			return true
		}
	}
	return false
}

func (c *controller) interrupt(name string, meanwhile func()) {
	c.mu.Lock()
	t := c.target(name)
	t.cut = status.Error(codes.Unavailable, "controller restarts")
	for f := range t.feeds {
		cut, clean := t.cut, error(nil)
		f.cut = &cut
		if t.ends++; t.ends%2 == 0 { // streams end in both ways
			f.cut = &clean
		}
		f.signal()
	}
	clear(t.feeds) // they receive no later updates
	c.mu.Unlock()
	meanwhile()
	c.mu.Lock()
	t.cut = nil
	c.mu.Unlock()
}

func (c *controller) reject(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target(name).cut = status.Error(codes.InvalidArgument, "not a service")
}
