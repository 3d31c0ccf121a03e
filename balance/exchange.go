package balance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// exchange observes one response.
type exchange[Req, Rsp any] struct {
	balancer *Balancer[Req, Rsp]
	node     *node[Req, Rsp]
	ctx      context.Context //nolint:containedctx // the caller's: it tells a caller who left from an endpoint that failed
	start    time.Duration
	head     verdict // of a response whose head says that it failed
	rsp      Rsp
	stage    atomic.Uint32
}

// The stages of an exchange. Whoever moves it to the last has ended it.
const (
	unsampled uint32 = iota
	sampled          // its latency was taken
	finished
)

func (b *Balancer[Req, Rsp]) exchange(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, rsp Rsp,
) *exchange[Req, Rsp] {
	x := &exchange[Req, Rsp]{
		balancer: b, node: n, ctx: ctx, start: start, rsp: rsp,
		head: b.failures.judge(ctx, layer.Outcome[Rsp]{Response: rsp}),
	}
	if b.sample == SampleHeaders {
		x.take()
	}
	return x
}

// take takes the latency, once.
func (x *exchange[Req, Rsp]) take() {
	if x.stage.Load() == unsampled && x.stage.CompareAndSwap(unsampled, sampled) {
		x.balancer.hear(x.node, x.start, x.head)
		x.node.status.stream(1)
	}
}

// observe has the response observed; if that panics, the exchange is over.
func (x *exchange[Req, Rsp]) observe(rsp Rsp) Rsp {
	observed := false
	defer func() {
		if !observed {
			x.cancel()
		}
	}()
	rsp = x.balancer.complete(x.ctx, rsp, x)
	observed = true
	return rsp
}

// cancel ends an exchange that nobody observes, unless it has ended before.
func (x *exchange[Req, Rsp]) cancel() {
	stage := x.stage.Swap(finished)
	if stage == sampled {
		x.node.status.stream(-1)
	}
	if stage != finished {
		x.balancer.free(x.node)
	}
}

// SampleHeaders takes the latency of an upgraded connection, which says its first word when
// it has one to say.
func (x *exchange[Req, Rsp]) Head() { x.Data(0) }

// Data takes the latency at the first byte.
func (x *exchange[Req, Rsp]) Data(int) {
	if x.balancer.sample != SampleEnd {
		x.take()
	}
}

// SampleEnd takes the latency of a response without a byte, and the failure of one
// that looked well until then, for which it had all its time.
func (x *exchange[Req, Rsp]) End(err error) {
	stage := x.stage.Swap(finished)
	if stage == finished {
		return // whoever was to observe it panicked
	}
	defer x.balancer.free(x.node)
	out := layer.Outcome[Rsp]{Response: x.rsp, Err: err, Ended: err == nil}
	if stage == unsampled {
		x.balancer.observe(x.ctx, x.node, x.start, out, x.head)
		return
	}
	x.node.status.stream(-1)
	v := x.head
	switch {
	case v.failed:
	case v.ignored:
		return
	case err != nil && x.ctx.Err() != nil && !errors.Is(err, layer.ErrBodyClosedEarly):
		return // the caller left in the midst of it: it was neither good nor bad
	default:
		if v = x.balancer.failures.judge(x.ctx, out); v.price > 0 {
			x.balancer.record(x.node, time.Since(x.balancer.start), v.price)
		}
	}
	x.balancer.note(x.node, v)
}

// observe takes the latency of a request that ended without a byte. If the caller
// left, or its deadline passed, the response would have taken longer than that by
// an unknown time: the latency counts only if it is more than was expected. A
// request that was refused after all says nothing.
func (b *Balancer[Req, Rsp]) observe(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp], head verdict,
) {
	switch {
	case out.Err != nil && ctx.Err() != nil:
		v := head
		if !v.failed {
			v = b.miss(ctx, n, start, out)
		}
		if head.price > 0 || b.isLong(n, start) {
			b.record(n, start, head.price)
		}
		if v.failed {
			b.note(n, v)
		}
	case out.Err != nil && errors.Is(out.Err, layer.ErrNotReady):
	default:
		v := b.failures.judge(ctx, out)
		b.hear(n, start, v)
		b.note(n, v)
	}
}

// miss judges a request whose context ended before an answer came. It is a failure
// if the classifier says so, the wait was longer than is usual, and n missed enough
// such deadlines in a row.
func (b *Balancer[Req, Rsp]) miss(ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp]) verdict {
	if time.Since(b.start)-start <= time.Duration(b.group.usual.read()) {
		return verdict{}
	}
	v := b.failures.judge(ctx, out)
	if !v.failed || !n.miss() {
		return verdict{}
	}
	return v
}

// hear takes an answer that is here now. The latency of one that says nothing
// counts if it is already more than was expected.
func (b *Balancer[Req, Rsp]) hear(n *node[Req, Rsp], start time.Duration, v verdict) {
	n.answer()
	if !v.ignored || b.isLong(n, start) {
		b.record(n, start, v.price)
	}
}

