package controller

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"google.golang.org/grpc"
)

// queueLength is how many messages may wait in a stream's queue. If another does not fit, the
// client is too slow, and the stream ends. Linkerd's controller uses the same limit.
const queueLength = 100

// Controller is a gRPC server for the destination and policy APIs. It is safe for concurrent use.
// Each stream runs its own goroutine to send messages, so a slow client never holds up the
// others.
type Controller struct {
	pb.UnimplementedDestinationServer

	log     *slog.Logger
	stopped chan struct{}
	senders sync.WaitGroup

	stopTimeout time.Duration // defaultStopTimeout, or less in tests

	mu       sync.Mutex
	loaded   bool // a configuration was set
	done     bool
	entries  map[string]*entry
	inbound  inboundState
	updates  hub[target, *pb.Update]
	profiles hub[target, *pb.DestinationProfile]
	policies hub[target, *outbound.OutboundPolicy]
	servers  hub[serverKey, *inbound.Server]

	source  Source                      // nil means that entries and inbound hold the configuration
	watched map[any]*requested          // names (target) and ports (serverKey) with open streams
	users   map[Object]map[any]struct{} // the keys of watched that depend on an object in source
}

// New returns a controller without a configuration. Streams wait until [Controller.Set] or
// [Controller.Use] is called. A nil logger discards all messages. Call [Controller.Stop] when you
// are done with the controller, unless you use [Controller.Serve], which does it for you.
func New(logger *slog.Logger) *Controller {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	// A hub has the streams of one kind, by what their clients ask for.
	return &Controller{
		log:         logger,
		stopTimeout: defaultStopTimeout,
		stopped:     make(chan struct{}),
		updates:     hub[target, *pb.Update]{},
		profiles:    hub[target, *pb.DestinationProfile]{},
		policies:    hub[target, *outbound.OutboundPolicy]{},
		servers:     hub[serverKey, *inbound.Server]{},
		watched:     make(map[any]*requested),
		users:       make(map[Object]map[any]struct{}),
	}
}

// Register adds the controller to a gRPC server. Call [Controller.Stop] before the server's
// GracefulStop, which waits until all streams have ended. If it still hangs because a client does
// not read, call the server's Stop.
func (c *Controller) Register(s grpc.ServiceRegistrar) {
	pb.RegisterDestinationServer(s, c)
	outbound.RegisterOutboundPoliciesServer(s, &outboundServer{Controller: c})
	inbound.RegisterInboundServerPoliciesServer(s, &inboundServer{Controller: c})
}

// Set replaces the configuration and queues the changes for every stream. If cfg is invalid, the
// old configuration stays and the error joins all mistakes. Set does not retain cfg, and it does
// not wait for clients.
func (c *Controller) Set(cfg Config) error {
	// Compile without the lock, because it may take long.
	entries, err := compile(cfg)
	servers, err2 := compileInbound(cfg)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Only targets and ports with open streams need messages.
	for key := range c.watched {
		switch k := key.(type) {
		case target:
			c.publishEntry(k, entries[k.String()], c.entries[k.String()])
		case serverKey:
			c.servers.publish(k, changes(c, servers.server(k), c.inbound.server(k)))
		}
	}
	// From now on, new streams start with this configuration.
	c.entries = entries
	c.inbound = servers
	c.loaded = true
	return nil
}

// publishEntry queues what has changed for t, whose entry was previous and is now current, on all its
// streams.
func (c *Controller) publishEntry(t target, current, previous *entry) {
	c.updates.publish(t, c.endpointUpdates(current, previous))
	c.profiles.publish(t, changes(c, current.describe(), previous.describe()))
	c.policies.publish(t, changes(c, current.outbound(), previous.outbound()))
}

// Stop ends all streams, and new ones end immediately. It may be called more than once.
func (c *Controller) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.done = true
		close(c.stopped)
	}
}
