package tap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// droppedTrailer is the gRPC trailer that tells how many events did not fit into the watcher's
// buffer.
const droppedTrailer = "gotower-tap-dropped"

// Server serves a [Registry]'s watchers over gRPC. It implements two services: linkerd's
// io.linkerd.proxy.tap.Tap and gotower's own (package tappb). You can register it on any number
// of gRPC servers. Its streams end when their gRPC server stops. It runs no goroutine of its own.
//
//	tap.NewServer(reg).Register(grpcServer)
//
// By default it serves only clients on the same machine, and rejects calls with metadata that
// proxies add, such as via. A proxy on this machine that adds none is not detected. See
// [WithAllowedIdentities].
type Server struct {
	pb.UnimplementedTapServer
	reg      *Registry
	access   access
	describe func() layer.Node // returns the layers of the process; may be nil
	rate     *rate.Limiter     // limit of events per second; nil means no limit
	// credentials are the transport credentials of Serve. nil means no TLS.
	credentials credentials.TransportCredentials
	onListen    func(net.Addr)  // called by Serve; may be nil
	down        context.Context //nolint:containedctx // ends with Shutdown
	shutDown    context.CancelFunc
}

// NewServer returns a Server for the watchers of reg. If reg is nil, the Server accepts
// watchers, but shows them no requests.
func NewServer(reg *Registry, opts ...ServerOption) *Server {
	if reg == nil {
		reg = new(Registry)
	}
	s := &Server{reg: reg}
	s.down, s.shutDown = context.WithCancel(context.Background())
	option.Apply(s, opts)
	return s
}

// Register registers both services of s, linkerd's and gotower's, with registrar.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	pb.RegisterTapServer(registrar, s)
	tappb.RegisterTapServer(registrar, gotowerTap{server: s})
}

// Shutdown ends all streams with Unavailable, also later ones. It does not affect Describe. You
// should call it before grpc.Server.GracefulStop, which waits for all streams. If a client does
// not read, its stream ends only when its connection is closed. Shutdown does not wait, and may
// be called more than once.
func (s *Server) Shutdown() { s.shutDown() }

// Observe implements linkerd's service. It sends the response headers at once, and then shows the
// requests that match. The stream ends without an error when req.Limit requests have matched and
// ended. The trailer gotower-tap-dropped tells, in decimal, how many events did not fit into the
// buffer. A request that is not shown at all counts as one.
//
// The errors are Unauthenticated, InvalidArgument with the invalid field's name, and
// ResourceExhausted (see [WithCapacity]).
func (s *Server) Observe(req *pb.ObserveRequest, stream grpc.ServerStreamingServer[pb.TapEvent]) error {
	if err := s.access.permit(stream.Context()); err != nil {
		return err
	}
	if req.GetLimit() == 0 {
		return reject(codes.InvalidArgument, errors.New("limit must be positive"))
	}
	match, err := compile(req.GetMatch())
	if err != nil {
		return reject(codes.InvalidArgument, err)
	}
	w, err := s.reg.watch(terms{
		match: match, limit: uint64(req.GetLimit()), fields: req.GetExtract().GetHttp().GetHeaders() != nil,
	})
	if err != nil {
		return err
	}
	return s.serve(stream, w.reader(false, func(e Event) error { return stream.Send(e.proto()) })) // without reports of dropped events
}

// serve sends the response headers, and then the events from r until the watch ends. It closes r's
// watcher, and tells in the trailer how many events were dropped.
func (s *Server) serve(stream grpc.ServerStream, r *reader) error {
	defer s.reg.close(r.watcher)
	defer func() {
		stream.SetTrailer(metadata.Pairs(droppedTrailer, strconv.FormatUint(r.dropped.Load(), 10)))
	}()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	r.rate = s.rate
	ctx, cancel := s.withShutdown(stream.Context())
	defer cancel()
	return r.run(ctx)
}

