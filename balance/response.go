package balance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// exchange is the [layer.Observer] of one response. It records the latency when the first byte arrives,
// and the result when the response ends.
type exchange[Req, Rsp any] struct {
	balancer   *Balancer[Req, Rsp]
	node       *node[Req, Rsp]
	ctx        context.Context //nolint:containedctx // the caller's context; distinguishes a cancellation from a failure
	start      time.Duration   // start of the request, relative to the balancer's start
	headers    result          // the result of the headers
	oldLatency float32         // the latency estimate that this response replaced; 0 without a sample
	rsp        Rsp
	stage      atomic.Uint32 // unsampled, sampled or finished
}

// An exchange's stages, in their order.
const (
	unsampled uint32 = iota
	sampled          // the latency was recorded
	finished
)

// exchange returns the exchange for a response whose headers have arrived.
func (b *Balancer[Req, Rsp]) exchange(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, rsp Rsp,
) *exchange[Req, Rsp] {
	x := &exchange[Req, Rsp]{
		balancer: b, node: n, ctx: ctx, start: start, rsp: rsp,
		headers: b.failures.classify(ctx, layer.Outcome[Rsp]{Response: rsp}),
	}
	// SampleHeaders does not wait for the first byte.
	if b.policy.Load().Sample == SampleHeaders {
		x.take()
	}
	return x
}

// take records the latency and counts the response as in progress. Only the first call counts.
func (x *exchange[Req, Rsp]) take() {
	// The Load keeps all but the first call from writing to the shared word.
	if x.stage.Load() == unsampled && x.stage.CompareAndSwap(unsampled, sampled) {
		// Kept in case the response fails later: see End.
		x.oldLatency = math.Float32frombits(uint32(x.node.latency.word.Load()))
		x.balancer.addResponse(x.node, x.start, x.headers)
		// From now on, the request is a response in progress and no longer waits.
		x.node.status.stream(1)
	}
}

// observe registers the exchange as the observer of rsp and returns the response to pass on. If the
// Completion panics, the exchange ends without a result.
func (x *exchange[Req, Rsp]) observe(rsp Rsp) Rsp {
	// Stays false if the completion panics: then the request counts as canceled.
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

// cancel ends the exchange without recording its result, after the function of WithCompletion
// panicked.
func (x *exchange[Req, Rsp]) cancel() {
	// Swap makes cancel and End exclude each other.
	stage := x.stage.Swap(finished)
	if stage == sampled {
		x.node.status.stream(-1)
	}
	if stage != finished {
		x.balancer.finish(x.node)
	}
}

// Data records the latency at the body's first byte, or when an upgraded connection's headers
// arrive, unless the policy sets SampleEnd.
func (x *exchange[Req, Rsp]) Data(int) {
	if x.balancer.policy.Load().Sample != SampleEnd {
		x.take()
	}
}

// End ends the exchange. It records the latency, unless that was done before, and the response's
// result. The result is a failure if the classifier reports a failure for the headers or for the
// end. A cancellation while the body is read is neither a success nor a failure.
func (x *exchange[Req, Rsp]) End(err error) {
	stage := x.stage.Swap(finished)
	if stage == finished {
		return // the completion panicked
	}
	defer x.balancer.finish(x.node)
	out := layer.Outcome[Rsp]{Response: x.rsp, Err: err, Ended: err == nil}
	// The latency was not recorded before, for example because no byte has arrived.
	if stage == unsampled {
		x.balancer.observe(x.ctx, x.node, x.start, out, x.headers)
		return
	}
	x.node.status.stream(-1)
	// The headers decide first: a failure stays one, whatever the body does.
	r := x.headers
	switch {
	case r.isFailure():
	case r == ignored:
		return
	case err != nil && x.ctx.Err() != nil && !errors.Is(err, layer.ErrBodyClosedEarly):
		return // canceled while the body was read: neither a success nor a failure
	default:
		r = x.balancer.failures.classify(x.ctx, out)
	}
	if r.isFailure() {
		x.node.latency.restore(x.oldLatency) // a response that begins fast and then fails is not fast
	}
	x.balancer.report(x.node, r, x.start)
}

// observe records a request to n that has ended before its latency was recorded: with an error, or with
// a response without a body. After a cancellation or a missed deadline, only the elapsed time is known,
// which counts as the latency if it is longer than expected. An error of the body that matches
// layer.ErrNotReady is not recorded. headers is the result of the response headers, or success if there
// were none.
func (b *Balancer[Req, Rsp]) observe(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp], headers result,
) {
	switch {
	// The request was cut off by its caller or its deadline. Its latency is unknown, but it is at least the time until
	// now.
	case out.Err != nil && ctx.Err() != nil:
		r := headers
		if !r.isFailure() {
			r = b.missed(ctx, n, start, out)
		}
		if b.isLong(n, start) {
			// The time so far is a sample only if it is longer than expected.
			b.record(n, start)
		}
		if r.isFailure() {
			b.report(n, r, start)
		}
	// A rejection by the endpoint is no response, so it says nothing about latency or failures.
	case out.Err != nil && errors.Is(out.Err, layer.ErrNotReady):
	default:
		b.observeResponse(ctx, n, start, out)
	}
}

