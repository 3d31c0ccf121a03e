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
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Balancer is a service that gives each request to one of a target's
// endpoints.
//
// Admission: it refuses at once if no endpoint is ready, or if five refused
// one request. Ready waits until an endpoint is ready.
//
// Cancellation: a request whose context is done is refused; the context of any
// other is passed on as it is.
//
// Body: not touched. When it ends is observed, see [WithCompletion].
//
// Errors: a refusal is a [layer.Error] of kind [layer.ErrNotReady] that says
// why: not resolved yet (with the resolver's last error as its cause), no
// endpoints ([discover.ErrNoEndpoints]), no such target
// ([discover.ErrDoesNotExist]), or none of them ready, with what the last one
// said as its cause. It is of kind [layer.ErrClosed] when the resolver will
// never answer ([resolve.ErrUnresolvable]) or the balancer's context has
// ended. What an endpoint's Call returns, other than a refusal, is passed on.
//
// A request that was sent before goes to an endpoint where it has not been, if
// one of those that are looked at is such a one: see [layer.Attempts].
//
// Cost: two clock readings, two or three atomic additions and a random number
// a request, however many endpoints there are; no lock. No allocation where a
// response is over when Call returns, else one.
//
// A Balancer is safe for concurrent use.
type Balancer[Req, Rsp any] struct {
	group    *group
	picker   picker
	ended    atomic.Pointer[layer.Error]
	start    time.Time             // of the clock
	complete layer.Completion[Rsp] // nil if a response is over when Call returns
	sample   Sample
	failures failures[Rsp]
	jury     *jury // nil if nothing is ejected
	ejection OutlierDetection
	meters   meters
	target   string
	pickName string
	zone     string
	ctx      context.Context //nolint:containedctx // the parent of every wait for an endpoint

	changed notify.Broadcast // an endpoint became ready, or all ended

	mu       sync.Mutex
	nodes    map[resolve.ID]*node[Req, Rsp]
	state    resolve.State
	err      error             // the resolver's last
	refuser  *node[Req, Rsp]   // the last one that became unready or closed
	departed uint64            // picks of nodes that were removed
	special  int               // nodes that weigh another than most
	waiting  []*node[Req, Rsp] // for their turn, the first is the next
	places   int               // that are taken
}

// New returns a balancer over the endpoints that changes tells of, such as
// [discover.Endpoints] does for the same ctx. It ranges over changes in a
// goroutine; when they end by themselves, the last set stays in force. Up to 16
// more goroutines wait in the Ready of endpoints that are not ready. Where there
// are more of these, each is waited for one second at a time, in turn. All
// goroutines end with ctx; after that every request is refused.
//
// New panics if changes is nil or the policy is not valid.
//
// A new endpoint that is ready gets requests at once. The services' Ready
// should keep to its contract: another error than those allowed is taken as
// not ready, and asked for again after a pause.
func New[Req, Rsp any](
	ctx context.Context, target string, changes iter.Seq[discover.Change[Req, Rsp]], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	if changes == nil {
		panic("balance: nil changes")
	}
	o := newOptions(opts)
	b := &Balancer[Req, Rsp]{
		group: newGroup(o.policy, o.random), start: time.Now(), complete: o.complete, sample: o.policy.Sample,
		meters: o.to.bind(), target: target, ejection: o.policy.OutlierDetection, pickName: o.policy.Picker.String(), zone: o.policy.Zone,
		ctx: ctx, nodes: make(map[resolve.ID]*node[Req, Rsp]),
	}
	b.failures.penalty, b.failures.after, b.failures.usual = o.policy.Penalty, o.retryAfter, &b.group.usual
	b.failures.byError = layer.DefaultClassifier[Rsp]
	b.failures.use(o.classify)
	b.picker = o.policy.Picker.on(b.group)
	if b.jury = newJury(o.policy.OutlierDetection); b.jury != nil {
		go b.preside(ctx)
	}
	context.AfterFunc(ctx, func() { b.end("the balancer has ended", context.Cause(ctx)) })
	go b.follow(ctx, changes)
	return b
}

// follow applies changes until they or ctx end. If they panic, the last set stays in
// force.
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

// Resolve returns a balancer over the endpoints that r finds for target, each
// with a service made by mk. It panics if r or mk is nil, or the policy is not valid.
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

