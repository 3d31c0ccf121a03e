package balance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Balancer is a service that sends each request to one endpoint of a target. Retries and hedges
// go to an endpoint that the request has not tried, if there is one: see [layer.Attempts]. A
// Balancer is safe for concurrent use.
//
// Admission: a request is rejected at once if no endpoint is ready, or if five endpoints rejected
// it. Ready waits until an endpoint is ready.
//
// Cancellation: a request is rejected if its context has ended. The endpoint gets the context
// unchanged.
//
// Body: not changed. The balancer observes the end of the body: see [WithCompletion].
//
// Errors: a rejection is a [layer.Error] of kind [layer.ErrNotReady]. Its cause is the last
// endpoint error. Without endpoints, it is the resolver's last error, [discover.ErrNoEndpoints]
// or [discover.ErrDoesNotExist]. The kind is [layer.ErrClosed] after the resolver returned
// [resolve.ErrUnresolvable] or the balancer's context ended. Other endpoint errors are passed
// unchanged.
//
// Cost: two clock readings, two or three atomic additions and a random number, however many
// endpoints there are. It takes no lock. A response with a body costs one allocation.
type Balancer[Req, Rsp any] struct {
	group    *group                      // of priority 0, without a weighted locality
	division atomic.Pointer[division]    // nil if there is no other group
	policy   atomic.Pointer[Policy]      // the current policy: see SetPolicy
	ended    atomic.Pointer[layer.Error] // the rejection of every request after the balancer has ended; nil before
	start    time.Time                   // the start of the balancer's clock: see tick
	complete layer.Completion[Rsp]       // nil if a response ends when Call returns
	failures failures[Rsp]               // classifies responses
	meters   meters                      // the metrics
	target   string                      // the name of the target, for errors and events
	ctx      context.Context             //nolint:containedctx // the parent of the contexts for Ready of nodes

	changed  notify.Broadcast // notifies that an endpoint became ready, all have failed, the first change came, or the balancer ended
	resolved atomic.Bool      // whether the first change came, or the sequence of changes panicked
	failFast bool             // see Config.FailFast
	failed   atomic.Bool      // whether failFast is true and every endpoint has failed

	mu          sync.Mutex
	nodes       map[resolve.ID]*node[Req, Rsp]
	groups      []*group          // by their keys
	state       resolve.State     // the last state that the resolver reported
	err         error             // the last error of the resolver
	lastUnready *node[Req, Rsp]   // the last node that became unready or closed
	waiting     []*node[Req, Rsp] // nodes for which a goroutine must call Ready, in order
	turns       int               // number of goroutines that call Ready of nodes: see maxTurns
	down        int               // number of nodes with isDown
	events      events

	displaced atomic.Bool                    // whether a doubted endpoint has left the aperture
	recalled  atomic.Uint32                  // the tick at which recall moved the last one back
	responses atomic.Uint32                  // the number of responses since then
	pending   atomic.Int64                   // nodes that are not ready
	relieved  atomic.Uint32                  // the tick of the last call of relieve that had an effect
	outcast   atomic.Pointer[node[Req, Rsp]] // the ejected node that is probed next; nil if none is

	// Outlier detection; guarded by mu.
	rates              []successRate      // the success rates at the last comparison
	stopComparing      context.CancelFunc // ends the comparisons of success rates
	ejected            int                // nodes that are ejected
	ejections, skipped uint64             // numbers of ejections, and of those that MinReady prevented
	panicEnd           time.Duration      // circuit breakers are ignored until this time after start
	strainEnd          time.Duration      // no node is ejected until this time after start
}

// New returns a balancer. changes adds, updates and removes its endpoints; usually it is the result
// of [discover.Endpoints] for the same ctx. If the sequence ends before ctx, the last set of
// endpoints stays.
//
// New ranges over the sequence in a goroutine. Up to 128 more goroutines wait in the Ready of endpoints
// that are not ready. If more endpoints wait, they take turns of one second. If Ready returns an error
// before its context has ended, the goroutine calls Ready again after a pause. All goroutines end with
// ctx, and every later request is rejected.
//
// New panics if changes is nil or the policy is invalid.
func New[Req, Rsp any](
	ctx context.Context, cfg Config, changes iter.Seq[discover.Change[Req, Rsp]], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	if changes == nil {
		panic("balance: nil changes")
	}
	o := newOptions(cfg, opts)
	b := &Balancer[Req, Rsp]{
		group: newGroup(o.Policy, o.Rand), start: time.Now(), complete: o.complete,
		meters: o.Metrics.bind(), target: o.Target, ctx: ctx, nodes: make(map[resolve.ID]*node[Req, Rsp]),
		stopComparing: func() {}, events: events{f: o.OnEvent, target: o.Target}, failFast: o.FailFast,
	}
	b.groups = []*group{b.group}
	b.group.use(o.Policy.Picker)
	b.failures.byError = layer.DefaultClassifier[Rsp] // applies until a classifier is known
	b.failures.use(o.classify)                        // without WithClassifier, newNode uses that of an endpoint
	b.policy.Store(&o.Policy)
	b.startComparing() // of success rates, by the policy's OutlierDetection
	context.AfterFunc(ctx, func() { b.end("the balancer has ended", context.Cause(ctx)) })
	go b.follow(ctx, changes)
	return b
}

