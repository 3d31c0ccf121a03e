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

// policies contains the policy of each port that is in use or in INBOUND_PORTS. With a policy
// controller, the policies are watched. Otherwise the default policy applies.
type policies struct {
	in     *Inbound
	ctx    context.Context //nolint:containedctx // ends all watches
	client pb.InboundServerPoliciesClient
	limits stream.Limits // time limits for the watches
	idle   time.Duration // how long a port's policy outlives its last connection

	failures atomic.Int64 // failed streams since the controller's last message

	mu    sync.Mutex
	ports map[uint16]*portPolicy
}

// maxPorts limits how many ports' policies are kept for the idle timeout after their last use.
// Clients may choose the port, so further unused policies are only kept for overflowIdle.
const maxPorts = 1000

// maxWatchedPorts limits how many ports in INBOUND_PORTS are watched from the start. Further
// policies are watched while they are in use.
const maxWatchedPorts = 1000

// newPolicies returns in's policies, and starts to watch those of INBOUND_PORTS. The watches end
// when ctx ends.
func newPolicies(ctx context.Context, in *Inbound) *policies {
	p := &policies{in: in, ctx: ctx, idle: max(in.DiscoveryIdle, 1), ports: make(map[uint16]*portPolicy)}
	if in.PolicyController == nil {
		return p
	}
	// The watchdog's limits name the controller that is at fault, here that of policies.
	control := in.Control
	control.Destination = in.Policy.Controller
	p.limits = stream.Limits(control.Limits()).OrDefault()
	p.client = pb.NewInboundServerPoliciesClient(in.PolicyController)
	n := 0
	// Watching these ports now means that their first connections do not wait for the controller.
	for _, r := range in.Ports {
		for port := int(r.First); port <= int(r.Last) && n < maxWatchedPorts; port++ {
			p.acquire(uint16(port))
			n++
		}
	}
	return p
}

// acquire returns the port's policy, which is kept until the caller calls release. A new policy is
// the default policy until the controller sends one.
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
		// Without a controller, the default policy is final, and await returns at once.
		if p.client == nil {
			policy.answered()
		} else {
			policy.started = time.Now()
			go policy.watch(policy.ctx)
		}
	}
	policy.users++
	// The policy is used again before its idle timeout, so it must not be removed.
	if policy.timer != nil {
		policy.timer.Stop()
		policy.timer = nil
	}
	return policy
}

// release ends one use of the policy, and must be called once for each acquire. A policy without a
// use is removed after the idle timeout, and its watch ends.
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
	// timer identifies this release: the callback must not remove a policy that was acquired again after it fired.
	timer = time.AfterFunc(idle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if policy.timer == timer { // not used again
			delete(p.ports, policy.port)
			policy.cancel()
		}
	})
	policy.timer = timer
}

// describe returns the name of each port's policy.
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

// portPolicy is the policy of one port, with the open connections that it has permitted. HTTP
// connections are not among them, because each of their requests is checked.
type portPolicy struct {
	*policies
	port    uint16
	ctx     context.Context //nolint:containedctx // ends when the policy is removed
	cancel  context.CancelFunc
	started time.Time // start of the watch
	current atomic.Pointer[serverPolicy]
	first   chan struct{} // closed after the first policy or error, or immediately without a controller

	// answered closes first, which releases all calls to await.
	answered func()

	users int         // guarded by policies.mu
	timer *time.Timer // guarded by policies.mu

	openMu sync.Mutex
	open   map[*openConn]struct{} // guarded by openMu
}

// openConn is an open connection that is not HTTP. If a later policy denies it, the portPolicy
// resets it.
type openConn struct {
	dst    netip.AddrPort
	client *client
	cancel context.CancelCauseFunc
}

// await waits until the controller has sent its first policy. It gives up if the watch fails, if ctx
// ends, or if ProfileInitial has passed since the watch began. After that, the default policy
// applies until the controller sends one.
func (p *portPolicy) await(ctx context.Context) {
	// In the usual case, the policy is known and no timer is needed.
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
		// Log the silence. The connection continues with the default policy.
		p.failed(ctx, errSilent)
	case <-ctx.Done():
	}
}

// add returns the current policy and the index of the rule that permits c, or -1. A permitted c is
// remembered until remove is called, so that a later policy can reset it.
func (p *portPolicy) add(c *openConn) (*serverPolicy, int) {
	// While openMu is held, replace cannot change the policy, so every permitted connection is checked against the
	// next one.
	p.openMu.Lock()
	defer p.openMu.Unlock()
	current := p.current.Load()
	i := p.in.permit(p.port, c.client, current.authorizations)
	if i >= 0 {
		p.open[c] = struct{}{}
	}
	return current, i
}

