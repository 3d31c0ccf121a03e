package controller

import (
	"context"
	"log/slog"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Get streams the endpoints of the name in req: first all of them, and then each change.
// The package documentation specifies the messages and when a stream ends.
func (c *Controller) Get(req *pb.GetDestination, stream grpc.ServerStreamingServer[pb.Update]) error {
	t, err := parseTarget(req.GetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "path %v", err)
	}
	if t.ip {
		return status.Errorf(codes.InvalidArgument, "path %q is an IP address, which is not resolved", req.GetPath())
	}
	first := func() *pb.Update { return c.entry(t).snapshot() }
	return serve(stream.Context(), c, c.updates, "Get", t, first, stream.Send)
}

// GetProfile streams the profile of the name or IP address in req: first the current profile, and
// then the new profile after each change. The package documentation specifies the messages and when
// a stream ends.
func (c *Controller) GetProfile(req *pb.GetDestination, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error {
	t, err := parseTarget(req.GetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "path %v", err)
	}
	first := func() *pb.DestinationProfile { return c.entry(t).describe() }
	return serve(stream.Context(), c, c.profiles, "GetProfile", t, first, stream.Send)
}

// serve handles a stream that sends the state of name, and then each change of name. It gets the
// state from the function first, and the changes from the hub f. The function send sends a message
// to the client. serve returns when the client cancels the stream or is too slow, when send fails,
// or when the controller stops.
func serve[K comparable, M any](
	ctx context.Context, c *Controller, f hub[K, M], method string, name K,
	first func() M, send func(M) error,
) error {
	s := follow(c, f, name, first)
	defer leave(c, f, name, s)
	log := c.log.With(slog.String("method", method), slog.Any("path", name))
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

// sendLoop sends the messages of queue with send, until the channel over is closed or send
// returns an error. It drops the messages that are still in the queue, because a client
// that reconnects receives the whole state.
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

// begin runs loop, the send loop of a stream, in a new goroutine. After Stop, it does nothing. The
// handler of the stream must not wait for loop. If the client does not read, a send may block until
// the handler has returned.
func (c *Controller) begin(loop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.senders.Go(loop)
	}
}

// follow subscribes to the changes of name. If a configuration is loaded, it also queues the
// message for the current entry, which it gets from the function first. It does both under one
// lock, so that no change is lost or sent twice.
func follow[K comparable, M any](c *Controller, f hub[K, M], name K, first func() M) *subscription[M] {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := f.subscribe(name)
	c.hold(name)
	if c.loaded {
		s.queue <- first()
	}
	return s
}

// leave removes the subscription s of name, and decreases the number of streams of name.
func leave[K comparable, M any](c *Controller, f hub[K, M], name K, s *subscription[M]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.unsubscribe(name, s)
	c.drop(name)
}
