package grpclayer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// NewBalancer returns a [balancer.Builder] for grpc-go that uses package balance.
// [Register] registers it. It works with each resolver that returns IP addresses.
//
// The balancer connects to each address at once and keeps the connection. A call goes to
// the endpoint with the lowest cost, among those that are connected and admit the call.
// Package balance documents which endpoints are compared. The latency of a unary call is
// the time until it ends. Through a [Client], the latency of a stream is the time to its
// first message.
//
// If no endpoint admits a call, but one is connecting and has not failed, the call waits.
// Otherwise it fails with UNAVAILABLE and the reason, or waits if it is wait-for-ready. A
// removed endpoint gets no new calls and finishes open ones. An address keeps its
// connection and statistics as long as its ID does not change.
//
// Each ClientConn has two goroutines, and up to 16 more while endpoints are not ready. They
// end when the ClientConn is closed or idle. An empty name panics.
func NewBalancer(name string, opts ...Option) balancer.Builder {
	if name == "" {
		panic("grpclayer: empty name of a balancer")
	}
	return &balancerBuilder{name, newSettings(opts)}
}

type balancerBuilder struct {
	name     string
	settings *settings
}

// Name returns the name under which the balancer is registered.
func (b *balancerBuilder) Name() string { return b.name }

func (b *balancerBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	t := &towerBalancer{
		cc: cc, target: opts.Target.Endpoint(), settings: b.settings,
		members: make(map[resolve.ID]*member), rejected: make(chan struct{}, 1), queued: make(chan struct{}, 1),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.current.Store(new([]*member))
	return t
}

type (
	endpoint = discover.Endpoint[balancer.PickInfo, *Pick]
	change   = discover.Change[balancer.PickInfo, *Pick]
)

// towerBalancer is a balancer of gRPC that uses a balance.Balancer. gRPC calls the
// methods of the balancer and the listeners of its connections one at a time.
type towerBalancer struct {
	cc       balancer.ClientConn
	target   string
	ctx      context.Context //nolint:containedctx // all goroutines end when it ends, at Close
	cancel   context.CancelFunc
	settings *settings

	balance *balance.Balancer[balancer.PickInfo, *Pick] // nil before the first update
	members map[resolve.ID]*member                      // the endpoints by their ID; used by gRPC's goroutine only
	state   resolve.State
	current atomic.Pointer[[]*member] // the values of members, for pickers on other goroutines

	mu     sync.Mutex
	queue  []step        // changes that were not yet passed to the balancer
	queued chan struct{} // has a value if queue is not empty

	publishing sync.Mutex
	rejected   chan struct{} // has a value after a rejected pick
}

// member is one endpoint of a towerBalancer and its connection.
type member struct {
	conn    *conn
	service layer.Service[balancer.PickInfo, *Pick] // conn with its layers
	now     *endpoint                               // the endpoint in its current form; used by gRPC's goroutine only
}

// UpdateClientConnState replaces the endpoints by those in the resolver's state s. An
// endpoint that is unchanged keeps its connection. While the resolver has no result yet,
// the old endpoints stay. Otherwise, if s has no valid endpoint, the error is
// balancer.ErrBadResolverState.
func (t *towerBalancer) UpdateClientConnState(s balancer.ClientConnState) error {
	found, invalid := endpointsOf(s.ResolverState)
	own, _ := s.ResolverState.Attributes.Value(settingsKey{}).(*settings)
	t.start(own)
	if targetState(s.ResolverState, len(found)) == resolve.StatePending {
		return nil // endpoints or an error follow
	}
	var step step
	named := make(map[resolve.ID]struct{}, len(found))
	for _, p := range found {
		if _, again := named[p.ID]; again {
			continue
		}
		named[p.ID] = struct{}{}
		switch m := t.members[p.ID]; {
		case m == nil:
			m = t.connect(p)
			t.members[p.ID] = m
			step.change.Added = append(step.change.Added, m.now)
		case !m.now.Equal(p.Endpoint):
			m.now = &endpoint{Endpoint: p.Endpoint, Target: t.target, Service: m.service}
			step.change.Changed = append(step.change.Changed, m.now)
		}
	}
	for id, m := range t.members {
		if _, ok := named[id]; !ok {
			t.remove(m, &step)
		}
	}
	t.state = targetState(s.ResolverState, len(found))
	step.change.State = t.state
	if len(invalid) > 0 {
		step.change.Err = errNotAnAddress(invalid)
	}
	t.push(step)
	if len(found) == 0 {
		return balancer.ErrBadResolverState
	}
	return nil
}

// ResolverError handles an error of the resolver. If the error matches resolve.ErrUnresolvable, the
// balancer removes all endpoints. After any other error it keeps them.
func (t *towerBalancer) ResolverError(err error) {
	var own *settings
	if e, ok := err.(*resolverError); ok { //nolint:errorlint // gRPC does not wrap it
		err, own = e.error, e.settings
	}
	t.start(own)
	step := step{change: change{State: t.state, Err: err}}
	if errors.Is(err, resolve.ErrUnresolvable) {
		for _, m := range t.members {
			t.remove(m, &step)
		}
	}
	t.push(step)
}

// UpdateSubConnState does nothing. gRPC does not call it, because each connection has a
// listener.
func (t *towerBalancer) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle does nothing, because an idle connection connects again at once.
func (t *towerBalancer) ExitIdle() {}

// Close ends all goroutines of the balancer, but does not wait for them. It closes the
// connections.
func (t *towerBalancer) Close() {
	t.cancel()
	t.settings.live.remove(t)
	for _, m := range t.members {
		m.conn.close()
	}
}

// start creates t.balance, when the resolver reports a state or an error for the first time. Later
// calls do nothing. If own, the settings of a resolver of this package, is not nil, the options of
// the resolver are added to those of t.
func (t *towerBalancer) start(own *settings) {
	if t.balance != nil {
		return
	}
	if own != nil {
		t.settings = newSettings(slices.Concat(t.settings.opts, own.opts))
	}
	t.balance = balance.New(t.ctx, t.target, t.changes, t.settings.balance...)
	t.settings.live.add(t)
	if t.settings.introspect != nil {
		_ = panics.Contain(func() { t.settings.introspect(t.balance) }) // on a goroutine of gRPC
	}
	go t.republish()
}

func (t *towerBalancer) connect(p addressed) *member {
	c := newConn(t.target, p.addr.Addr)
	m := &member{conn: c, service: c}
	if t.settings.endpoint != nil {
		m.service = t.layered(c)
	}
	m.now = &endpoint{Endpoint: p.Endpoint, Target: t.target, Service: m.service}
	//nolint:staticcheck // "deprecated" warns of several addresses; this is the only way to make one
	sub, err := t.cc.NewSubConn([]resolver.Address{p.addr}, balancer.NewSubConnOptions{
		HealthCheckEnabled: true,
		StateListener:      func(s balancer.SubConnState) { t.observe(c, s) },
	})
	if err != nil {
		c.set(failing, "no connection can be made", withoutChain(err))
		return m
	}
	c.sub = sub
	sub.Connect()
	return m
}

// layered returns c wrapped in the layer of [WithEndpointLayer]. If the layer panics or returns
// nil, layered returns c itself and sets the state of c to removed. In this state c rejects all
// picks with layer.ErrClosed.
func (t *towerBalancer) layered(c *conn) layer.Service[balancer.PickInfo, *Pick] {
	var service layer.Service[balancer.PickInfo, *Pick]
	err := panics.Contain(func() { service = t.settings.endpoint(c) })
	if service == nil {
		c.set(removed, "the layer returned no service for it", err)
		return c
	}
	return service
}

// observe applies s, the new state that gRPC reports for the SubConn of c. If the state of c
// changes, observe publishes a new picker. If c is then connecting or failing, observe also
// requests another resolution of the target.
func (t *towerBalancer) observe(c *conn, s balancer.SubConnState) {
	before := c.state()
	c.observe(s)
	if after := c.state(); before != after {
		if after != connected && after != removed {
			t.cc.ResolveNow(resolver.ResolveNowOptions{})
		}
		t.publish()
	}
}

func (t *towerBalancer) remove(m *member, s *step) {
	delete(t.members, m.now.ID)
	s.change.Removed = append(s.change.Removed, m.now)
	s.closing = append(s.closing, m.conn)
}

// step is one change of the set of endpoints. It has the connections of the removed endpoints,
// which are closed after the change.
type step struct {
	change  change
	closing []*conn // closed after the change
}

// push adds s to the queue from which the method changes reads. It does not wait, because a method
// that gRPC calls must not block.
func (t *towerBalancer) push(s step) {
	current := slices.Collect(maps.Values(t.members))
	t.current.Store(&current)
	t.mu.Lock()
	t.queue = append(t.queue, s)
	t.mu.Unlock()
	select {
	case t.queued <- struct{}{}:
	default:
	}
}

// changes yields the queued changes to the balancer. After each change it closes the
// connections of removed endpoints, and publishes a picker so that waiting calls pick
// again.
func (t *towerBalancer) changes(yield func(change) bool) {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.queued:
		}
		t.mu.Lock()
		steps := t.queue
		t.queue = nil
		t.mu.Unlock()
		for _, s := range steps {
			if !yield(s.change) {
				return
			}
			for _, c := range s.closing {
				c.close()
			}
			t.publish()
		}
	}
}

