package controller

import (
	"log/slog"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"google.golang.org/grpc"
)

// queueLength is how many messages may wait for a slow client. It is what
// linkerd's controller allows.
const queueLength = 100

// Controller serves the destination API. It is safe for concurrent use. Each
// stream has a goroutine that sends, and ends after it.
type Controller struct {
	pb.UnimplementedDestinationServer

	log     *slog.Logger
	stopped chan struct{}
	pumps   sync.WaitGroup

	mu       sync.Mutex
	loaded   bool
	done     bool
	entries  map[string]*entry
	updates  feed[*pb.Update]
	profiles feed[*pb.DestinationProfile]
}

// New returns a controller that knows nothing yet. Whoever makes it calls
// Stop when it is no longer needed; [Controller.Serve] does. A nil logger
// means silence.
func New(logger *slog.Logger) *Controller {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{
		log:      logger,
		stopped:  make(chan struct{}),
		updates:  feed[*pb.Update]{},
		profiles: feed[*pb.DestinationProfile]{},
	}
}

// Register adds the service to a gRPC server, which stays the caller's: call
// Stop before the server's GracefulStop, or that waits for the streams. It waits
// for clients that do not read in any case, until the server's own Stop.
func (c *Controller) Register(s grpc.ServiceRegistrar) {
	pb.RegisterDestinationServer(s, c)
}

// Set replaces the state and tells every stream what changed for it. A
// configuration with errors is refused as a whole: the error joins all of
// them, and the state stays as it was. Set keeps nothing of cfg and never
// waits for a client.
func (c *Controller) Set(cfg Config) error {
	entries, err := compile(cfg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.updates {
		c.updates.publish(name, c.news(entries[name], c.entries[name]))
	}
	for name := range c.profiles {
		c.profiles.publish(name, c.newsOfProfile(entries[name], c.entries[name]))
	}
	c.entries, c.loaded = entries, true
	return nil
}

// Stop ends every stream and refuses new ones, for good. It may be called more
// than once.
func (c *Controller) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.done = true
		close(c.stopped)
	}
}
