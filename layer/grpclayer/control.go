package grpclayer

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

// ControlPlaneConn is a connection to a control plane: a controller's API, which may be
// served at several addresses, be restarted and move while it is used. It is a
// [grpc.ClientConnInterface], safe for concurrent use.
//
//	origin       the authority is Addr, whatever address serves the call
//	drain        nothing new after Close
//	metrics      calls, as control_* counts them
//	queue        1000 calls and streams wait up to 30 s for a connection
//	balance      of the addresses that DNS finds, the cheapest of a few: peak EWMA, 30 ms and 10 s
//	└ reconnect  each address is connected at once, and again when a call finds it lost;
//	             100 ms to 60 s between attempts
//	  └ grpc     connect timeout 1 s: TCP with keep-alive, TLS, HTTP/2
//
// Waiting is the queue's alone. Inside gRPC nothing waits: a call is given to a
// connection that is up, and one that was lost just then, before anything of
// the call was sent, sends it back into the queue. So grpc.WaitForReady makes no
// difference. Once calls have waited FailFast in vain, everybody who waits fails with
// DEADLINE_EXCEEDED and the last reason, and whoever comes after that with
// UNAVAILABLE at once, until an address is connected again. Opening a stream
// takes a place in the queue in the same way; a stream that is open does not.
//
// Whatever is known keeps serving. When DNS fails, the addresses stay; when it
// loses all of them after it failed, they stay for 30 s (see
// [resolve.ServeStale]). The streams of an address that is gone, or of a server
// that says GOAWAY, go on until they end; new ones go elsewhere. A stream that
// breaks off is its caller's to open again.
//
// Errors have the codes that [Code] gives them.
type ControlPlaneConn struct {
	cfg    ControlPlaneConfig
	client *Client
	svc    Service
	leaf   Service
	drain  *layer.Drainer
	cancel context.CancelFunc
	links  controlLinks
}

var _ grpc.ClientConnInterface = (*ControlPlaneConn)(nil)

// NewControlPlaneConn begins to resolve cfg.Addr and to connect, and returns at once; a
// control plane that is away is no error. It lives until ctx ends or [ControlPlaneConn.Close]
// is called. The error says what is wrong with cfg.
func NewControlPlaneConn(ctx context.Context, cfg ControlPlaneConfig) (*ControlPlaneConn, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, fmt.Errorf("grpclayer: control: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &ControlPlaneConn{cfg: cfg, leaf: leaf(), drain: layer.NewDrainer(), cancel: cancel}
	c.svc = NewStack(layer.WithTarget[*Reply](cfg.Addr), layer.WithMetrics[*Reply](cfg.Instruments)).
		Drain(c.drain).
		Metrics(cfg.Instruments).
		Queue(cfg.QueueCapacity, cfg.FailFast).
		Service(balance.Resolve(ctx, controlResolver(cfg.Addr, cfg.Resolver), cfg.Addr, c.endpoint,
			balance.WithCompletion(Completion), balance.WithClassifier(Classify[*Reply]), balance.WithMetrics[*Reply](cfg.Balancer)))
	c.client = &Client{svc: c.svc}
	return c, nil
}

// endpoint is one address: the balancer asks for it until it is connected.
func (c *ControlPlaneConn) endpoint(ctx context.Context, t discover.Target) Service {
	addr := t.Endpoint.Addr.String()
	connect := func(ctx context.Context) (Service, error) { return c.connect(ctx, addr) }
	return layer.Reconnect(ctx, connect, c.cfg.Backoff,
		layer.WithTarget[*Reply](addr), layer.WithMetrics[*Reply](c.cfg.Instruments))
}

// Invoke makes a unary call.
func (c *ControlPlaneConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.client.Unary(ctx, method, args, reply, nil, invokeOnLink, atOnce(opts)...)
}

// NewStream opens a stream, which goes on until it ended: see [Completion].
func (c *ControlPlaneConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.client.Stream(ctx, desc, nil, method, streamOnLink, atOnce(opts)...)
}

// atOnce has gRPC not wait for a connection: that is for the queue.
func atOnce(opts []grpc.CallOption) []grpc.CallOption {
	return append(slices.Clip(opts), grpc.WaitForReady(false))
}

// Close admits nothing more, and waits for what is open until ctx ends: then it
// is cut off, with an error that says how much that was. Watches do not end by
// themselves, so end them first, or do not wait: with a ctx that is done, Close
// cuts everything at once. When it returns, all connections are closed.
func (c *ControlPlaneConn) Close(ctx context.Context) error {
	err := c.drain.Drain(ctx)
	c.cancel()
	c.links.close()
	return err
}

// Describe shows the stack in request order, with its addresses and how they
// are.
func (c *ControlPlaneConn) Describe() layer.Node {
	next := layer.Describe(c.svc)
	state := layer.State{{Key: "authority", Value: c.cfg.Addr}, {Key: "tls", Value: "none"}}
	if c.cfg.TLS != nil {
		state[1].Value = c.cfg.TLS.ServerName
	}
	return layer.Node{Name: "origin", State: state, Next: &next}
}