func errNotAnAddress(addresses []string) error {
	return fmt.Errorf("grpclayer: %s: must be IP addresses with ports; use a resolver that returns these", strings.Join(addresses, ", "))
}

// picker chooses the connection of each call. All pickers of a balancer use the same
// balance.Balancer. A new picker is needed only because gRPC lets waiting calls pick again when it
// gets one.
type picker struct{ *towerBalancer }

// Pick chooses a connection for a call, or returns an error. It does not wait.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	picked, err := p.balance.Call(info.Ctx, info)
	a := attemptFor(info)
	if err != nil {
		return balancer.PickResult{}, p.rejectPick(info, a, err)
	}
	if a != nil {
		a.rejection.Store(nil)
		a.picked.Store(picked)
		picked.attempt = a
	}
	return balancer.PickResult{SubConn: picked.conn.sub, Done: picked.done}, nil
}

// rejectPick returns the error for gRPC after the balancer rejected a pick with err. If err
// matches layer.ErrClosed, the result is a status, and the call fails. If an endpoint is
// connecting, or the context of the call has ended, the result is ErrNoSubConnAvailable,
// and the call waits. Otherwise the call fails unless it is wait-for-ready.
func (t *towerBalancer) rejectPick(info balancer.PickInfo, a *attempt, err error) error {
	if a != nil {
		a.rejection.Store(&pickError{err})
	}
	if errors.Is(err, layer.ErrClosed) {
		return status.Error(codes.Unavailable, err.Error())
	}
	// An endpoint that becomes ready after this line is in the next picker.
	select {
	case t.rejected <- struct{}{}:
	default:
	}
	if info.Ctx.Err() != nil || t.anyConnecting() {
		return balancer.ErrNoSubConnAvailable
	}
	return opaque{err}
}