// follow applies each change in changes, until that sequence or ctx ends. It is the function of a
// goroutine. If the sequence panics, the last set of endpoints stays.
func (b *Balancer[Req, Rsp]) follow(ctx context.Context, changes iter.Seq[discover.Change[Req, Rsp]]) {
	// The sequence is user code, so a panic in it must not end the process.
	err := panics.Do("the sequence of changes", func() error {
		for c := range changes {
			if ctx.Err() != nil {
				return nil
			}
			b.apply(c)
		}
		return nil
	})
	if err != nil {
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
		// No first change will be applied any more, so callers of Resolved must not wait for it.
		b.resolved.Store(true)
		b.changed.Wake()
	}
}

// Resolve returns a balancer over the endpoints to which the resolver r resolves cfg.Target. mk makes
// each endpoint's service. Resolve panics if r or mk is nil, or if the policy is invalid.
func Resolve[Req, Rsp any](
	ctx context.Context, r resolve.Resolver, cfg Config, mk discover.MakeService[Req, Rsp], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	switch {
	case r == nil:
		panic("balance: nil resolver")
	case mk == nil:
		panic("balance: nil MakeService")
	}
	complete := newOptions(cfg, opts).complete
	if complete == nil {
		complete = layer.AtReturn[Rsp]
	}
	return New(ctx, cfg, discover.Endpoints(ctx, r, cfg.Target, mk, discover.WithCompletion(complete)), opts...)
}

// Ready waits until an endpoint is ready, and polls that endpoint to confirm it. With FailFast in its [Config], it
// returns an error if every endpoint has failed.
func (b *Balancer[Req, Rsp]) Ready(ctx context.Context) error { return b.readyUnless(ctx, &b.failed) }

// WaitReady is like Ready, but also waits while every endpoint has failed.
func (b *Balancer[Req, Rsp]) WaitReady(ctx context.Context) error {
	// A flag that stays false means that a failure of all endpoints does not end the wait.
	return b.readyUnless(ctx, new(atomic.Bool))
}

// readyUnless waits until an endpoint is ready, or until failed is true and there is an error to
// report.
func (b *Balancer[Req, Rsp]) readyUnless(ctx context.Context, failed *atomic.Bool) error {
	// Each endpoint may turn out to be not ready, and a few more may join meanwhile.
	for range b.readyLen() + maxRejections {
		err := b.changed.Wait(ctx, func() bool { return b.readyLen() > 0 || failed.Load() || b.ended.Load() != nil })
		if err != nil {
			return err
		}
		if ended := b.ended.Load(); ended != nil {
			return ended
		}
		if failed.Load() {
			if err := b.failure(); err != nil {
				return err
			}
		}
		if b.confirm() {
			return nil
		}
	}
	// A service may return nil from Ready although its poll fails. Ready must not loop then.
	return nil
}

// Resolved waits until the resolver has answered for the first time: with or without endpoints, or
// with an error. It also returns nil after the balancer has ended.
func (b *Balancer[Req, Rsp]) Resolved(ctx context.Context) error {
	return b.changed.Wait(ctx, func() bool { return b.resolved.Load() || b.ended.Load() != nil })
}