// observeResponse classifies the outcome of a request to n, and records its latency and its result.
func (b *Balancer[Req, Rsp]) observeResponse(ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp]) {
	r := b.failures.classify(ctx, out)
	b.addResponse(n, start, r)
	b.report(n, r, start)
}

// missed returns the result of a request that has ended because its context has: late if that counts as
// a failure of the endpoint, by the rules for missed deadlines in [OutlierDetection], and otherwise
// ignored.
func (b *Balancer[Req, Rsp]) missed(ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp]) result {
	// The caller has gone, or the classifier does not call a deadline a failure.
	if !b.failures.classify(ctx, out).isFailure() {
		return ignored
	}
	// The record now contains a miss, so successes must look at it.
	n.status.mark()
	g := b.groupOf(&n.endpoint)
	// A deadline of less than two medians may be too short for any endpoint.
	long := time.Since(b.start)-start > 2*time.Duration(g.median.read())
	counts := n.missDeadline(long, &g.peers, n.picks()) && !g.peers.strained()
	now := b.now()
	g.refresh(&n.endpoint, now, false) // not a first sample
	b.relieve(g, now)
	if !counts {
		if n.missed.Load() >= minShortRow {
			n.level.Store(0) // the other endpoints miss their deadlines as well
		}
		return ignored
	}
	return late
}

// addResponse records the latency of a response with the result r; start is when the request began. The
// latency of a failure counts only if it is longer than expected, because an endpoint that fails fast
// is not fast.
func (b *Balancer[Req, Rsp]) addResponse(n *node[Req, Rsp], start time.Duration, r result) {
	// A response ends the row of missed deadlines.
	if n.status.word.Load()&badRecord != 0 {
		n.missed.Store(0)
	}
	// A fast failure still counts as a response, so that a new endpoint gets more requests.
	switch {
	case r == success, b.isLong(n, start):
		b.record(n, start)
	case r.isFailure():
		if n.status.samples() != allSamples {
			n.status.addSample()
		}
	}
}

// isLong reports whether the request that began at start has taken longer than expected at n.
func (b *Balancer[Req, Rsp]) isLong(n *node[Req, Rsp], start time.Duration) bool {
	now := time.Since(b.start)
	return now-start > b.expected(&n.endpoint, tick(now))
}

// expected returns the latency that is expected of e.
func (b *Balancer[Req, Rsp]) expected(e *endpoint, now uint32) time.Duration {
	g := b.groupOf(e)
	return time.Duration(g.expects(g.params.Load(), e, now, g.median.read()))
}

// record adds the time since start to n's latency estimate as a sample. A slow endpoint leaves the
// aperture.
func (b *Balancer[Req, Rsp]) record(n *node[Req, Rsp], start time.Duration) {
	now := time.Since(b.start)
	latency := now - start
	minWeight := sampleWeight
	// An early sample may replace a slow first one, which included connecting.
	if n.status.samples() != allSamples {
		minWeight = earlyWeight
		n.status.addSample()
	}
	g := b.groupOf(&n.endpoint)
	first := n.latency.record(latency, tick(now), g.params.Load().curve.decay, minWeight)
	g.refresh(&n.endpoint, tick(now), first)
	// Below minLatency, differences are noise.
	slow := time.Duration(max(g.median.read(), minLatency)) * slowFactor
	// Both this response and the estimate are slow, so it is no single outlier.
	if latency > slow && b.expected(&n.endpoint, tick(now)) > slow {
		b.leaveAperture(&n.endpoint)
	}
	// A doubted endpoint may be outside the aperture, where picks never probe it.
	if b.displaced.Load() {
		b.recall(g, tick(now))
	}
}