// anyConnecting reports whether a rejected call should wait for an endpoint. It returns true if an
// endpoint is connecting and has not failed. It also returns true if an endpoint became ready after
// the rejection.
func (t *towerBalancer) anyConnecting() bool {
	for _, m := range *t.current.Load() {
		state := m.conn.state()
		if state == connecting || state == connected && layer.Poll(m.service) == nil {
			return true
		}
	}
	return false
}

// pause is the minimum time between two pickers that republish passes to gRPC.
const pause = time.Millisecond

// republish runs on a goroutine of its own until the balancer is closed. After each rejected pick
// it waits until an endpoint is ready, and publishes a new picker. Waiting calls then pick again.
func (t *towerBalancer) republish() {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.rejected:
		}
		_ = t.balance.Ready(t.ctx) // closed or ready, waiting calls pick again
		t.publish()
		if backoff.Sleep(t.ctx, pause) != nil {
			return
		}
	}
}

// publish passes a new picker and the state of the balancer to gRPC. Waiting calls then
// pick again.
func (t *towerBalancer) publish() {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	if t.ctx.Err() == nil {
		t.cc.UpdateState(balancer.State{ConnectivityState: t.connectivity(), Picker: &picker{t}})
	}
}

// connectivity returns the state of the balancer for gRPC: Ready if one endpoint is
// connected, or else Connecting if one is connecting, or else TransientFailure.
func (t *towerBalancer) connectivity() connectivity.State {
	whole := connectivity.TransientFailure
	for _, m := range *t.current.Load() {
		switch m.conn.state() {
		case connected:
			return connectivity.Ready
		case connecting:
			whole = connectivity.Connecting
		case failing, removed:
		}
	}
	return whole
}

