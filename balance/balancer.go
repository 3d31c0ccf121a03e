package balance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/wake"
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
// Body: not touched. When it ends is observed, see [Until].
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
// one of those that are looked at is such a one: see [layer.Tries].
//
// Cost: two clock readings, two or three atomic additions and a random number
// a request, however many endpoints there are; no lock. No allocation where a
// response is over when Call returns, else one.
//
// A Balancer is safe for concurrent use.
type Balancer[Req, Rsp any] struct {
	ready    readySet[Req, Rsp]
	ended    atomic.Pointer[layer.Error]
	start    time.Time // of the clock
	decay    float64   // in ticks
	choices  int
	complete layer.Completion[Rsp] // nil if a response is over when Call returns
	failures failures[Rsp]
	rtt      time.Duration
	target   string
	ctx      context.Context //nolint:containedctx // the parent of every wait for an endpoint

	changed wake.Broadcast // an endpoint became ready, or all ended

	mu       sync.Mutex
	nodes    map[resolve.ID]*node[Req, Rsp]
	state    resolve.State
	err      error           // the resolver's last
	refuser  *node[Req, Rsp] // the last one that became unready or closed
	departed uint64          // picks of nodes that were removed
}

// New returns a balancer over the endpoints that changes tells of, such as
// [discover.Endpoints] does for the same ctx. It ranges over changes in a
// goroutine; when they end by themselves, the last set stays in force. Each
// endpoint that is not ready has one more goroutine, which waits in its Ready.
// All of them end with ctx; after that every request is refused.
//
// A new endpoint that is ready gets requests at once. The services' Ready
// should keep to its contract: another error than those allowed is taken as
// not ready, and asked for again after a pause.
func New[Req, Rsp any](
	ctx context.Context, target string, changes iter.Seq[discover.Change[Req, Rsp]], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	o := newOptions(opts)
	b := &Balancer[Req, Rsp]{
		start: time.Now(), decay: decayTicks(o.decay), choices: o.choices, complete: o.complete, failures: o.failures, rtt: o.rtt,
		target: target, ctx: ctx, nodes: make(map[resolve.ID]*node[Req, Rsp]),
	}
	b.ready.clear()
	context.AfterFunc(ctx, func() { b.end("the balancer has ended", context.Cause(ctx)) })
	go func() {
		for c := range changes {
			if ctx.Err() != nil {
				return
			}
			b.apply(c)
		}
	}()
	return b
}

// Resolve returns a balancer over the endpoints that r finds for target, each
// with a service made by mk.
func Resolve[Req, Rsp any](
	ctx context.Context, r resolve.Resolver, target string, mk discover.Make[Req, Rsp], opts ...Option[Rsp],
) *Balancer[Req, Rsp] {
	until := newOptions(opts).complete
	if until == nil {
		until = layer.AtReturn[Rsp]
	}
	return New(ctx, target, discover.Endpoints(ctx, r, target, mk, discover.Until(until)), opts...)
}

// Ready returns nil once an endpoint is ready, and says so itself.
func (b *Balancer[Req, Rsp]) Ready(ctx context.Context) error {
	for range maxRefusals {
		err := b.changed.Wait(ctx, func() bool { return b.ready.len() > 0 || b.ended.Load() != nil })
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
// there have been, and takes it out if it is not ready any more.
func (b *Balancer[Req, Rsp]) confirm() bool {
	n := b.ready.choose(b.choices, tick(time.Since(b.start)), b.decay)
	if n == nil {
		return false
	}
	err := layer.Poll(n.service)
	if err != nil {
		b.refusedBy(n, err)
	}
	return err == nil
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
			Reason: "the caller has gone", Err: context.Cause(ctx),
		}
	}
	var last error
	tries := layer.TriesOf(ctx)
	for range maxRefusals {
		start := time.Since(b.start)
		n := b.pick(tick(start), tries)
		if n == nil {
			if err := b.refuse(); err != nil {
				return none, err
			}
			continue // one became ready just now
		}
		tries.Add(n) // before its Call, so that a hedge that runs beside it sees it
		rsp, taken, err := b.send(ctx, n, req, start)
		if taken || ctx.Err() != nil {
			return rsp, err
		}
		b.refusedBy(n, err)
		last = said{err}
	}
	return none, &layer.Error{
		Layer: "balance", Target: b.target, Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("refused %d times", maxRefusals), Err: last,
	}
}

// pick chooses a node and counts the request there.
func (b *Balancer[Req, Rsp]) pick(now uint32, tries *layer.Tries) *node[Req, Rsp] {
	for range 3 {
		n := b.choose(now, tries)
		if n != nil && n.begin() {
			return n
		}
		if n == nil && b.ready.len() == 0 {
			return nil
		}
	}
	// The set changes as fast as it is read. Nothing changes under the lock.
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.choose(now, tries); n != nil && n.begin() {
		return n
	}
	return nil
}

func (b *Balancer[Req, Rsp]) choose(now uint32, tries *layer.Tries) *node[Req, Rsp] {
	if tries.Len() > 0 {
		return b.ready.chooseElsewhere(tries, b.choices, now, b.decay)
	}
	return b.ready.choose(b.choices, now, b.decay)
}

// send gives req to n, where it was counted, and reports whether n took it.
func (b *Balancer[Req, Rsp]) send(
	ctx context.Context, n *node[Req, Rsp], req Req, start time.Duration,
) (rsp Rsp, taken bool, err error) {
	handed := false
	defer func() {
		if !handed {
			n.end()
		}
	}()
	rsp, err = n.service.Call(ctx, req)
	switch {
	case err == nil && b.complete == nil:
		b.record(n, start, b.failures.price(ctx, layer.Outcome[Rsp]{Response: rsp, Ended: true}))
	case err == nil:
		handed = true
		rsp = b.complete(ctx, rsp, b.exchange(ctx, n, start, rsp))
	case errors.Is(err, layer.ErrNotReady):
		handed = true
		n.takeBack()
		return rsp, false, err
	default:
		b.observe(ctx, n, start, layer.Outcome[Rsp]{Response: rsp, Err: err})
	}
	return rsp, true, err
}

// record takes the latency of a response that began at start and is here now.
// One that failed counts as no less than its price, and no less than what was
// expected.
func (b *Balancer[Req, Rsp]) record(n *node[Req, Rsp], start, price time.Duration) {
	now := time.Since(b.start)
	took := now - start
	if price > 0 {
		took = max(took, price, time.Duration(n.latency.read(tick(now), b.decay)))
	}
	n.latency.record(took, tick(now), b.decay)
}

// observe takes the latency of a request that ended without a byte. If it was
// the caller who left, or whose time was over, the response would have taken
// longer than that by an unknown time: it tells something only if that is
// already more than was expected. One that was refused after all tells nothing.
func (b *Balancer[Req, Rsp]) observe(ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp]) {
	now := time.Since(b.start)
	switch {
	case out.Err != nil && ctx.Err() != nil:
		if float64(now-start) > n.latency.read(tick(now), b.decay) {
			b.record(n, start, 0)
		}
	case errors.Is(out.Err, layer.ErrNotReady):
	default:
		b.record(n, start, b.failures.price(ctx, out))
	}
}