// withShutdown returns a context that ends when ctx ends or when the server shuts down. In
// the second case its cause is errDown.
func (s *Server) withShutdown(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.down, func() { cancel(errDown) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// DefaultAddress is the default address of [Serve]. linkerd's proxy serves its tap there
// too.
const DefaultAddress = "127.0.0.1:4190"

// shutdownTimeout is how long Serve waits for its streams to end after its ctx has ended.
const shutdownTimeout = 2 * time.Second

// Serve listens on addr and serves the watchers of reg until ctx ends. Use it in a process
// without a gRPC server, and otherwise [NewServer].
//
//	go func() { log.Println(tap.Serve(ctx, "", registry)) }()
//
// An empty addr means [DefaultAddress]. "unix:" followed by a path is a Unix socket, which
// replaces the socket of a crashed process. An address that other machines can reach is an error,
// unless [WithCredentials] and [WithAllowedIdentities] restrict the clients, or you pass
// [WithAllowRemote].
//
// When ctx ends, streams end with Unavailable, and Serve returns nil within two seconds.
func Serve(ctx context.Context, addr string, reg *Registry, opts ...ServerOption) error {
	if addr == "" {
		addr = DefaultAddress
	}
	s := NewServer(reg, opts...)
	l, err := s.listen(ctx, addr)
	if err != nil {
		return fmt.Errorf("tap: serve on %s: %w", addr, err)
	}
	var options []grpc.ServerOption
	if s.credentials != nil {
		options = append(options, grpc.Creds(s.credentials))
	}
	server := grpc.NewServer(options...)
	s.Register(server)
	if s.onListen != nil {
		s.onListen(l.Addr())
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.stop(server)
	})
	err = server.Serve(l)
	// The function has begun, because ctx has ended. Wait until it has ended all streams.
	if !stop() {
		<-ended
		return nil
	}
	server.Stop()
	return fmt.Errorf("tap: serve on %s: %w", addr, err)
}

// stop ends all streams of server and waits for them up to shutdownTimeout. It then closes
// the remaining connections, because a client that does not read would delay GracefulStop
// without limit.
func (s *Server) stop(server *grpc.Server) {
	s.Shutdown()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	timer := time.NewTimer(shutdownTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		server.Stop()
	}
}

// WithCredentials sets the transport credentials of [Serve]. For [WithAllowedIdentities],
// they must verify client certificates.
func WithCredentials(c credentials.TransportCredentials) ServerOption {
	return func(s *Server) { s.credentials = c }
}

// WithOnListen sets a function that [Serve] calls with its listener's address before it accepts
// connections. Use it to get the port if the port in addr is 0.
func WithOnListen(f func(net.Addr)) ServerOption {
	return func(s *Server) { s.onListen = f }
}

var (
	errReachable = errors.New("other machines can reach this address: " +
		"listen on 127.0.0.1, or name the clients by WithCredentials and WithAllowedIdentities")
	errOneSided = errors.New("clients of other machines could not watch: " +
		"WithCredentials needs WithAllowedIdentities, and WithAllowedIdentities needs WithCredentials")
)

// listen returns the listener for addr, which is host:port or "unix:" and a path.
func (s *Server) listen(ctx context.Context, addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" { // Linux would choose an abstract name
			return nil, errors.New("the path of the socket is missing: unix:/run/web/tap.sock")
		}
		removeStale(ctx, path)
		return new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	if err := s.checkListenAddress(addr); err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", addr)
}

// removeStale removes the socket at path if no process listens on it any more, for example after a
// crash. Otherwise Listen would fail.
func removeStale(ctx context.Context, path string) {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // Listen returns an error if the file remains
	}
}

// checkListenAddress returns an error if Serve must not listen on addr: other machines could reach it,
// and no option restricts or allows their clients.
func (s *Server) checkListenAddress(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("the address must be host:port, such as %s: %w", DefaultAddress, err)
	}
	ip, err := netip.ParseAddr(host)
	named, proven := len(s.access.identities) > 0, s.credentials != nil
	// Certificates prove who the clients are, and the identities name those that are allowed. Both are needed.
	switch {
	case err == nil && ip.IsLoopback(), host == "localhost", s.access.everyone, named && proven:
		return nil
	case named || proven:
		return errOneSided
	}
	return errReachable
}

