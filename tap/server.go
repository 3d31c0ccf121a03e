package tap

import (
	"errors"
	"strconv"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// droppedTrailer is documented at [Server.Observe].
const droppedTrailer = "gotower-tap-dropped"

// Server implements linkerd's io.linkerd.proxy.tap.Tap over a [Registry], and
// gotower's own service. Register it on any number of gRPC servers, which carry
// its streams and end them when they stop; it has no goroutine of its own.
//
//	tap.NewServer(reg).Register(grpcServer)
//
// It answers nobody but this machine, and no proxy there that says that it
// forwards, unless options say otherwise; see [WithAllowedIdentities].
type Server struct {
	pb.UnimplementedTapServer
	reg      *Registry
	access   access
	describe func() layer.Node // nil: there is nothing to say
	rate     *rate.Limiter     // of events; nil is no bound
	listens  listens           // by Serve
	down     chan struct{}
	once     sync.Once
}

// NewServer returns a Server for who watches reg; a nil reg is one that nothing
// is shown to.
func NewServer(reg *Registry, opts ...ServerOption) *Server {
	if reg == nil {
		reg = new(Registry)
	}
	s := &Server{reg: reg, down: make(chan struct{})}
	for _, opt := range opts {
		if opt != nil {
			opt.applyServer(s)
		}
	}
	return s
}

// Register registers linkerd's service and gotower's own, see package tappb.
// Interceptors of the gRPC server see events as they go over the wire: as messages
// with all that is in them among the unknown fields.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	pb.RegisterTapServer(to, s)
	tappb.RegisterTapServer(to, own{server: s})
}

// Shutdown ends every stream, and each that comes later, with Unavailable.
// Call it before grpc.Server.GracefulStop, which would wait for watchers for
// ever. A stream whose client does not read ends with its connection. Shutdown
// does not wait, and may be called more than once.
func (s *Server) Shutdown() { s.once.Do(func() { close(s.down) }) }

// Observe serves one watcher. Its headers are sent at once: from then on every
// request that matches is seen. The stream ends without an error when limit
// requests have matched and those that are shown have ended. The trailer
// gotower-tap-dropped says how many events did not fit, in decimal; a request
// that is not shown at all for that counts as one.
//
// Errors are Unauthenticated, InvalidArgument (which names what is wrong) and
// ResourceExhausted (see [WithCapacity]).
func (s *Server) Observe(req *pb.ObserveRequest, stream grpc.ServerStreamingServer[pb.TapEvent]) error {
	if err := s.access.permit(stream.Context()); err != nil {
		return refuse(codes.Unauthenticated, err)
	}
	if req.GetLimit() == 0 {
		return refuse(codes.InvalidArgument, errors.New("limit must be positive"))
	}
	match, err := compile(req.GetMatch())
	if err != nil {
		return refuse(codes.InvalidArgument, err)
	}
	w, err := s.reg.watch(terms{
		match: match, limit: uint64(req.GetLimit()), fields: req.GetExtract().GetHttp().GetHeaders() != nil,
	})
	if err != nil {
		return err
	}
	return s.serve(stream, w.reader(false, func(e Event) error { return stream.Send(e.message()) }))
}

// serve answers that the watcher is in place, and then with what it sees.
func (s *Server) serve(stream grpc.ServerStream, r *reader) error {
	defer s.reg.close(r.watcher)
	defer func() {
		stream.SetTrailer(metadata.Pairs(droppedTrailer, strconv.FormatUint(r.dropped.Load(), 10)))
	}()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	r.turns = s.turns(stream.Context())
	return r.run(stream.Context(), s.down)
}
