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

// queueLength is the maximum number of messages that wait in the queue of a stream. If a
// message does not fit, the client is too slow, and the stream ends. linkerd's controller
// has the same limit.
const queueLength = 100

// Controller is a gRPC server of the destination and policy APIs. It is safe for concurrent
// use. Each stream has a goroutine of its own that sends messages to the client.
type Controller struct {
	pb.UnimplementedDestinationServer

	log     *slog.Logger
	stopped chan struct{}
	senders sync.WaitGroup

	stopTimeout time.Duration // defaultStopTimeout, or less in tests

	mu       sync.Mutex
	loaded   bool
	done     bool
	entries  map[string]*entry
	inbound  inboundState
	updates  hub[target, *pb.Update]
	profiles hub[target, *pb.DestinationProfile]
	policies hub[target, *outbound.OutboundPolicy]
	servers  hub[serverKey, *inbound.Server]

	source  Source                      // nil means that entries and inbound have the configuration
	watched map[any]*requested          // the names (target) and ports (serverKey) that have streams
	users   map[Object]map[any]struct{} // the keys of watched that depend on an object of source
}

// New returns a controller without a configuration. Streams wait until [Controller.Set] or
// [Controller.Use] is called. If logger is nil, nothing is logged. Call [Controller.Stop]
// after the last use of the controller. This is not necessary after [Controller.Serve],
// because Serve calls Stop.
func New(logger *slog.Logger) *Controller {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
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

// Register adds the controller to a gRPC server. Call [Controller.Stop] before GracefulStop
// of the server, because GracefulStop waits until all streams have ended. If a client does
// not read, GracefulStop can still wait. In this case, call Stop of the server.
func (c *Controller) Register(s grpc.ServiceRegistrar) {
	pb.RegisterDestinationServer(s, c)
	outbound.RegisterOutboundPoliciesServer(s, &outboundServer{Controller: c})
	inbound.RegisterInboundServerPoliciesServer(s, &inboundServer{Controller: c})
}

// Set replaces the configuration and queues the changes for each stream. If cfg is invalid,
// the configuration does not change, and the error joins all errors of cfg. Set does not
// keep cfg and does not wait for clients.
func (c *Controller) Set(cfg Config) error {
	entries, err := compile(cfg)
	servers, err2 := compileInbound(cfg)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.watched {
		switch k := key.(type) {
		case target:
			c.publishEntry(k, entries[k.String()], c.entries[k.String()])
		case serverKey:
			c.servers.publish(k, changes(c, servers.server(k), c.inbound.server(k)))
		}
	}
	c.entries, c.inbound, c.loaded = entries, servers, true
	return nil
}

// publishEntry queues the changes of t for all streams of t. The argument now is the new entry
// of t, and before is its previous entry.
func (c *Controller) publishEntry(t target, now, before *entry) {
	c.updates.publish(t, c.endpointUpdates(now, before))
	c.profiles.publish(t, changes(c, now.describe(), before.describe()))
	c.policies.publish(t, changes(c, now.outbound(), before.outbound()))
}

// Stop ends all streams. Later streams end at once. Stop may be called more than once.
func (c *Controller) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		c.done = true
		close(c.stopped)
	}
}