// gotowerTap implements gotower's tap service, and Server implements linkerd's. Each embeds the type
// that was generated for its service. One type cannot embed both, because they have the same name.
type gotowerTap struct {
	tappb.UnimplementedTapServer
	server *Server
}

// Watch implements gotower's service. It sends the events of the requests that match req,
// as [Server.Observe] does for linkerd's service.
func (o gotowerTap) Watch(req *tappb.WatchRequest, stream grpc.ServerStreamingServer[tappb.WatchResponse]) error {
	s := o.server
	if err := s.access.permit(stream.Context()); err != nil {
		return err
	}
	t, err := s.reg.terms(req)
	if err != nil {
		return err
	}
	w, err := s.reg.watch(t)
	if err != nil {
		return err
	}
	return s.serve(stream, w.reader(true, func(e Event) error { // with reports of dropped events
		return stream.Send(e.watchProto())
	}))
}

// WithDescribe sets the function that returns the process's layers, usually by [layer.Describe].
// The server calls it whenever a client calls Describe. If it panics, the response is a node with
// the name "describe" and the error.
func WithDescribe(tree func() layer.Node) ServerOption {
	return func(s *Server) { s.describe = tree }
}

// Describe implements gotower's service. It returns a node for each layer of the process.
// An outer layer comes before the layer inside it.
func (o gotowerTap) Describe(ctx context.Context, _ *tappb.DescribeRequest) (*tappb.DescribeResponse, error) {
	if err := o.server.access.permit(ctx); err != nil {
		return nil, err
	}
	if o.server.describe == nil {
		return nil, reject(codes.FailedPrecondition, errors.New("the process has no tap.WithDescribe"))
	}
	return described(o.server.describe), nil
}

// described calls describe and converts the tree to a response, in which the nodes from outside to
// inside are a list. A panic of describe becomes a node with the error.
func described(describe func() layer.Node) *tappb.DescribeResponse {
	var n layer.Node
	if err := panics.Contain(func() { n = describe() }); err != nil {
		n = layer.Node{Name: "describe", State: layer.State{{Key: "error", Value: err.Error()}}}
	}
	// The inner nodes become a list, and each node is sent without its own inner ones.
	rsp := &tappb.DescribeResponse{}
	for next := &n; next != nil; next = next.Next {
		node := *next
		node.Next = nil
		rsp.Nodes = append(rsp.Nodes, nodeProto(node))
	}
	return rsp
}

// WithEventRate limits how many events a second a Server sends to all its watchers together. It
// bounds CPU time, because an event costs about ten microseconds. Reports of dropped events count
// too. Events above the rate stay in the watchers' buffers, and are dropped and counted once a
// buffer is full. By default, and for n <= 0, the rate is unlimited.
func WithEventRate(n int) ServerOption {
	return func(s *Server) {
		s.rate = nil
		if n > 0 {
			s.rate = rate.NewLimiter(rate.Limit(n), max(n/eventBurst, 1))
		}
	}
}

// eventBurst determines how many events a Server may send at once: WithEventRate's events per
// second divided by eventBurst, which is what fits into 10 ms, but at least 1.
const eventBurst = 100

// rejection is the error for a rejected watcher or a rejected call of Top. [status.Code] returns
// its code, as for the errors that [Registry.Watch] and [Registry.Top] yield.
type rejection struct {
	code  codes.Code
	cause error
}

// reject returns a rejection with the given code and cause. If the cause is a rejection
// already, reject returns the cause unchanged.
func reject(code codes.Code, cause error) error {
	if _, ok := cause.(*rejection); ok { //nolint:errorlint // a wrapped one has another meaning
		return cause
	}
	return &rejection{code, cause}
}

func (r *rejection) Error() string              { return "tap: " + r.cause.Error() }
func (r *rejection) Unwrap() error              { return r.cause }
func (r *rejection) GRPCStatus() *status.Status { return status.New(r.code, valid(r.Error())) }
