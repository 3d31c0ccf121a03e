package controller

import (
	"log/slog"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
)

// queueLength is the number of messages that may wait for a slow client, as in linkerd's
// controller.
const queueLength = 100

// Controller serves the destination API. It is safe for concurrent use. Each stream has a
// goroutine that sends.
type Controller struct {
	pb.UnimplementedDestinationServer

	log     *slog.Logger
	stopped chan struct{}
	senders sync.WaitGroup

	mu       sync.Mutex
	loaded   bool
	done     bool
	entries  map[string]*entry
	updates  hub[*pb.Update]
	profiles hub[*pb.DestinationProfile]
}

// New returns a controller without a state. Call Stop when it is no longer needed;
// [Controller.Serve] does that. A nil logger means no logging.
func New(logger *slog.Logger) *Controller {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{
		log:      logger,
		stopped:  make(chan struct{}),
		updates:  hub[*pb.Update]{},
		profiles: hub[*pb.DestinationProfile]{},
	}
}

// Register adds the service to a gRPC server. Call Stop before the server's GracefulStop,
// which would otherwise wait for the streams. GracefulStop also waits for clients that do
// not read, until the server's Stop.
func (c *Controller) Register(s grpc.ServiceRegistrar) {
	pb.RegisterDestinationServer(s, c)
}

// Set replaces the state and sends each stream its changes. A configuration with errors is
// rejected: the error joins all of them, and the state does not change. Set does not keep
// cfg and does not wait for clients.
func (c *Controller) Set(cfg Config) error {
	entries, err := compile(cfg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.updates {
		c.updates.publish(name, c.endpointUpdates(entries[name], c.entries[name]))
	}
	for name := range c.profiles {
		c.profiles.publish(name, c.profileUpdates(entries[name], c.entries[name]))
	}
	c.entries, c.loaded = entries, true
	return nil
}

// Stop ends all streams and permanently rejects new ones. It may be called more than once.
func (c *Controller) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.done = true
		close(c.stopped)
	}
}
