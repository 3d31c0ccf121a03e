package grpclayer

import (
	"context"
	"errors"
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

// NewBalancer returns a [balancer.Builder] for grpc-go that uses package balance. [Register]
// registers it. You can combine it with any gRPC resolver. An address that is no IP address with a
// port, such as a name of passthrough, the path of a Unix socket or "bufnet" for a dialer, is shown
// as [::%name]:0.
//
// The balancer connects to each address at once and keeps the connection. A call goes to the
// endpoint with the lowest cost, among those that are connected and admit the call. Package balance
// documents which endpoints are compared. A unary call's latency is the time until it ends. Through
// a [Client], a stream's latency is the time to its first message.
//
// If no endpoint admits a call, but one is connecting and has not failed, the call waits. Otherwise
// it fails with UNAVAILABLE and the reason, or waits if it is wait-for-ready. A removed endpoint
// gets no new calls and finishes open ones. An address keeps its connection and statistics as long
// as its ID does not change.
//
// Each ClientConn runs two goroutines, and up to 128 more while endpoints are not ready. They end when
// the ClientConn is closed or idle. An empty name panics.
func NewBalancer(name string, opts ...Option) balancer.Builder {
	if name == "" {
		panic("grpclayer: empty name of a balancer")
	}
	return &balancerBuilder{name, newSettings(opts)}
}

// balancerBuilder makes the balancer of each ClientConn that selects it by its name.
type balancerBuilder struct {
	name     string
	settings *settings
}

// Name returns the name under which the balancer is registered.
func (b *balancerBuilder) Name() string { return b.name }

// Build returns a balancer for one ClientConn. It does nothing before the first result of the resolver,
// because only that carries the resolver's options.
func (b *balancerBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	t := &towerBalancer{
		cc: cc, target: opts.Target.Endpoint(), settings: b.settings,
		// Both channels hold one value, a signal that is not lost and never blocks its sender.
		members: make(map[resolve.ID]*member), rejected: make(chan struct{}, 1), queued: make(chan struct{}, 1),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	// Pickers read an empty list until the first update.
	t.current.Store(new([]*member))
	return t
}

type (
	endpoint = discover.Endpoint[balancer.PickInfo, *Pick]
	change   = discover.Change[balancer.PickInfo, *Pick]
)

// towerBalancer is a gRPC balancer that uses a balance.Balancer. gRPC calls its methods and the
// listeners of its connections one at a time. Calls choose their connections through a picker, on other
// goroutines.
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

	publishing sync.Mutex    // held while a picker is passed to gRPC, so that the last one has the latest state
	rejected   chan struct{} // has a value after a rejected pick
}

// member is one endpoint of a towerBalancer and its connection.
type member struct {
	conn    *conn
	service layer.Service[balancer.PickInfo, *Pick] // conn with its layers
	now     *endpoint                               // the endpoint in its current form; used by gRPC's goroutine only
}

// UpdateClientConnState replaces the endpoints with those in the resolver's state s. Unchanged
// endpoints keep their connections. While the resolver knows no result yet, the old endpoints
// stay. Otherwise, if s contains no valid endpoint, the error is balancer.ErrBadResolverState.
func (t *towerBalancer) UpdateClientConnState(s balancer.ClientConnState) error {
	found := endpointsOf(s.ResolverState)
	own, _ := s.ResolverState.Attributes.Value(settingsKey{}).(*settings)
	// The first update or error starts the balancer, because it brings the resolver's options.
	t.start(own)
	// Tells this package's resolver that its state has reached this balancer, and not another one.
	if started, ok := s.ResolverState.Attributes.Value(startedKey{}).(*atomic.Bool); ok {
		started.Store(true)
	}
	if targetState(s.ResolverState, len(found)) == resolve.StatePending {
		return nil // endpoints or an error follow
	}
	// The change of all endpoints is passed on as one step.
	var step step
	named := make(map[resolve.ID]struct{}, len(found))
	for _, p := range found {
		// A resolver may list an address twice.
		if _, again := named[p.ID]; again {
			continue
		}
		named[p.ID] = struct{}{}
		switch m := t.members[p.ID]; {
		case m == nil:
			m = t.connect(p)
			t.members[p.ID] = m
			step.change.Added = append(step.change.Added, m.now)
		// The endpoint stays the same, but its attributes have changed.
		case !m.now.Equal(p.Endpoint):
			m.now = &endpoint{Endpoint: p.Endpoint, Target: t.target, Service: m.service}
			step.change.Changed = append(step.change.Changed, m.now)
		}
	}
	// What the resolver no longer names is removed.
	for id, m := range t.members {
		if _, ok := named[id]; !ok {
			t.remove(m, &step)
		}
	}
	t.state = targetState(s.ResolverState, len(found))
	step.change.State = t.state
	t.push(step)
	// gRPC then asks the resolver for another result.
	if len(found) == 0 {
		return balancer.ErrBadResolverState
	}
	return nil
}

// ResolverError handles an error of the resolver. If the error matches resolve.ErrUnresolvable, the
// balancer removes all endpoints. After any other error it keeps them.
func (t *towerBalancer) ResolverError(err error) {
	var own *settings
	// Only this package's resolver wraps its errors, to pass its settings.
	if e, ok := err.(*resolverError); ok { //nolint:errorlint // gRPC does not wrap it
		err, own = e.error, e.settings
	}
	t.start(own)
	step := step{change: change{State: t.state, Err: err}}
	// The target will never be resolved, so calls must not use the old endpoints.
	if errors.Is(err, resolve.ErrUnresolvable) {
		for _, m := range t.members {
			t.remove(m, &step)
		}
	}
	t.push(step)
}

// UpdateSubConnState does nothing. gRPC does not call it, because each connection registers a
// listener.
func (t *towerBalancer) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle does nothing, because an idle connection connects again at once.
func (t *towerBalancer) ExitIdle() {}

// Close ends all goroutines of the balancer, but does not wait for them. It closes the
// connections.
func (t *towerBalancer) Close() {
	t.cancel()
	// From now on, Client.Ready no longer waits for this balancer.
	t.settings.live.remove(t)
	for _, m := range t.members {
		m.conn.close()
	}
}

// start creates t.balance, when the resolver reports a state or an error for the first time. Later
// calls do nothing. If own, the settings from this package's resolver, is not nil, the resolver's
// options are added to t's.
func (t *towerBalancer) start(own *settings) {
	if t.balance != nil {
		return
	}
	if own != nil {
		// The options of the resolver come last, so that they take precedence.
		t.settings = newSettings(slices.Concat(t.settings.opts, own.opts))
	}
	cfg := t.settings.balance
	cfg.Target = t.target
	t.balance = balance.New(t.ctx, cfg, t.changes, t.settings.picks...)
	t.settings.live.add(t)
	if t.settings.introspect != nil {
		_ = panics.Contain(func() { t.settings.introspect(t.balance) }) // on a goroutine of gRPC
	}
	go t.republish()
}

// connect returns a new member for the endpoint p, which has begun to connect. If gRPC cannot make a
// connection, the member stays failing.
func (t *towerBalancer) connect(p addressed) *member {
	c := newConn(t.target, p.addr.Addr)
	m := &member{conn: c, service: c}
	// Without a layer, picks use the connection itself.
	if t.settings.endpoint != nil {
		m.service = t.layered(c)
	}
	m.now = &endpoint{Endpoint: p.Endpoint, Target: t.target, Service: m.service}
	//nolint:staticcheck // "deprecated" warns of several addresses; this is the only way to make one
	sub, err := t.cc.NewSubConn([]resolver.Address{p.addr}, balancer.NewSubConnOptions{
		HealthCheckEnabled: true,
		// gRPC calls the listener for each change of the connection's state.
		StateListener: func(s balancer.SubConnState) { t.observe(c, s) },
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
// nil, layered returns c itself and marks it as removed, so that it rejects all picks with
// layer.ErrClosed.
func (t *towerBalancer) layered(c *conn) layer.Service[balancer.PickInfo, *Pick] {
	var service layer.Service[balancer.PickInfo, *Pick]
	err := panics.Contain(func() { service = t.settings.endpoint(c) })
	if service == nil {
		c.set(removed, "the layer returned no service for it", err)
		return c
	}
	return service
}

// observe applies s, the new state that gRPC reports for c's SubConn. If c's state changes,
// observe publishes a new picker, and if c is then connecting or failing, also asks for the
// target to be resolved again.
func (t *towerBalancer) observe(c *conn, s balancer.SubConnState) {
	before := c.state()
	c.observe(s)
	if after := c.state(); before != after {
		// A lost or failed connection may mean that the endpoint has moved.
		if after != connected && after != removed {
			t.cc.ResolveNow(resolver.ResolveNowOptions{})
		}
		// Waiting calls pick again, and see the new state.
		t.publish()
	}
}

// remove takes m out of the members, and adds its removal to the step s. Its connection is closed
// later, after the balancer has learned of the removal.
func (t *towerBalancer) remove(m *member, s *step) {
	delete(t.members, m.now.ID)
	s.change.Removed = append(s.change.Removed, m.now)
	s.closing = append(s.closing, m.conn)
}

// step is one change to the set of endpoints. It carries the removed endpoints' connections,
// which are closed after the change.
type step struct {
	change  change
	closing []*conn // closed after the change
}

// push adds s to the queue from which the method changes reads, and stores the current members for the
// pickers. It does not wait, because a method that gRPC calls must not block.
func (t *towerBalancer) push(s step) {
	// The pickers on other goroutines read a copy, because only gRPC's goroutine may use the map.
	current := slices.Collect(maps.Values(t.members))
	t.current.Store(&current)
	t.mu.Lock()
	t.queue = append(t.queue, s)
	t.mu.Unlock()
	// If a value is in the channel already, its reader will find this step too.
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
		// One value may stand for several steps.
		case <-t.queued:
		}
		t.mu.Lock()
		steps := t.queue
		t.queue = nil
		t.mu.Unlock()
		// Closing follows the change, so that no pick can choose a connection that is closed.
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

// picker chooses each call's connection. gRPC calls its method Pick concurrently. All pickers of a
// balancer use the same balance.Balancer. A new one is needed only because gRPC lets waiting calls pick
// again when it gets one.
type picker struct{ *towerBalancer }

// Pick chooses a connection for a call, or returns an error. It does not wait.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	picked, err := p.balance.Call(info.Ctx, info)
	// nil for a call without this package's interceptors.
	a := attemptFor(info)
	if err != nil {
		return balancer.PickResult{}, p.rejectPick(info, a, err)
	}
	// a is nil for a call without this package's interceptors.
	if a != nil {
		a.rejection.Store(nil)
		a.picked.Store(picked)
		// The interceptor reads the pick to report messages, and the pick reads whether the call was sent.
		picked.attempt = a
	}
	return balancer.PickResult{SubConn: picked.conn.sub, Done: picked.done}, nil
}

// rejectPick returns the error for gRPC after the balancer rejected a pick with err. If err
// matches layer.ErrClosed, the result is a status, and the call fails. If an endpoint is
// connecting, or the call context has ended, the result is ErrNoSubConnAvailable, and the call
// waits. Otherwise the call fails unless it is wait-for-ready.
func (t *towerBalancer) rejectPick(info balancer.PickInfo, a *attempt, err error) error {
	if a != nil {
		a.rejection.Store(&pickError{err})
	}
	if errors.Is(err, layer.ErrClosed) {
		return status.Error(codes.Unavailable, err.Error())
	}
	// An endpoint that becomes ready after this line is in the next picker.
	// republish waits for a ready endpoint, and lets waiting calls pick again.
	select {
	case t.rejected <- struct{}{}:
	default:
	}
	// ErrNoSubConnAvailable makes gRPC wait for another picker; any other error fails the call, unless it is
	// wait-for-ready.
	if info.Ctx.Err() != nil || t.anyConnecting() {
		return balancer.ErrNoSubConnAvailable
	}
	return opaque{err}
}

// anyConnecting reports whether a call that the balancer has just rejected should wait for an endpoint.
// It should if an endpoint is connecting and no attempt has failed since its last connection, or if an
// endpoint has become ready since the balancer chose.
func (t *towerBalancer) anyConnecting() bool {
	for _, m := range *t.current.Load() {
		state := m.conn.state()
		// An endpoint may have become ready after the balancer has rejected the pick.
		if state == connecting || state == connected && layer.Poll(m.service) == nil {
			return true
		}
	}
	return false
}

// pause is the minimum time between two pickers that republish passes to gRPC. Each picker lets all
// waiting calls pick again, which costs CPU time.
const pause = time.Millisecond

// republish runs on a goroutine of its own until the balancer is closed. After a rejected pick it waits
// until an endpoint is ready, and publishes a new picker. Waiting calls then pick again, which gRPC
// only does if it gets a new picker.
func (t *towerBalancer) republish() {
	for {
		select {
		case <-t.ctx.Done():
			return
		// A pick was rejected, so a call may be waiting.
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
	// gRPC must not get a picker after Close.
	if t.ctx.Err() == nil {
		t.cc.UpdateState(balancer.State{ConnectivityState: t.connectivity(), Picker: &picker{t}})
	}
}

// connectivity returns the state of the balancer for gRPC: Ready if at least one endpoint is connected,
// or else Connecting if one is connecting, or else TransientFailure.
func (t *towerBalancer) connectivity() connectivity.State {
	whole := connectivity.TransientFailure
	// One connected endpoint is enough for Ready.
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

// Pick is the connection that was chosen for a call. A pick ends when the call ends, with the
// call's error, see [PickCompletion].
type Pick struct {
	conn      *conn
	attempt   *attempt
	observers []layer.Observer  // not changed after the pick was returned
	room      [4]layer.Observer // backing array of observers, to avoid an allocation
	ended     atomic.Bool       // the observers were told the end
}

// Addr returns the endpoint's address.
func (p *Pick) Addr() string { return p.conn.addr }

// PickCompletion is the [layer.Completion] of picks. A pick ends when gRPC ends the call, with
// the call's error. A call is not sent if its credentials fail or its message cannot be encoded.
// The pick then ends with a rejection, which is not the endpoint's failure. The method Data of o is
// called with 1 for each message that a [Client]'s stream receives.
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

// data reports one received message to the observers.
func (p *Pick) data() {
	for _, o := range p.observers {
		o.Data(1)
	}
}

// done ends the pick when its call has ended. As gRPC calls it with locks held, a panic in an
// observer is dropped.
func (p *Pick) done(info balancer.DoneInfo) {
	if p.ended.Swap(true) {
		return
	}
	// gRPC tells only at the end whether anything was sent.
	if info.BytesSent && p.attempt != nil {
		p.attempt.sent.Store(true)
	}
	_ = panics.Contain(func() { panics.End(p.observers, p.outcome(info)) })
}

// outcome returns the error with which the pick ends, or nil if the call succeeded. info is
// gRPC's report about the end of the call.
func (p *Pick) outcome(info balancer.DoneInfo) error {
	switch {
	// gRPC ends a pick in this way if the connection was lost between the pick and the call.
	case !info.BytesSent && info.Err == nil:
		return p.conn.lost
	// Nothing reached a server, so the endpoint has not failed, and the call may be sent elsewhere.
	case !info.BytesSent:
		return p.conn.rejection(layer.ErrNotReady, "nothing was sent", info.Err)
	case info.Err == nil:
		return nil
	case !info.BytesReceived && unsendable(info.Err):
		return p.conn.rejection(layer.ErrNotReady, "the message cannot be sent", info.Err)
	case p.attempt != nil:
		return p.attempt.withDetails(info.Err, nil, nil) // without header and trailer
	}
	return info.Err
}

// unsendable reports whether err means that gRPC could not encode or send the message. It compares
// the text, because gRPC marks such errors in no other way. It must be called only if no bytes
// were received; otherwise err may be an error with the same text from the server.
func unsendable(err error) bool {
	text := status.Convert(err).Message()
	return strings.HasPrefix(text, "grpc: error while marshaling") || strings.HasPrefix(text, "grpc: error while compressing") ||
		strings.HasPrefix(text, "grpc: message too large") || strings.HasPrefix(text, "trying to send message larger than max")
}
