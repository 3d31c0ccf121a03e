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

// Balancer is a service that sends each request to one endpoint of a target. A retry or
// hedge goes to an endpoint that the request has not tried, if there is one: see
// [layer.Attempts]. A Balancer is safe for concurrent use.
//
// Admission: a request is rejected at once if no endpoint is ready, or if five endpoints
// rejected it. Ready waits until an endpoint is ready.
//
// Cancellation: a request is rejected if its context has ended. The endpoint gets the
// context unchanged.
//
// Body: not changed. The balancer observes the end of the body: see [WithCompletion].
//
// Errors: a rejection is a [layer.Error] of kind [layer.ErrNotReady]. Its cause is the last
// error of an endpoint. Without endpoints, it is the last error of the resolver,
// [discover.ErrNoEndpoints] or [discover.ErrDoesNotExist]. The kind is [layer.ErrClosed]
// after the resolver returned [resolve.ErrUnresolvable] or the balancer's context ended.
// Other errors of an endpoint are passed unchanged.
//
// Cost: two clock readings, two or three atomic additions and a random number, for any
// number of endpoints. No lock. One allocation for a response with a body.
type Balancer[Req, Rsp any] struct {
	group     *group
	picker    picker
	ended     atomic.Pointer[layer.Error]
	start     time.Time             // the start of the balancer's clock: see tick
	complete  layer.Completion[Rsp] // nil if a response ends when Call returns
	sample    Sample
	failures  failures[Rsp]
	detection OutlierDetection
	meters    meters
	target    string
	pickName  string
	zone      string
	ctx       context.Context //nolint:containedctx // the parent of the contexts for Ready of nodes

	changed notify.Broadcast // notifies that an endpoint became ready, or the balancer ended

	mu          sync.Mutex
	nodes       map[resolve.ID]*node[Req, Rsp]
	state       resolve.State     // the last state that the resolver reported
	err         error             // the last error of the resolver
	lastUnready *node[Req, Rsp]   // the last node that became unready or closed
	waiting     []*node[Req, Rsp] // nodes for which a goroutine must call Ready, in order
	turns       int               // number of goroutines that call Ready of nodes

	rates              []successRate // the success rates at the last comparison
	ejected            int           // nodes that are ejected
	ejections, skipped uint64
	panicEnd           time.Duration // circuit breakers are ignored until this time after start
}

// New returns a balancer. The sequence in the argument changes adds, updates and removes its
// endpoints. It is usually the result of [discover.Endpoints] for the same ctx. If the sequence
// ends before ctx, the last set of endpoints stays.
//
// New ranges over the sequence in a goroutine. Up to 16 more goroutines wait in the Ready
// of endpoints that are not ready. If more endpoints wait, they take turns of one second.
// If Ready returns an error before its context has ended, the goroutine calls Ready again
// after a pause. All goroutines end with ctx. After that every request is rejected.
//
// New panics if changes is nil or the policy is invalid.
func New[Req, Rsp any](
	ctx context.Context, target string, changes iter.Seq[discover.Change[Req, Rsp]], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	if changes == nil {
		panic("balance: nil changes")
	}
	o := newOptions(opts)
	b := &Balancer[Req, Rsp]{
		group: newGroup(o.policy, o.random), start: time.Now(), complete: o.complete, sample: o.policy.Sample,
		meters: o.to.bind(), target: target, detection: o.policy.OutlierDetection, pickName: o.policy.Picker.String(), zone: o.policy.Zone,
		ctx: ctx, nodes: make(map[resolve.ID]*node[Req, Rsp]),
	}
	b.failures.penalty, b.failures.median = o.policy.Penalty, &b.group.median
	b.failures.byError = layer.DefaultClassifier[Rsp]
	b.failures.use(o.classify)
	b.picker = o.policy.Picker.on(b.group)
	if b.detection.Interval > 0 {
		go b.compareRates(ctx)
	}
	context.AfterFunc(ctx, func() { b.end("the balancer has ended", context.Cause(ctx)) })
	go b.follow(ctx, changes)
	return b
}

// follow applies each change in the argument changes, until that sequence or ctx ends. If
// the sequence panics, the last set of endpoints stays.
func (b *Balancer[Req, Rsp]) follow(ctx context.Context, changes iter.Seq[discover.Change[Req, Rsp]]) {
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
		defer b.mu.Unlock()
		b.err = err
	}
}

// Resolve returns a balancer over the endpoints to which the resolver r resolves target. The
// function mk makes the service of each endpoint. Resolve panics if r or mk is nil, or if the
// policy is invalid.
func Resolve[Req, Rsp any](
	ctx context.Context, r resolve.Resolver, target string, mk discover.MakeService[Req, Rsp], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	switch {
	case r == nil:
		panic("balance: nil resolver")
	case mk == nil:
		panic("balance: nil MakeService")
	}
	until := newOptions(opts).complete
	if until == nil {
		until = layer.AtReturn[Rsp]
	}
	return New(ctx, target, discover.Endpoints(ctx, r, target, mk, discover.WithCompletion(until)), opts...)
}

// Ready waits until an endpoint is ready, and polls that endpoint to confirm it.
func (b *Balancer[Req, Rsp]) Ready(ctx context.Context) error {
	for range b.group.len() + maxRejections {
		err := b.changed.Wait(ctx, func() bool { return b.group.len() > 0 || b.ended.Load() != nil })
		if err != nil {
			return err
		}
		if ended := b.ended.Load(); ended != nil {
			return ended
		}
		if b.confirm() {
			return nil
		}
	}
	// A service may return nil from Ready although its poll fails. Ready must not loop then.
	return nil
}

