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

// NewBalancer returns a [balancer.Builder] for grpc-go that uses package balance; see
// [Register]. It works with each resolver that returns IP addresses.
//
// Each address has a connection, which is made at once and kept. A call goes to the
// endpoint of the lowest cost that is connected and whose layers admit the call. Package
// balance documents which endpoints are compared. The measured latency is the time of a
// unary call, or the time to the first message of a stream through a [Client].
//
// If no endpoint admits a call, the call waits while one is connecting without a
// failure. Otherwise it fails with UNAVAILABLE and the reason, or waits if it is
// wait-for-ready. A removed endpoint gets no new calls and finishes open ones.
// An address keeps its connection and statistics as long as its ID stays.
//
// Each ClientConn has two goroutines, and one more for each endpoint that is not ready. They
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

// Name returns the name of the balancer.
func (b *balancerBuilder) Name() string { return b.name }

// Build returns a balancer that starts with its first update.
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

// towerBalancer is a balance.Balancer inside gRPC. gRPC calls its methods and
// the listeners of its connections sequentially.
type towerBalancer struct {
	cc       balancer.ClientConn
	target   string
	ctx      context.Context //nolint:containedctx // the life of all goroutines, until Close
	cancel   context.CancelFunc
	settings *settings

	balance *balance.Balancer[balancer.PickInfo, *Pick] // nil before the first update
	members map[resolve.ID]*member
	state   resolve.State
	current atomic.Pointer[[]*member] // the members, for pickers

	mu     sync.Mutex
	queue  []step
	queued chan struct{} // receives if queue is not empty

	publishing sync.Mutex
	rejected   chan struct{} // receives after a rejected pick
}

// member is an endpoint with its connection.
type member struct {
	conn    *conn
	service layer.Service[balancer.PickInfo, *Pick] // conn with its layers
	now     *endpoint                               // used by gRPC's goroutine only
}