// remove forgets a connection that has ended.
func (p *portPolicy) remove(c *openConn) {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	delete(p.open, c)
}

// set replaces the policy by next, and resets the open connections that next denies.
func (p *portPolicy) set(next *serverPolicy) {
	for _, c := range p.replace(next) { // without the mutex, because logging may be slow
		p.in.count(p.in.decided.tcp, c.dst, c.client, next.refused, meters.Terminated)
		p.in.logDecision(p.ctx, "connection closed, because the policy changed", next.refused, c.client)
		c.cancel(unauthorized(c.dst, next.resource))
	}
}

// replace replaces the policy by next. It removes and returns the open connections that next
// denies.
func (p *portPolicy) replace(next *serverPolicy) []*openConn {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	// Store and check under the same lock as add. Otherwise, add could permit a connection by the old policy, unseen
	// here.
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

// watch applies each policy from the controller until ctx ends. An invalid policy, or an error of
// the stream, leaves the last policy active. After an error, watch starts another stream, unless
// the code is InvalidArgument or FailedPrecondition, which would not change.
func (p *portPolicy) watch(ctx context.Context) {
	// If the watch ends without a policy, await must not wait any longer.
	defer p.answered()
	final := func(err error) bool {
		code := status.Code(err)
		return code == codes.InvalidArgument || code == codes.FailedPrecondition
	}
	var last *pb.Server
	retire := func() {} // ends the current policy's router
	for msg, err := range stream.Reconnect(ctx, p.in.Control.Connect.Backoff, p.stream, final) {
		// Controllers repeat policies. An equal one keeps its router, with the state of its filters and limits.
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
		// Requests that have loaded the previous policy finish on its router, which ends later.
		previous := retire
		lifetime, cancel := context.WithCancel(ctx)
		retire = cancel
		p.set(p.in.complete(lifetime, next))
		time.AfterFunc(routerWait, previous) // requests may still wait for the previous policy's routes
		p.answered()
	}
}

// failed logs a watch's error. Only the first error after a message is a warning. Further ones, and
// normal ends of streams, are logged at level debug, so that an outage does not flood the log. All
// ports count together.
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

// received records a message from the controller, and logs the end of an outage.
func (p *portPolicy) received(ctx context.Context) {
	if n := p.failures.Swap(0); n > 0 {
		p.in.Log.InfoContext(ctx, "the controller sends policies again", "port", p.port, "failures", n)
	}
}

// errSilent is the error of a watch that receives no message in time.
var errSilent = status.Error(codes.DeadlineExceeded, "the policy controller does not answer")

// stream yields the messages from one call to WatchPort, and then its error.
func (p *portPolicy) stream(ctx context.Context) iter.Seq2[*pb.Server, error] {
	return func(yield func(*pb.Server, error) bool) {
		watchdog := p.limits.Begin(ctx, errSilent)
		defer watchdog.Stop()
		// read returns nil if the consumer has stopped, so nothing more must be yielded.
		if err := p.read(watchdog, yield); err != nil {
			yield(nil, fmt.Errorf("policy of port %d: %w", p.port, err))
		}
	}
}

// read calls WatchPort once and yields its messages. It returns the error that ends the call, or
// nil if yield returned false. If the controller ended the call after a message, the error is
// stream.ErrEnded. watchdog enforces the call's time limits.
func (p *portPolicy) read(watchdog *stream.Watchdog, yield func(*pb.Server, error) bool) error {
	if err := watchdog.Wait(); err != nil {
		return err
	}
	messages, err := p.client.WatchPort(watchdog.Context(), &pb.PortSpec{Workload: p.in.Policy.Workload, Port: uint32(p.port)})
	if err != nil {
		return watchdog.Cause(err)
	}
	// A stream that ends without any message is a failure, and one that ends after a message is a normal end.
	for hasMessage := false; ; hasMessage = true {
		if err := watchdog.Wait(); err != nil {
			return err
		}
		msg, err := messages.Recv()
		switch {
		case hasMessage && errors.Is(err, io.EOF):
			return stream.ErrEnded
		case err != nil:
			return watchdog.Cause(err)
		}
		// The consumer's work on the message does not count against the controller's time limits.
		watchdog.Pause()
		watchdog.Heard()
		if !yield(msg, nil) {
			return nil
		}
	}
}