// confirm polls the cheapest ready endpoint and reports whether that endpoint is still
// ready. If the poll fails, rejectedBy decides whether the endpoint stays in its ready set.
// confirm does not use the picker, because that would advance a round robin.
func (b *Balancer[Req, Rsp]) confirm() bool {
	e := (&choices{b.group, maxExamined}).pick(query{now: b.now()})
	if e == nil {
		return false
	}
	n := nodeOf[Req, Rsp](e)
	err := n.poll()
	return err == nil || b.rejectedBy(n, err, isByBreaker(err), false)
}

// maxRejections is the largest number of picks of one Call. If each endpoint rejects half of
// the requests, one request in 32 is rejected five times in a row.
const maxRejections = 5

// Call sends req to a ready endpoint. If the endpoint rejects req, Call tries other
// endpoints, up to maxRejections in total.
func (b *Balancer[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, b.notReady(ctxreason.Text(ctx), context.Cause(ctx))
	}
	var last error
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
		if ctx.Err() != nil {
			return rsp, b.notReady(ctxreason.Text(ctx), endpointError{err})
		}
		if b.rejectedBy(n, err, isByBreaker(err), i == maxRejections-1) && n.begin(tick(start)) {
			if rsp, admitted, err = b.send(layer.PastBreakers(ctx), n, req, start); admitted {
				record.AddAttempt(b.target, n.id.Addr)
				return rsp, err
			}
			b.rejectedBy(n, err, false, false)
		}
		last = endpointError{err}
	}
	b.meters.rejected.Add(1)
	return zero, b.notReady(fmt.Sprintf("rejected by %d endpoints", maxRejections), last)
}

// pick picks a node for a request and counts the request as in flight at that node. It returns a
// nil node if no node is ready. The argument info has the values in the context of the request that
// are for balancers. If info has Attempts, pick adds the node to them. If info has an Explanation,
// pick adds the reasons of the choice to it. The second result is info.Record, which collects facts
// about the request and may be nil.
func (b *Balancer[Req, Rsp]) pick(now uint32, info layer.PickInfo) (*node[Req, Rsp], *layer.Record) {
	q := query{now: now, affinity: info.Affinity, hasAffinity: info.HasAffinity, attempts: info.Attempts}
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

func (b *Balancer[Req, Rsp]) begin(q query) *node[Req, Rsp] {
	for range 3 {
		e := b.picker.pick(q)
		switch {
		case e == nil && b.group.len() == 0:
			return nil
		case e != nil && e.begin(q.now):
			return nodeOf[Req, Rsp](e)
		}
	}
	// The set changed during each pick. It does not change while mu is held.
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.picker.pick(q); e != nil && e.begin(q.now) {
		return nodeOf[Req, Rsp](e)
	}
	return nil
}

func nodeOf[Req, Rsp any](e *endpoint) *node[Req, Rsp] {
	n, _ := e.node.(*node[Req, Rsp]) // node has no other type
	return n
}

func (b *Balancer[Req, Rsp]) now() uint32 { return tick(time.Since(b.start)) }

// send sends req to the node n, and records the latency and the result. The result admitted is
// false if n rejected req. The caller has counted req as in flight at n. send ends this count when
// n has rejected req or the response has ended. The argument start is the time of the pick,
// relative to the start of the balancer.
func (b *Balancer[Req, Rsp]) send(
	ctx context.Context, n *node[Req, Rsp], req Req, start time.Duration,
) (rsp Rsp, admitted bool, err error) {
	observed, returned := false, false
	defer func() {
		if !returned {
			defer layer.CloseBody(rsp)
		}
		if !observed {
			b.finish(n)
		}
	}()
	rsp, err = n.service.Call(ctx, req)
	switch {
	case err == nil && b.complete == nil:
		b.observeResponse(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Ended: true})
	case err == nil:
		x := b.exchange(ctx, n, start, rsp) // calls the classifier, which may panic
		observed = true
		rsp = x.observe(rsp)
	case errors.Is(err, layer.ErrNotReady):
		observed = true
		n.undoBegin()
		returned = true
		return rsp, false, err
	default:
		b.observe(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Err: err}, result{})
	}
	returned = true
	return rsp, true, err
}

// EndpointState is the state of an endpoint when [Balancer.Snapshot] was called.
type EndpointState struct {
	ID        resolve.ID
	State     string            // ready, unready, ejected, or closed (after layer.ErrClosed)
	Reason    error             // why the endpoint is not ready; nil if it is ready
	Latency   time.Duration     // the expected latency
	Known     bool              // whether a response was measured; if not, Latency is the median of all endpoints
	InFlight  uint64            // requests in flight
	Picks     uint64            // requests sent since the endpoint was added
	Weight    float64           // relative to the default weight, which is 1
	OtherZone bool              // whether the endpoint is in another zone than the balancer
	Failures  uint32            // consecutive failures
	Age       time.Duration     // since the endpoint was added
	Labels    map[string]string // must not be modified

	// whether the endpoint is ready, but gets no requests because the endpoints in the
	// aperture of the [Picker] have enough room
	OutsideAperture bool
}

// Snapshot returns the states of all endpoints, in the order of their addresses.
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
		states[i] = EndpointState{
			ID: n.id, State: stateName(n.status.state()), Reason: n.reason,
			Latency: b.expected(&n.endpoint, tick(now)), Known: n.latency.word.Load() != 0,
			InFlight: n.inFlight(), Picks: n.picks(), Weight: n.plainWeight(), OtherZone: n.far, Failures: n.fails.Load(),
			OutsideAperture: n.status.state() == ready && n.slot >= b.group.aperture.limit(b.group.set(&n.endpoint).len()),
			Age:             now - n.born, Labels: n.info.Labels,
		}
	}
	return nodes, states
}