// UpdateClientConnState applies a state of the resolver.
func (t *towerBalancer) UpdateClientConnState(s balancer.ClientConnState) error {
	found, invalid := endpointsOf(s.ResolverState)
	t.start(s.ResolverState)
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

// ResolverError reports an error of the resolver. Endpoints are kept unless the error is final.
func (t *towerBalancer) ResolverError(err error) {
	t.start(resolver.State{})
	step := step{change: change{State: t.state, Err: err}}
	if errors.Is(err, resolve.ErrUnresolvable) {
		for _, m := range t.members {
			t.remove(m, &step)
		}
	}
	t.push(step)
}

// UpdateSubConnState is not called, because each connection has a listener.
func (t *towerBalancer) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle does nothing, because connections do not stay idle.
func (t *towerBalancer) ExitIdle() {}

// Close ends all goroutines without waiting for them.
func (t *towerBalancer) Close() {
	t.cancel()
	t.settings.live.remove(t)
	for _, m := range t.members {
		m.conn.close()
	}
}

// start makes the balancer at the first update, with the options of its resolver.
func (t *towerBalancer) start(s resolver.State) {
	if t.balance != nil {
		return
	}
	if own, ok := s.Attributes.Value(settingsKey{}).(*settings); ok {
		t.settings = own
	}
	t.balance = balance.New(t.ctx, t.target, t.changes, t.settings.balance...)
	t.settings.live.add(t)
	if t.settings.introspect != nil {
		_ = panics.Contain(func() { t.settings.introspect(t.balance) }) // on a goroutine of gRPC
	}
	go t.republish()
}

// connect returns a new member and starts its connection.
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

// layered applies the layer of the endpoints to c. If that panics or returns
// nil, the endpoint is closed.
func (t *towerBalancer) layered(c *conn) layer.Service[balancer.PickInfo, *Pick] {
	var service layer.Service[balancer.PickInfo, *Pick]
	err := panics.Contain(func() { service = t.settings.endpoint(c) })
	if service == nil {
		c.set(removed, "the layer returned no service for it", err)
		return c
	}
	return service
}

// observe is the listener of a connection.
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

// remove adds the removal of m to s.
func (t *towerBalancer) remove(m *member, s *step) {
	delete(t.members, m.now.ID)
	s.change.Removed = append(s.change.Removed, m.now)
	s.closing = append(s.closing, m.conn)
}

// step is a change for the balancer with the connections that it removes.
type step struct {
	change  change
	closing []*conn // closed after the change
}

// push queues a step for the balancer. It does not wait, because gRPC calls it.
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

// changes yields the changes for the balancer. After a change, removed
// endpoints get no more calls, and waiting calls pick again.
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

// picker is the picker of a balancer. All pickers of a balancer are equal; a
// new one makes waiting calls pick again.
type picker struct{ *towerBalancer }

// Pick chooses a connection without waiting.
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

// rejectPick returns the error of a pick that was rejected. With
// ErrNoSubConnAvailable, gRPC lets the call wait for the next picker. With any
// other error the call waits only if it is wait-for-ready. A status ends it.
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

// anyConnecting reports whether an endpoint is about to be ready: it is being connected and did
// not fail, or the balancer does not know yet that it is ready.
func (t *towerBalancer) anyConnecting() bool {
	for _, m := range *t.current.Load() {
		state := m.conn.state()
		if state == connecting || state == connected && layer.Poll(m.service) == nil {
			return true
		}
	}
	return false
}

// pause is the least time between two pickers for calls that wait.
const pause = time.Millisecond

// republish publishes a picker for waiting calls when an endpoint is ready.
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

// publish gives gRPC a new picker and the connectivity of the balancer.
func (t *towerBalancer) publish() {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	if t.ctx.Err() == nil {
		t.cc.UpdateState(balancer.State{ConnectivityState: t.connectivity(), Picker: &picker{t}})
	}
}

// connectivity returns the state of the best connection.
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

// Pick is the connection chosen for a call. It ends when the call ends, with the error
// of the call, see [PickCompletion].
type Pick struct {
	conn      *conn
	attempt   *attempt
	observers []layer.Observer // complete when Pick returns
	room      [4]layer.Observer
	ended     atomic.Bool
}

// Addr returns the address of the endpoint.
func (p *Pick) Addr() string { return p.conn.addr }

// PickCompletion is the [layer.Completion] of picks. A pick ends when gRPC ends the call, with
// the error of the call. A call that was not sent ends with a rejection, which does not count:
// its credentials failed, or its message cannot be encoded. Data is called for the first
// message of a stream of a [Client].
func PickCompletion(_ context.Context, p *Pick, o layer.Observer) *Pick {
	if p.observers == nil {
		p.observers = p.room[:0]
	}
	p.observers = append(p.observers, o)
	return p
}

// NewEndpointStack returns an empty stack for picks (see [WithEndpointLayer])
// with [PickCompletion] and [Classify]. Later options override these.
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

// done is called by gRPC at the end of the call, with locks held. A panic of an
// observer is dropped, because it would keep these locks.
func (p *Pick) done(info balancer.DoneInfo) {
	if p.ended.Swap(true) {
		return
	}
	if info.BytesSent && p.attempt != nil {
		p.attempt.sent.Store(true)
	}
	_ = panics.Contain(func() { panics.End(p.observers, p.outcome(info)) })
}

// outcome returns the error that ends the pick.
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

// unsendable reports whether gRPC could not encode or send a message. gRPC has only the text of
// the error for that. An error of the server with the same text arrives with a header.
func unsendable(err error) bool {
	text := status.Convert(err).Message()
	return strings.HasPrefix(text, "grpc: error while marshaling") || strings.HasPrefix(text, "grpc: error while compressing") ||
		strings.HasPrefix(text, "grpc: message too large") || strings.HasPrefix(text, "trying to send message larger than max")
}