func (b *Balancer[Req, Rsp]) isLong(n *node[Req, Rsp], start time.Duration) bool {
	now := time.Since(b.start)
	return now-start > b.expected(&n.endpoint, tick(now))
}

func (b *Balancer[Req, Rsp]) expected(e *endpoint, now uint32) time.Duration {
	return time.Duration(b.group.expected(e, now, b.group.usual.read()))
}

// record takes the latency of a response that began at start and is here now.
// One that failed counts as no less than its price, and no less than what was
// expected.
func (b *Balancer[Req, Rsp]) record(n *node[Req, Rsp], start, price time.Duration) {
	now := time.Since(b.start)
	took := now - start
	word := n.status.word.Load()
	floor := float32(0)
	if price == 0 && b.group.usual.read() < noise {
		floor = noise
	}
	switch {
	case price > 0:
		expected := b.expected(&n.endpoint, tick(now))
		n.fine(expected)
		took = max(took, price, expected)
	case word&badRecord != 0 && n.isFined():
		n.pay(took, b.expected(&n.endpoint, tick(now)))
	}
	first := n.latency.record(took, tick(now), b.group.decay, floor)
	if provenOf(word) != proof {
		n.status.prove()
	}
	b.group.refresh(&n.endpoint, tick(now), first)
}

// note tells the endpoint and those who compare endpoints how a response was.
func (b *Balancer[Req, Rsp]) note(n *node[Req, Rsp], v verdict) {
	if v.ignored {
		return
	}
	n.judged(v.price > 0)
	if b.jury != nil && b.jury.hear(&n.endpoint, v) {
		b.trip(n)
	}
	if n.status.marked() {
		n.settle()
	}
}

// refuse says why no endpoint is ready. It returns nil if one is.
func (b *Balancer[Req, Rsp]) refuse() error {
	n, err := b.look()
	if n == nil {
		return err
	}
	// What the endpoint says now is newer than what it said when it was set
	// aside; ask without the lock, it is the caller's code.
	reason := n.poll()
	if reason == nil {
		b.putBack(n, nil) // its goroutine is about to do that
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.reason != nil && reason.Error() == layer.ErrNotReady.Error() { // bare, it says less than what was said before
		reason = n.reason
	}
	return &layer.Error{
		Layer: "balance", Target: b.target, Endpoint: n.id.Addr.String(), Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("0 of %d endpoints ready", len(b.nodes)), Err: said{reason},
	}
}

// whenLeft is the refusal of an endpoint whose caller left meanwhile, so that no
// other is asked. Of a kind that would speak for the balancer it is only the cause.
func (b *Balancer[Req, Rsp]) whenLeft(ctx context.Context, refusal error) error {
	if !errors.Is(refusal, layer.ErrClosed) && !errors.Is(refusal, layer.ErrFailFast) {
		return refusal
	}
	return &layer.Error{
		Layer: "balance", Target: b.target, Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: said{refusal},
	}
}

// look returns why nothing can be picked: an error, or the node to ask. Both
// are nil if something can.
func (b *Balancer[Req, Rsp]) look() (*node[Req, Rsp], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ended := b.ended.Load(); ended != nil {
		return nil, ended
	}
	if b.group.len() > 0 {
		return nil, nil //nolint:nilnil // pick again
	}
	err := &layer.Error{Layer: "balance", Target: b.target, Kind: layer.ErrNotReady}
	switch b.state {
	case resolve.StatePending:
		err.Reason, err.Err = "not resolved yet", b.err
	case resolve.StateEmpty:
		err.Err = withCause(discover.ErrNoEndpoints, b.err)
	case resolve.StateDoesNotExist:
		err.Err = withCause(discover.ErrDoesNotExist, b.err)
	default:
		if n := b.lastRefuser(); n != nil {
			return n, nil
		}
		err.Reason = "0 of 0 endpoints ready"
	}
	return nil, err
}

// withCause adds the resolver's last error, if there is one, to the state that it
// reported.
func withCause(state, resolver error) error {
	if resolver == nil {
		return state
	}
	return fmt.Errorf("%w: %w", state, resolver)
}

// lastRefuser returns the node that was the last to become unready, or any
// other if that one was removed. None of them is ready.
func (b *Balancer[Req, Rsp]) lastRefuser() *node[Req, Rsp] {
	if b.refuser != nil {
		return b.refuser
	}
	for _, n := range b.nodes {
		return n
	}
	return nil
}

// said is what an endpoint said, as the cause of what the balancer says. It
// matches what the endpoint's error matches, but for the kinds that would speak
// for the balancer: that one endpoint is closed, or has queued for too long,
// does not make the balancer so.
type said struct{ err error }

func (s said) Error() string { return s.err.Error() }

func (s said) Is(target error) bool {
	return target != layer.ErrClosed && target != layer.ErrFailFast && errors.Is(s.err, target)
}

func (s said) As(target any) bool { return errors.As(s.err, target) }