// report counts a response with the result r of n: failures may begin a doubt or an ejection, and
// successes end them. A result of ignored counts as nothing.
func (b *Balancer[Req, Rsp]) report(n *node[Req, Rsp], r result, start time.Duration) {
	if r == ignored {
		return
	}
	detection := &b.policy.Load().OutlierDetection
	// Outlier detection compares success rates by these counts.
	if detection.Interval > 0 {
		n.outlier.count(r.isFailure())
	}
	// Most responses are successes of endpoints with a clean record, which need nothing else.
	if r.isFailure() || n.status.word.Load()&(suspected|badRecord) != 0 {
		b.react(n, r, start)
		if detection.record(&n.endpoint, r) {
			b.ejectFailing(n)
		}
		n.unmarkIfClean()
	}
}

// reject returns the rejection of a request for which no endpoint is ready, with the newest reason. It
// returns nil if it finds a ready endpoint meanwhile, so that the caller picks again.
func (b *Balancer[Req, Rsp]) reject() error {
	n, err := b.noneReady()
	if n == nil {
		return err
	}
	reason := n.poll() // newer than n.reason; calls user code, which must not run with mu held
	if reason == nil {
		b.leaveTurn(n, nil)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// A poll that names a cause is a failure, so operators are told.
	if e, ok := errors.AsType[*layer.Error](reason); ok && e.Err != nil && n.status.state() == unready {
		b.noteDown(n, reason) // it may have been busy before
		b.noteTarget()
	}
	// A poll may say no more than "not ready".
	if n.reason != nil && !hasDetails(reason) {
		reason = n.reason
	}
	return b.unready(n, reason)
}

// zeroOf returns the reason of a rejection while none of n endpoints is ready.
func zeroOf(n int) string { return fmt.Sprintf("0 of %d endpoints ready", n) }

// notReady returns a rejection by b. cause may be nil.
func (b *Balancer[Req, Rsp]) notReady(reason string, cause error) *layer.Error {
	return &layer.Error{Layer: "balance", Target: b.target, Kind: layer.ErrNotReady, Reason: reason, Err: cause}
}

// noneReady returns why no endpoint is ready, either as an error, or as an unready node that the caller
// should poll for the reason. If there is a ready endpoint after all, both results are nil.
func (b *Balancer[Req, Rsp]) noneReady() (*node[Req, Rsp], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ended := b.ended.Load(); ended != nil {
		return nil, ended
	}
	b.readmitAll() // concurrent picks may have made a node look busy before
	if b.readyLen() > 0 {
		return nil, nil //nolint:nilnil // pick again
	}
	switch b.state { //nolint:exhaustive // the other states have endpoints
	case resolve.StatePending:
		return nil, b.rejection("not resolved yet", b.err)
	case resolve.StateEmpty:
		return nil, b.rejection("", withCause(discover.ErrNoEndpoints, b.err))
	case resolve.StateDoesNotExist:
		return nil, b.rejection("", withCause(discover.ErrDoesNotExist, b.err))
	}
	// The last unready node has the newest reason. An ejected one is not polled.
	if n := b.lastUnready; n != nil && n.status.state() != ejected {
		return n, nil
	}
	for _, n := range b.nodes {
		if n.status.state() != ejected {
			return n, nil
		}
	}
	return nil, b.rejection(zeroOf(0), nil)
}

// withCause returns an error that wraps state and resolver, the last error of the resolver. If
// resolver is nil, the result is state.
func withCause(state, resolver error) error {
	if resolver == nil {
		return state
	}
	return fmt.Errorf("%w: %w", state, resolver)
}

// endpointError wraps an endpoint's error as the cause of a balancer error. It does not match
// ErrClosed and ErrFailFast, because the balancer itself is not closed or in fail-fast.
type endpointError struct{ err error }

func (e endpointError) Error() string { return e.err.Error() }

// Is makes errors.Is find the errors in the tree, except those that speak of the endpoint alone.
func (e endpointError) Is(target error) bool {
	return target != layer.ErrClosed && target != layer.ErrFailFast && errors.Is(e.err, target)
}

// As makes errors.As find the errors in the tree.
func (e endpointError) As(target any) bool { return errors.As(e.err, target) }