// Ready returns nil once an endpoint is ready, and says so itself.
func (b *Balancer[Req, Rsp]) Ready(ctx context.Context) error {
	for range maxRefusals {
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
	// It is only a hint. An endpoint whose polls are refused, though its Ready
	// returns nil, must not keep anybody here.
	return nil
}

// confirm asks one endpoint of the ready set, which knows only of the refusals
// there have been, and takes it out if it is not ready any more. It is the
// cheapest one whatever the rule: to ask must not take the turn of a request.
func (b *Balancer[Req, Rsp]) confirm() bool {
	e := choices{group: b.group, few: scanned, k: someOf}.pick(query{now: b.now()})
	if e == nil {
		return false
	}
	n := nodeOf[Req, Rsp](e)
	err := n.poll()
	return err == nil || b.staysAfter(n, err)
}

// maxRefusals bounds what one Call tries. With half of the endpoints about to
// refuse, one request in 32 finds five of them in a row; they are then out of
// the ready set for all others.
const maxRefusals = 5

// Call gives req to a ready endpoint.
func (b *Balancer[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if ctx.Err() != nil {
		return none, &layer.Error{
			Layer: "balance", Target: b.target, Kind: layer.ErrNotReady,
			Reason: ctxreason.Text(ctx), Err: context.Cause(ctx),
		}
	}
	var last error
	hints := layer.PickInfoFromContext(ctx)
	for range maxRefusals {
		start := time.Since(b.start)
		n := b.pick(tick(start), hints)
		if n == nil {
			if err := b.refuse(); err != nil {
				b.meters.refused.Add(1)
				return none, err
			}
			continue // one became ready just now
		}
		if hints.Attempts != nil {
			hints.Attempts.Add(&n.endpoint) // before its Call, so that a hedge that runs beside it sees it
		}
		rsp, taken, err := b.send(ctx, n, req, start)
		if taken {
			return rsp, err
		}
		if ctx.Err() != nil {
			return rsp, b.whenLeft(ctx, err)
		}
		if b.staysAfter(n, err) && n.begin(tick(start)) {
			if rsp, taken, err = b.send(layer.PastBreakers(ctx), n, req, start); taken {
				return rsp, err
			}
			b.refusedBy(n, err)
		}
		last = said{err}
	}
	b.meters.refused.Add(1)
	return none, &layer.Error{
		Layer: "balance", Target: b.target, Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("refused %d times", maxRefusals), Err: last,
	}
}

// pick chooses a node and counts the request there.
func (b *Balancer[Req, Rsp]) pick(now uint32, hints layer.PickInfo) *node[Req, Rsp] {
	q := query{now: now, affinity: hints.Affinity, hasAffinity: hints.HasAffinity, tries: hints.Attempts}
	if hints.Explanation == nil {
		return b.begin(q)
	}
	q.why = new(looks)
	n := b.begin(q)
	b.explain(hints.Explanation, q, n)
	return n
}

func (b *Balancer[Req, Rsp]) begin(q query) *node[Req, Rsp] {
	for range 3 {
		e := b.picker.pick(q)
		switch {
		case e == nil && b.group.len() == 0:
			return nil
		case e == nil:
		case e.begin(q.now):
			return nodeOf[Req, Rsp](e)
		default:
			b.recount(nodeOf[Req, Rsp](e))
		}
	}
	// The set changes as fast as it is read. Nothing changes under the lock.
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.picker.pick(q); e != nil && e.begin(q.now) {
		return nodeOf[Req, Rsp](e)
	}
	return nil
}

func nodeOf[Req, Rsp any](e *endpoint) *node[Req, Rsp] {
	n, _ := e.node.(*node[Req, Rsp]) // there are no others
	return n
}

func (b *Balancer[Req, Rsp]) now() uint32 { return tick(time.Since(b.start)) }

// send gives req to n, where it was counted, and reports whether n took it.
func (b *Balancer[Req, Rsp]) send(
	ctx context.Context, n *node[Req, Rsp], req Req, start time.Duration,
) (rsp Rsp, taken bool, err error) {
	handed, returned := false, false
	defer func() {
		if !handed {
			defer b.free(n)
		}
		if !returned {
			layer.CloseBody(rsp)
		}
	}()
	rsp, err = n.service.Call(ctx, req)
	switch {
	case err == nil && b.complete == nil:
		b.observe(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Ended: true}, verdict{})
	case err == nil:
		x := b.exchange(ctx, n, start, rsp) // asks the classifier, which may panic
		handed = true
		rsp = x.observe(rsp)
	case errors.Is(err, layer.ErrNotReady):
		handed = true
		n.takeBack() // it was never there
		b.recount(n)
		returned = true
		return rsp, false, err
	default:
		b.observe(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Err: err}, verdict{})
	}
	returned = true
	return rsp, true, err
}

// EndpointState is what a balancer knows of an endpoint at a moment.
type EndpointState struct {
	ID        resolve.ID
	State     string            // ready, unready, ejected, closed
	Reason    error             // why it is not ready
	Latency   time.Duration     // what is expected of it
	Known     bool              // there was a response; if not, Latency is what is usual
	InFlight  uint64            // requests that it has now
	Picks     uint64            // requests that it was given
	Weight    float64           // 1 is one unit
	OtherZone bool              // it is in another zone than the balancer
	Age       time.Duration     // since it was added
	Labels    map[string]string // not to be changed
}

// Snapshot returns the endpoints, in the order of their addresses.
func (b *Balancer[Req, Rsp]) Snapshot() []EndpointState {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, states := b.survey()
	return states
}

// survey is the nodes and their states, in the order of their addresses. The
// mutex is held.
func (b *Balancer[Req, Rsp]) survey() ([]*node[Req, Rsp], []EndpointState) {
	now := time.Since(b.start)
	nodes := slices.SortedFunc(maps.Values(b.nodes), func(a, c *node[Req, Rsp]) int { return compareIDs(a.id, c.id) })
	states := make([]EndpointState, len(nodes))
	for i, n := range nodes {
		states[i] = EndpointState{
			ID: n.id, State: stateName(n.status.state()), Reason: n.reason,
			Latency: b.expected(&n.endpoint, tick(now)), Known: n.latency.word.Load() != 0,
			InFlight: n.inFlight(), Picks: n.picks(), Weight: n.plainWeight(), OtherZone: n.far,
			Age: now - n.born, Labels: n.info.Labels,
		}
	}
	return nodes, states
}