// Pick is the connection that was chosen for a call. A pick ends when the call ends, with
// the error of the call, see [PickCompletion].
type Pick struct {
	conn      *conn
	attempt   *attempt
	observers []layer.Observer  // not changed after the pick was returned
	room      [4]layer.Observer // backing array of observers, to avoid an allocation
	ended     atomic.Bool
}

// Addr returns the address of the endpoint.
func (p *Pick) Addr() string { return p.conn.addr }

// PickCompletion is the [layer.Completion] of picks. A pick ends when gRPC ends the call,
// with the error of the call. A call is not sent if its credentials fail or its message
// cannot be encoded. Then the pick ends with a rejection, which is not a failure of the
// endpoint. Data is called with 1 for each message that a stream of a [Client] receives.
func PickCompletion(_ context.Context, p *Pick, o layer.Observer) *Pick {
	if p.observers == nil {
		p.observers = p.room[:0]
	}
	p.observers = append(p.observers, o)
	return p
}

// NewEndpointStack returns a stack without layers, for [WithEndpointLayer]. Its options are
// [PickCompletion] as the completion and [Classify] as the classifier; opts override them.
func NewEndpointStack(opts ...layer.Option[*Pick]) layer.Stack[balancer.PickInfo, *Pick] {
	return layer.NewStack[balancer.PickInfo](slices.Concat([]layer.Option[*Pick]{
		layer.WithCompletion(PickCompletion),
		layer.WithClassifier(Classify[*Pick]),
	}, opts)...)
}

func (p *Pick) data() {
	for _, o := range p.observers {
		o.Data(1)
	}
}

// done ends the pick when its call has ended. gRPC calls it with locks held. Therefore a
// panic of an observer is dropped.
func (p *Pick) done(info balancer.DoneInfo) {
	if p.ended.Swap(true) {
		return
	}
	if info.BytesSent && p.attempt != nil {
		p.attempt.sent.Store(true)
	}
	_ = panics.Contain(func() { panics.End(p.observers, p.outcome(info)) })
}

// outcome returns the error with which the pick ends, or nil if the call succeeded. info is
// the report of gRPC about the end of the call.
func (p *Pick) outcome(info balancer.DoneInfo) error {
	switch {
	case !info.BytesSent && info.Err == nil:
		return p.conn.lost
	case !info.BytesSent:
		return p.conn.rejection(layer.ErrNotReady, "nothing was sent", info.Err)
	case info.Err == nil:
		return nil
	case !info.BytesReceived && unsendable(info.Err):
		return p.conn.rejection(layer.ErrNotReady, "the message cannot be sent", info.Err)
	case p.attempt != nil:
		return p.attempt.withDetails(info.Err, nil, nil)
	}
	return info.Err
}

// unsendable reports whether err means that gRPC could not encode or send the message. It compares
// the text, because gRPC has no other mark. It must be called only if no bytes were received.
// Otherwise err may be an error with the same text from the server.
func unsendable(err error) bool {
	text := status.Convert(err).Message()
	return strings.HasPrefix(text, "grpc: error while marshaling") || strings.HasPrefix(text, "grpc: error while compressing") ||
		strings.HasPrefix(text, "grpc: message too large") || strings.HasPrefix(text, "trying to send message larger than max")
}
