package inbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/layer"
)

// policies has the policies of the ports that have connections or are in INBOUND_PORTS.
// With a policy controller, each policy is watched. Without a policy controller, the
// default policy applies to each port.
type policies struct {
	in     *Inbound
	ctx    context.Context //nolint:containedctx // the parent of all watches
	client pb.InboundServerPoliciesClient
	limits stream.Limits // time limits of the watches
	idle   time.Duration // time from the last connection of a port to the removal of its policy

	failures atomic.Int64 // number of failed streams since the last message of the controller

	mu    sync.Mutex
	ports map[uint16]*portPolicy
}

// maxPorts is the maximum number of ports with policies that stay in memory for the idle
// timeout after their last use. When more ports have policies, an unused policy stays for
// at most overflowIdle, because clients may choose the port.
const maxPorts = 1000

// maxWatchedPorts is the maximum number of ports in INBOUND_PORTS that are watched from the
// start of the proxy. The policies of further ports are watched while they are in use.
const maxWatchedPorts = 1000

// newPolicies returns the policies of in, and starts to watch those of the ports in
// INBOUND_PORTS. The watches end when ctx ends.
func newPolicies(ctx context.Context, in *Inbound) *policies {
	p := &policies{in: in, ctx: ctx, idle: max(in.DiscoveryIdle, 1), ports: make(map[uint16]*portPolicy)}
	if in.PolicyController == nil {
		return p
	}
	control := in.Control
	control.Destination = in.Policy.Controller
	p.limits = stream.Limits(control.Limits()).OrDefault()
	p.client = pb.NewInboundServerPoliciesClient(in.PolicyController)
	n := 0
	for _, r := range in.Ports {
		for port := int(r.First); port <= int(r.Last) && n < maxWatchedPorts; port++ {
			p.acquire(uint16(port))
			n++
		}
	}
	return p
}

// acquire returns the policy of the port. The policy is kept until the caller calls
// release. If the port has no policy yet, acquire adds the default policy and starts to
// watch the controller.
func (p *policies) acquire(port uint16) *portPolicy {
	p.mu.Lock()
	defer p.mu.Unlock()
	policy := p.ports[port]
	if policy == nil {
		policy = &portPolicy{policies: p, port: port, first: make(chan struct{}), open: make(map[*openConn]struct{})}
		policy.answered = sync.OnceFunc(func() { close(policy.first) })
		policy.ctx, policy.cancel = context.WithCancel(p.ctx)
		policy.current.Store(p.in.complete(policy.ctx, p.in.defaultPolicy(port)))
		p.ports[port] = policy
		if p.client == nil {
			policy.answered()
		} else {
			policy.started = time.Now()
			go policy.watch(policy.ctx)
		}
	}
	policy.users++
	if policy.timer != nil {
		policy.timer.Stop()
		policy.timer = nil
	}
	return policy
}

// release ends one use of the policy. It must be called once for each call of acquire.
// After the last use has ended and the idle timeout has passed without a new use, the
// policy is removed. Its watch then ends.
func (p *policies) release(policy *portPolicy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if policy.users--; policy.users > 0 {
		return
	}
	idle := p.idle
	if len(p.ports) > maxPorts {
		idle = min(idle, overflowIdle)
	}
	var timer *time.Timer
	timer = time.AfterFunc(idle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if policy.timer == timer { // it was not used again
			delete(p.ports, policy.port)
			policy.cancel()
		}
	})
	policy.timer = timer
}

// describe returns the name of the policy of each port.
func (p *policies) describe() layer.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := layer.Node{Name: "policy"}
	for port, policy := range p.ports {
		current := policy.current.Load()
		n.State = append(n.State, layer.Attr{
			Key: fmt.Sprintf("port_%d", port), Value: current.resource.Kind + "/" + current.resource.Name,
		})
	}
	slices.SortFunc(n.State, func(a, b layer.Attr) int { return strings.Compare(a.Key, b.Key) })
	return n
}

// portPolicy is the policy of one port, and the open connections that it has permitted.
// HTTP connections are not among them, because each of their requests is checked.
type portPolicy struct {
	*policies
	port    uint16
	ctx     context.Context //nolint:containedctx // ends when the port is forgotten
	cancel  context.CancelFunc
	started time.Time // start of the watch
	current atomic.Pointer[serverPolicy]
	first   chan struct{} // closed after the first policy or error, or at once without a controller

	// answered closes first, which makes all current and later calls of await return.
	answered func()

	users int         // guarded by policies.mu
	timer *time.Timer // guarded by policies.mu

	openMu sync.Mutex
	open   map[*openConn]struct{} // guarded by openMu
}

// openConn describes an open connection that is not an HTTP connection. If a later policy
// of the port denies the connection, the portPolicy resets it.
type openConn struct {
	dst    netip.AddrPort
	client *client
	cancel context.CancelCauseFunc // resets the connection
}

// await waits for the first policy of the controller. It returns earlier if the watch
// fails, if ctx ends, or when ProfileInitial has passed since the start of the watch. The
// default policy then applies until the controller sends one.
func (p *portPolicy) await(ctx context.Context) {
	select {
	case <-p.first:
		return
	default:
	}
	timer := time.NewTimer(time.Until(p.started.Add(p.in.Control.ProfileInitial)))
	defer timer.Stop()
	select {
	case <-p.first:
	case <-timer.C:
		p.failed(ctx, errSilent)
	case <-ctx.Done():
	}
}