// confirm polls one ready endpoint, because a ready set may be out of date, and reports whether it is
// still ready. That is the cheapest endpoint of the first group that has any; the picker is not used,
// because that would advance a round robin. If the poll fails, the endpoint leaves its ready set,
// unless its breaker is ignored: see rejectedBy.
func (b *Balancer[Req, Rsp]) confirm() bool {
	var e *endpoint
	// With several groups, those of the first priorities come first.
	groups := []*group{b.group}
	if t := b.division.Load(); t != nil {
		groups = t.groups
	}
	for _, g := range groups {
		if e = (&choices{g, maxExamined}).pick(query{now: b.now(), isPoll: true}); e != nil {
			break
		}
	}
	if e == nil {
		return false
	}
	// rejectedBy returns true if n stays ready although its breaker is open, because breakers are
	// ignored now. The last argument is false, because a poll is never the last pick of a request.
	n := nodeOf[Req, Rsp](e)
	err := n.poll()
	return err == nil || b.rejectedBy(n, err, isByBreaker(err), false)
}

// maxRejections is how many endpoints a Call tries to pick at most. If each endpoint rejects half
// of the requests, one request in 32 is rejected five times in a row.
const maxRejections = 5

// Call sends req to a ready endpoint. If the endpoint rejects req, Call tries other
// endpoints, up to maxRejections in total.
func (b *Balancer[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, b.notReady(ctxreason.Text(ctx), context.Cause(ctx))
	}
	var last error
	// An endpoint that rejects req leaves its ready set, so the next pick finds another one.
	for i := range maxRejections {
		start := time.Since(b.start)
		n, record := b.pick(tick(start), layer.PickInfoFromContext(ctx))
		if n == nil {
			if err := b.reject(); err != nil {
				b.meters.rejected.Add(1)
				return zero, err
			}
			continue // an endpoint became ready
		}
		rsp, admitted, err := b.send(ctx, n, req, start)
		if admitted {
			record.AddAttempt(b.target, n.id.Addr)
			return rsp, err
		}
		// The end of the caller's context is no reason to blame the endpoint.
		if ctx.Err() != nil {
			return rsp, b.notReady(ctxreason.Text(ctx), endpointError{err})
		}
		// If n stays ready although its breaker rejected req, the balancer ignores the breaker, and
		// sends req to n once more.
		if b.rejectedBy(n, err, isByBreaker(err), i == maxRejections-1) && n.begin(tick(start)) {
			if rsp, admitted, err = b.send(layer.PastBreakers(ctx), n, req, start); admitted {
				record.AddAttempt(b.target, n.id.Addr)
				return rsp, err
			}
			b.rejectedBy(n, err, false, false) // so that n leaves its ready set
		}
		// The last endpoint's error becomes the cause of the balancer's.
		last = endpointError{err}
	}
	b.meters.rejected.Add(1)
	return zero, b.notReady(fmt.Sprintf("rejected by %d endpoints", maxRejections), last)
}

// pick picks a node for a request and counts the request as in flight at that node. The node is nil if
// no node is ready. info holds the values from the request context that are meant for balancers: pick
// avoids the nodes in its Attempts and adds the picked one, and explains the choice in its Explanation,
// if there is one. The second result is info.Record, which may be nil.
func (b *Balancer[Req, Rsp]) pick(now uint32, info layer.PickInfo) (*node[Req, Rsp], *layer.Record) {
	q := query{now: now, affinity: info.Affinity, hasAffinity: info.HasAffinity, attempts: info.Attempts}
	// Only a request with an Explanation pays for it.
	if info.Explanation != nil {
		q.examined = new(examined)
	}
	n := b.begin(q)
	if q.examined != nil {
		b.explain(info.Explanation, q, n)
	}
	if info.Attempts != nil && n != nil {
		info.Attempts.Add(&n.endpoint) // before Call, so that a concurrent hedge uses another endpoint
	}
	return n, info.Record
}

// begin picks a node and counts the request as in flight there. It returns nil if no node is ready.
func (b *Balancer[Req, Rsp]) begin(q query) *node[Req, Rsp] {
	// An ejected node is in no ready set. It gets a probe now and then.
	if n := b.outcast.Load(); n != nil && b.claimOutcast(n, q) {
		return n
	}
	// The picked endpoint may have become unready in the same moment.
	for range 3 {
		e := b.pickOne(q)
		switch {
		case e == nil && b.readyLen() == 0:
			return nil
		case e != nil && e.begin(q.now):
			return nodeOf[Req, Rsp](e)
		}
	}
	// The set changed during each pick. It does not change while mu is held.
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.pickOne(q); e != nil && e.begin(q.now) {
		return nodeOf[Req, Rsp](e)
	}
	return nil
}

// nodeOf returns the node that contains e.
func nodeOf[Req, Rsp any](e *endpoint) *node[Req, Rsp] {
	n, _ := e.node.(*node[Req, Rsp]) // node has no other type
	return n
}

