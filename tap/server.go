package tap

import (
	"context"
	"strconv"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// droppedTrailer is documented at [Server.Observe].
const droppedTrailer = "gotower-tap-dropped"

// Server implements linkerd's io.linkerd.proxy.tap.Tap over a [Registry].
// Register it on any number of gRPC servers, which carry its streams and end
// them when they stop; it has no goroutine of its own.
//
//	pb.RegisterTapServer(grpcServer, tap.NewServer(reg))
//
// It answers nobody but this machine, unless options say otherwise; see
// [AllowIdentities].
type Server struct {
	pb.UnimplementedTapServer
	reg    *Registry
	access access
	down   chan struct{}
	once   sync.Once
}

// NewServer returns a Server for who watches reg; a nil reg is one that nothing
// is shown to.
func NewServer(reg *Registry, opts ...ServerOption) *Server {
	if reg == nil {
		reg = new(Registry)
	}
	s := &Server{reg: reg, down: make(chan struct{})}
	for _, opt := range opts {
		opt.applyServer(s)
	}
	return s
}

// Shutdown ends every stream, and each that comes later, with Unavailable.
// Call it before grpc.Server.GracefulStop, which would wait for watchers for
// ever. A stream whose client does not read ends with its connection. Shutdown
// does not wait, and may be called more than once.
func (s *Server) Shutdown() { s.once.Do(func() { close(s.down) }) }

// Observe serves one watcher. Its headers are sent at once: from then on every
// request that matches is seen. The stream ends without an error when limit
// requests have matched and those that are shown have ended. The trailer
// gotower-tap-dropped says how many events did not fit, in decimal.
//
// Errors are Unauthenticated, InvalidArgument (which names what is wrong) and
// ResourceExhausted (see [Capacity]).
func (s *Server) Observe(req *pb.ObserveRequest, stream grpc.ServerStreamingServer[pb.TapEvent]) error {
	if err := s.access.permit(stream.Context()); err != nil {
		return status.Errorf(codes.Unauthenticated, "tap: %v", err)
	}
	if req.GetLimit() == 0 {
		return status.Error(codes.InvalidArgument, "tap: limit must be positive")
	}
	match, err := compile(req.GetMatch())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "tap: %v", err)
	}
	w, err := s.reg.watch(match, req.GetLimit(), req.GetExtract().GetHttp().GetHeaders() != nil)
	if err != nil {
		return status.Errorf(codes.ResourceExhausted, "tap: %v", err)
	}
	defer s.reg.close(w)
	defer func() {
		stream.SetTrailer(metadata.Pairs(droppedTrailer, strconv.FormatUint(w.dropped.Load(), 10)))
	}()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	return s.serve(stream.Context(), w, stream)
}

func (s *Server) serve(ctx context.Context, w *watcher, stream grpc.ServerStreamingServer[pb.TapEvent]) error {
	unread := w.buf.Load()
	filled := w.filled
	send := func(e Event) error {
		unread.took(e)
		return stream.Send(e.proto())
	}
	for {
		select {
		case e := <-unread.events:
			if err := send(e); err != nil {
				return err
			}
		case <-filled:
			s.reg.refresh()
			filled = nil
		case <-w.done:
			return drain(unread.events, send)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.down:
			return status.Error(codes.Unavailable, "tap: the server is shutting down")
		}
	}
}

// drain sends what is left, to which nothing is added any more.
func drain(events <-chan Event, send func(Event) error) error {
	for {
		select {
		case e := <-events:
			if err := send(e); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}
