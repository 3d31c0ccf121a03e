package controller

import (
	"context"
	"log/slog"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Get streams the endpoints for the name in req: first all of them, and then each change. See the
// package documentation for the messages and for when a stream ends.
func (c *Controller) Get(req *pb.GetDestination, stream grpc.ServerStreamingServer[pb.Update]) error {
	t, err := parseTarget(req.GetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "path %v", err)
	}
	// Clients can connect to an IP address without resolving it.
	if t.ip {
		return status.Errorf(codes.InvalidArgument, "path %q is an IP address, which is not resolved", req.GetPath())
	}
	// Endpoints may depend on the client's node, but not on its namespace.
	t.client.Node = workload(req.GetContextToken()).Node
	first := func() *pb.Update { return c.entry(t).snapshot() }
	return serve(stream.Context(), c, c.updates, "Get", t, first, stream.Send)
}

// GetProfile streams the profile for the name or IP address in req: first the current one, and
// then each new one. See the package documentation for the messages and for when a stream ends.
func (c *Controller) GetProfile(req *pb.GetDestination, stream grpc.ServerStreamingServer[pb.DestinationProfile]) error {
	t, err := parseTarget(req.GetPath())
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "path %v", err)
	}
	first := func() *pb.DestinationProfile { return c.entry(t).describe() }
	return serve(stream.Context(), c, c.profiles, "GetProfile", t, first, stream.Send)
}

// serve handles a stream that sends name's state, which first returns, and then every change
// published on f. It returns when the client cancels or is too slow, when send fails, or when the
// controller stops.
func serve[K comparable, M any](
	ctx context.Context, c *Controller, f hub[K, M], method string, name K,
	first func() M, send func(M) error,
) error {
	// s.queue already contains the first message, if a configuration is loaded.
	s := follow(c, f, name, first)
	defer leave(c, f, name, s)
	log := c.log.With(slog.String("method", method), slog.Any("path", name))
	log.DebugContext(ctx, "stream opened")
	// done tells the sending goroutine that the stream has ended, and broken carries its error to this one.
	done := make(chan struct{})
	broken := make(chan error, 1)
	defer close(done)
	// The loop sends in its own goroutine, because a send to a client that does not read may block,
	// and serve must still be able to end the stream.
	c.begin(func() {
		if err := sendLoop(s.queue, send, done); err != nil {
			broken <- err
		}
	})
	// Whichever of these happens first ends the stream.
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

// sendLoop sends what arrives in queue until done is closed or send fails. Messages that are
// still queued by then are dropped, because a client that reconnects receives the whole state
// anyway.
func sendLoop[M any](queue <-chan M, send func(M) error, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		case m := <-queue:
			// Both may have been ready. A stream that has ended must not send more.
			select {
			case <-done:
				return nil
			default:
			}
			if err := send(m); err != nil {
				return err
			}
		}
	}
}

// begin runs loop, a stream's send loop, in a new goroutine, unless the controller has been
// stopped. The stream's handler must not wait for loop: if the client does not read, a send may
// block until the handler has returned.
func (c *Controller) begin(loop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.senders.Go(loop)
	}
}

// follow subscribes to name and, if a configuration is loaded, queues its current state, which
// first returns. Both happen under one lock, so that no change is lost or sent twice.
func follow[K comparable, M any](c *Controller, f hub[K, M], name K, first func() M) *subscription[M] {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := f.subscribe(name)
	// hold must come before first, so that first returns the entry that the source has just looked up.
	c.hold(name)
	if c.loaded {
		s.queue <- first()
	}
	return s
}

// leave undoes follow.
func leave[K comparable, M any](c *Controller, f hub[K, M], name K, s *subscription[M]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.unsubscribe(name, s)
	c.drop(name)
}