// now returns the current time in ticks.
func (b *Balancer[Req, Rsp]) now() uint32 { return tick(time.Since(b.start)) }

// send sends req to the node n, and records the latency and the result. The caller has counted req as
// in flight at n; send ends that count when the response has ended, or undoes it if n has rejected req,
// in which case admitted is false. start is when the request was picked, relative to the balancer's
// start.
func (b *Balancer[Req, Rsp]) send(
	ctx context.Context, n *node[Req, Rsp], req Req, start time.Duration,
) (rsp Rsp, admitted bool, err error) {
	// Set as soon as each part is done, so that a panic in between undoes only what is left.
	observed, returned := false, false
	defer func() {
		if !returned {
			// A response that does not reach the caller is closed.
			defer layer.CloseBody(rsp)
		}
		if !observed {
			b.finish(n)
		}
	}()
	rsp, err = n.service.Call(ctx, req)
	switch {
	case err == nil && b.complete == nil:
		// The response is complete when Call returns, because it has no body.
		b.observeResponse(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Ended: true})
	case err == nil:
		x := b.exchange(ctx, n, start, rsp) // calls the classifier, which may panic
		observed = true
		rsp = x.observe(rsp) // the exchange is now responsible for ending the count
	case errors.Is(err, layer.ErrNotReady):
		// observed is set because undoBegin, and not finish, ends the count: the request was not sent.
		observed = true
		n.undoBegin()
		returned = true
		return rsp, false, err
	default:
		b.observe(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Err: err}, success)
	}
	returned = true
	return rsp, true, err
}

// EndpointState is an endpoint's state when [Balancer.Snapshot] was called.
type EndpointState struct {
	ID        resolve.ID
	State     string            // ready, unready, ejected, or closed (after layer.ErrClosed)
	Reason    error             // why the endpoint is not ready; nil if it is ready
	Latency   time.Duration     // the expected latency: an average of the measured ones, without the cost of failures
	Cost      time.Duration     // with [EWMA], the cost of one more request if failures increase it, or else 0
	Known     bool              // whether a response was measured; if not, Latency is the median of all endpoints
	InFlight  uint64            // requests in flight
	Picks     uint64            // requests sent since the endpoint was added
	Weight    float64           // relative to the default weight, which is 1
	OtherZone bool              // whether the endpoint is in another zone than the balancer
	Priority  uint32            // 0 is the first
	Locality  string            // the name of its locality; "" if unknown
	Failures  uint32            // consecutive failures
	ErrorRate float64           // of the last 64 requests, approximately
	Doubted   bool              // whether it gets only probes after failures, see Failures in the package documentation
	Age       time.Duration     // since the endpoint was added
	Labels    map[string]string // must not be modified

	// whether the endpoint is ready, but gets no requests because the endpoints in the
	// aperture of the [Picker] have enough room
	OutsideAperture bool
}

// Snapshot returns the states of all endpoints, sorted by address.
func (b *Balancer[Req, Rsp]) Snapshot() []EndpointState {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, states := b.states()
	return states
}

// states returns the nodes and their states in the order of their addresses. The caller
// must hold mu.
func (b *Balancer[Req, Rsp]) states() ([]*node[Req, Rsp], []EndpointState) {
	now := time.Since(b.start)
	nodes := slices.SortedFunc(maps.Values(b.nodes), func(a, c *node[Req, Rsp]) int { return a.id.Addr.Compare(c.id.Addr) })
	states := make([]EndpointState, len(nodes))
	for i, n := range nodes {
		g := b.groupAt(n)
		states[i] = EndpointState{
			ID: n.id, State: stateName(n.status.state()), Reason: n.reason,
			Latency: b.expected(&n.endpoint, tick(now)), Cost: g.failureCost(&n.endpoint, tick(now)), Known: n.latency.word.Load() != 0,
			InFlight: n.inFlight(), Picks: n.picks(), Weight: n.plainWeight(), OtherZone: n.far, Failures: n.fails.Load(),
			ErrorRate: float64(n.errorRate(tick(now), g.params.Load())), Doubted: n.level.Load() > 0,
			OutsideAperture: n.status.state() == ready && n.slot >= g.aperture.limit(g.set(&n.endpoint).len()),
			Age:             now - n.born, Labels: n.info.Labels, Priority: n.info.Priority, Locality: n.info.Locality,
		}
	}
	return nodes, states
}