// add returns the current policy and the index of the rule that permits the connection c,
// or -1 if no rule does. A permitted c is recorded until remove is called, so that a
// later policy can reset it.
func (p *portPolicy) add(c *openConn) (*serverPolicy, int) {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	current := p.current.Load()
	i := p.in.permit(p.port, c.client, current.authorizations)
	if i >= 0 {
		p.open[c] = struct{}{}
	}
	return current, i
}

// remove removes a connection that has ended.
func (p *portPolicy) remove(c *openConn) {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	delete(p.open, c)
}

// set replaces the policy by next, and resets the open connections that next denies.
func (p *portPolicy) set(next *serverPolicy) {
	for _, c := range p.replace(next) { // without the mutex, because a log may be slow
		p.in.count(p.in.decided.tcp, c.dst, c.client, next.refused, meters.Terminated)
		p.in.logDecision(p.ctx, "connection closed, because the policy changed", next.refused, c.client)
		c.cancel(unauthorized(c.dst, next.resource))
	}
}

// replace replaces the policy by next. It removes the open connections that next denies, and
// returns them.
func (p *portPolicy) replace(next *serverPolicy) []*openConn {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	p.current.Store(next)
	var denied []*openConn
	for c := range p.open {
		if p.in.permit(p.port, c.client, next.authorizations) < 0 {
			delete(p.open, c)
			denied = append(denied, c)
		}
	}
	return denied
}

// watch applies each policy that the controller sends, until ctx ends. After an invalid
// policy or an error of the stream, the last policy stays active. After an error of the
// stream, watch starts another stream. It returns instead if the code of the error is
// InvalidArgument or FailedPrecondition.
func (p *portPolicy) watch(ctx context.Context) {
	defer p.answered()
	final := func(err error) bool {
		code := status.Code(err)
		return code == codes.InvalidArgument || code == codes.FailedPrecondition
	}
	var last *pb.Server
	retire := func() {} // ends the router of the policy
	for msg, err := range stream.Reconnect(ctx, p.in.Control.Connect.Backoff, p.stream, final) {
		if err == nil && proto.Equal(msg, last) {
			p.received(ctx)
			continue
		}
		var next *serverPolicy
		if err == nil {
			last = msg
			next, err = policyOf(msg)
		}
		if err != nil {
			p.failed(ctx, err)
			p.answered()
			continue
		}
		p.received(ctx)
		before := retire
		life, cancel := context.WithCancel(ctx)
		retire = cancel
		p.set(p.in.complete(life, next))
		time.AfterFunc(routerWait, before) // requests may wait for the routes of the former policy
		p.answered()
	}
}

// failed logs err, an error of a watch. The first error after a message of the controller
// is logged as a warning. Further errors until the next message are logged at level debug,
// and so are normal ends of streams. The errors and messages of all ports count together.
func (p *portPolicy) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if !errors.Is(err, stream.ErrEnded) && p.failures.Add(1) == 1 {
		p.in.Log.WarnContext(ctx, "no policy from the controller; the last one or the default policy applies",
			"port", p.port, "default", string(p.in.DefaultPolicy), "err", err)
		return
	}
	p.in.Log.DebugContext(ctx, "no policy from the controller", "port", p.port, "err", err)
}

// received records a message of the controller. If there was an outage of the controller,
// received logs its end.
func (p *portPolicy) received(ctx context.Context) {
	if n := p.failures.Swap(0); n > 0 {
		p.in.Log.InfoContext(ctx, "the controller sends policies again", "port", p.port, "failures", n)
	}
}

// errSilent is the error of a watch that receives no message in time.
var errSilent = status.Error(codes.DeadlineExceeded, "the policy controller does not answer")

// stream yields the messages of one call of WatchPort, and then its error.
func (p *portPolicy) stream(ctx context.Context) iter.Seq2[*pb.Server, error] {
	return func(yield func(*pb.Server, error) bool) {
		dog := p.limits.Begin(ctx, errSilent)
		defer dog.Stop()
		if err := p.read(dog, yield); err != nil {
			yield(nil, fmt.Errorf("policy of port %d: %w", p.port, err))
		}
	}
}

// read calls WatchPort once, and calls yield with each message. It returns the error that
// ends the call, or nil after yield has returned false. The error is stream.ErrEnded if the
// controller ended the call after a message. dog enforces the time limits of the call.
func (p *portPolicy) read(dog *stream.Watchdog, yield func(*pb.Server, error) bool) error {
	if err := dog.Wait(); err != nil {
		return err
	}
	messages, err := p.client.WatchPort(dog.Context(), &pb.PortSpec{Workload: p.in.Policy.Workload, Port: uint32(p.port)})
	if err != nil {
		return dog.Cause(err)
	}
	for heard := false; ; heard = true {
		if err := dog.Wait(); err != nil {
			return err
		}
		msg, err := messages.Recv()
		switch {
		case heard && errors.Is(err, io.EOF):
			return stream.ErrEnded
		case err != nil:
			return dog.Cause(err)
		}
		dog.Pause()
		dog.Heard()
		if !yield(msg, nil) {
			return nil
		}
	}
}
