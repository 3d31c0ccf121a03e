package controller

import (
	"context"
	"log/slog"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Get streams the endpoints of a name. The package documentation specifies the messages
// and the end of a stream.
func (c *Controller) Get(req *pb.GetDestination, stream grpc.ServerStreamingServer[pb.Update]) error {
	t, err := parseTarget(req.GetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "path %v", err)
	}
	if t.ip {
		return status.Errorf(codes.InvalidArgument, "path %q is an IP address, which is not resolved", req.GetPath())
	}
	return serve(stream.Context(), c, c.updates, "Get", t.String(), (*entry).snapshot, stream.Send)
}

// GetProfile streams the profile of a name or of an IP address.
func (c *Controller) GetProfile(req *pb.GetDestination, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error {
	t, err := parseTarget(req.GetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "path %v", err)
	}
	return serve(stream.Context(), c, c.profiles, "GetProfile", t.String(), (*entry).describe, stream.Send)
}

// serve sends the messages of a subscription until the client leaves, is too slow, or the
// controller stops.
func serve[M any](
	ctx context.Context, c *Controller, f hub[M], method, name string,
	first func(*entry) M, send func(M) error,
) error {
	s := follow(c, f, name, first)
	defer leave(c, f, name, s)
	log := c.log.With(slog.String("method", method), slog.String("path", name))
	log.DebugContext(ctx, "stream opened")
	over, broken := make(chan struct{}), make(chan error, 1)
	defer close(over)
	c.begin(func() {
		if err := sendLoop(s.queue, send, over); err != nil {
			broken <- err
		}
	})
	select {
	case <-s.slow:
		log.WarnContext(ctx, "stream ended: the client is too slow", slog.Int("queue", cap(s.queue)))
		return status.Errorf(codes.ResourceExhausted, "the client is %d messages behind: reconnect", cap(s.queue))
	case <-c.stopped:
		return status.Error(codes.Unavailable, "the controller is stopping")
	case err := <-broken:
		return err
	case <-ctx.Done():
		log.DebugContext(ctx, "stream closed by the client")
		return status.FromContextError(ctx.Err()).Err()
	}
}

// sendLoop sends until the stream ends. Queued messages are then dropped, because the
// client reconnects and gets the whole state.
func sendLoop[M any](queue <-chan M, send func(M) error, over <-chan struct{}) error {
	for {
		select {
		case <-over:
			return nil
		case m := <-queue:
			select {
			case <-over:
				return nil
			default:
			}
			if err := send(m); err != nil {
				return err
			}
		}
	}
}

// begin runs loop in a goroutine beside the handler of a stream. A send in loop waits
// for a client that does not read, and gRPC ends that wait when the handler returns.
// After Stop, loop is not run.
func (c *Controller) begin(loop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.senders.Go(loop)
	}
}

// follow adds a subscription and, if the controller has a state, queues the first
// message. It does both under one lock, so that no change is lost or sent twice.
func follow[M any](c *Controller, f hub[M], name string, first func(*entry) M) *subscription[M] {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := f.subscribe(name)
	if c.loaded {
		s.queue <- first(c.entries[name])
	}
	return s
}

// leave ends a subscription.
func leave[M any](c *Controller, f hub[M], name string, s *subscription[M]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.unsubscribe(name, s)
}
