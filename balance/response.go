package balance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// exchange is the [layer.Observer] of one response. It records its latency and its result.
type exchange[Req, Rsp any] struct {
	balancer *Balancer[Req, Rsp]
	node     *node[Req, Rsp]
	ctx      context.Context //nolint:containedctx // the caller's context; distinguishes a cancellation from a failure
	start    time.Duration   // start of the request, relative to the balancer's start
	headers  result          // the result of the headers
	rsp      Rsp
	stage    atomic.Uint32 // unsampled, sampled or finished
}

// The stages of an exchange, in their order.
const (
	unsampled uint32 = iota
	sampled          // the latency was recorded
	finished
)

func (b *Balancer[Req, Rsp]) exchange(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, rsp Rsp,
) *exchange[Req, Rsp] {
	x := &exchange[Req, Rsp]{
		balancer: b, node: n, ctx: ctx, start: start, rsp: rsp,
		headers: b.failures.classify(ctx, layer.Outcome[Rsp]{Response: rsp}),
	}
	if b.sample == SampleHeaders {
		x.take()
	}
	return x
}

// take records the latency of the response, and counts the response as in progress. It does
// nothing if the latency was recorded before.
func (x *exchange[Req, Rsp]) take() {
	if x.stage.Load() == unsampled && x.stage.CompareAndSwap(unsampled, sampled) {
		x.balancer.addResponse(x.node, x.start, x.headers)
		x.node.status.stream(1)
	}
}

// observe calls the function of [WithCompletion], with the exchange as the observer of rsp,
// and returns the resulting response. If the function panics, the exchange ends.
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

// cancel ends the exchange without a record of its result. It is called after a panic in the
// function of WithCompletion.
func (x *exchange[Req, Rsp]) cancel() {
	stage := x.stage.Swap(finished)
	if stage == sampled {
		x.node.status.stream(-1)
	}
	if stage != finished {
		x.balancer.finish(x.node)
	}
}

// Head records the latency of an upgraded connection when its headers arrive, unless the
// policy has SampleEnd. It does not wait for the first byte, because the connection may send
// nothing for a long time.
func (x *exchange[Req, Rsp]) Head() { x.Data(0) }

// Data records the latency at the first byte of the body, unless the policy has SampleEnd.
func (x *exchange[Req, Rsp]) Data(int) {
	if x.balancer.sample != SampleEnd {
		x.take()
	}
}

// End ends the exchange. It records the latency, unless that was done before, and the result of the
// response. The result is a failure if the classifier reports a failure for the headers or for the
// end. A cancellation while the body is read is neither a success nor a failure.
func (x *exchange[Req, Rsp]) End(err error) {
	stage := x.stage.Swap(finished)
	if stage == finished {
		return // the completion panicked
	}
	defer x.balancer.finish(x.node)
	out := layer.Outcome[Rsp]{Response: x.rsp, Err: err, Ended: err == nil}
	if stage == unsampled {
		x.balancer.observe(x.ctx, x.node, x.start, out, x.headers)
		return
	}
	x.node.status.stream(-1)
	r := x.headers
	switch {
	case r.failed:
	case r.ignored:
		return
	case err != nil && x.ctx.Err() != nil && !errors.Is(err, layer.ErrBodyClosedEarly):
		return // canceled while the body was read: neither a success nor a failure
	default:
		if r = x.balancer.failures.classify(x.ctx, out); r.penalty > 0 {
			x.balancer.record(x.node, time.Since(x.balancer.start), r.penalty)
		}
	}
	x.balancer.report(x.node, r)
}

// observe records the latency and the result of a request to n that ended without a recorded
// latency. After a cancellation or a missed deadline, only the elapsed time is known. It is
// recorded as the latency if it is longer than expected, or if the response headers were a failure
// with a penalty. An error of the body that matches layer.ErrNotReady is not recorded. The argument
// headers is the classification of the response headers, or zero without a response.
func (b *Balancer[Req, Rsp]) observe(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp], headers result,
) {
	switch {
	case out.Err != nil && ctx.Err() != nil:
		r := headers
		if !r.failed {
			r = b.missed(ctx, n, start, out)
		}
		if headers.penalty > 0 || b.isLong(n, start) {
			b.record(n, start, headers.penalty)
		}
		if r.failed {
			b.report(n, r)
		}
	case out.Err != nil && errors.Is(out.Err, layer.ErrNotReady):
	default:
		b.observeResponse(ctx, n, start, out)
	}
}

// observeResponse classifies the outcome of a request to n, and records its latency and its result.
func (b *Balancer[Req, Rsp]) observeResponse(ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp]) {
	r := b.failures.classify(ctx, out)
	b.addResponse(n, start, r)
	b.report(n, r)
}

// missed returns the result of a request that ended because its context ended. The result is a
// failure if the rules for missed deadlines in [OutlierDetection] apply. Otherwise it is the zero
// result, which is neither recorded as a failure nor as a success.
func (b *Balancer[Req, Rsp]) missed(ctx context.Context, n *node[Req, Rsp], start time.Duration, out layer.Outcome[Rsp]) result {
	if time.Since(b.start)-start <= 2*time.Duration(b.group.median.read()) {
		return result{}
	}
	r := b.failures.classify(ctx, out)
	if !r.failed || !n.missDeadline() {
		return result{}
	}
	return r
}

// addResponse records the latency of a response of n to a request that began at start. If
// the classifier returned Ignorable, the latency counts only if it is longer than expected.
// addResponse also ends the row of missed deadlines of n.
func (b *Balancer[Req, Rsp]) addResponse(n *node[Req, Rsp], start time.Duration, r result) {
	if n.status.marked() {
		n.missed.Store(0)
	}
	if !r.ignored || b.isLong(n, start) {
		b.record(n, start, r.penalty)
	}
}

func (b *Balancer[Req, Rsp]) isLong(n *node[Req, Rsp], start time.Duration) bool {
	now := time.Since(b.start)
	return now-start > b.expected(&n.endpoint, tick(now))
}

func (b *Balancer[Req, Rsp]) expected(e *endpoint, now uint32) time.Duration {
	latency, _ := b.group.expects(e, now, b.group.median.read())
	return time.Duration(latency)
}

// record adds a sample to the latency estimate of n: the time since start. If penalty is not
// 0, the sample is the longest of this time, the penalty and the expected latency.
func (b *Balancer[Req, Rsp]) record(n *node[Req, Rsp], start, penalty time.Duration) {
	now := time.Since(b.start)
	took := now - start
	word, weight := n.status.word.Load(), sampleWeight
	switch {
	case penalty > 0:
		weight = failureWeight
		expected := b.expected(&n.endpoint, tick(now))
		n.penalize(expected)
		took = max(took, penalty, expected)
	case word&badRecord != 0 && n.isPenalized():
		weight = penalizedWeight
		n.clearPenalty(took, b.expected(&n.endpoint, tick(now)))
	}
	first := n.latency.record(took, tick(now), b.group.decayCurve.decay, weight)
	if samplesOf(word) != allSamples {
		n.status.addSample()
	}
	b.group.refresh(&n.endpoint, tick(now), first)
	slow := time.Duration(max(b.group.median.read(), minLatency)) * slowFactor
	if penalty == 0 && took > slow && b.expected(&n.endpoint, tick(now)) > slow {
		b.leaveAperture(&n.endpoint)
	}
}

// report records whether a response of n was a success or a failure, and may eject n. It
// does nothing if the classifier returned Ignorable.
func (b *Balancer[Req, Rsp]) report(n *node[Req, Rsp], r result) {
	if r.ignored {
		return
	}
	if b.detection.Interval > 0 {
		n.outlier.count(r.failed)
	}
	if r.failed || n.status.word.Load()&(failing|badRecord) != 0 {
		b.updateRecord(n, r)
	}
}

// updateRecord records a failure of n, or a success after failures. The second failure in a row
// moves n out of the aperture. Failures in a row may also eject n: see [OutlierDetection].
func (b *Balancer[Req, Rsp]) updateRecord(n *node[Req, Rsp], r result) {
	if n.setFailed(r.penalty > 0) {
		b.leaveAperture(&n.endpoint)
	}
	if b.detection.record(&n.endpoint, r) {
		b.ejectFailing(n)
	}
	n.unmarkIfClean()
}

// reject returns the error of a request for which no endpoint is ready. It returns nil if
// an endpoint is ready now, so that the caller picks again.
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
	if n.reason != nil && reason.Error() == layer.ErrNotReady.Error() { // the poll returned no details
		reason = n.reason
	}
	return &layer.Error{
		Layer: "balance", Target: b.target, Endpoint: n.id.Addr.String(), Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("0 of %d endpoints ready", len(b.nodes)), Err: endpointError{reason},
	}
}

func (b *Balancer[Req, Rsp]) notReady(reason string, cause error) *layer.Error {
	return &layer.Error{Layer: "balance", Target: b.target, Kind: layer.ErrNotReady, Reason: reason, Err: cause}
}

// noneReady returns the reason why no endpoint is ready. If the balancer has ended or has no
// endpoints, the reason is the second result. Otherwise the first result is an unready node. The
// caller polls this node to find the reason. If an endpoint is ready, both results are nil.
func (b *Balancer[Req, Rsp]) noneReady() (*node[Req, Rsp], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ended := b.ended.Load(); ended != nil {
		return nil, ended
	}
	b.readmitAll() // concurrent picks may have made a node look busy before
	if b.group.len() > 0 {
		return nil, nil //nolint:nilnil // pick again
	}
	switch b.state { //nolint:exhaustive // the other states have endpoints
	case resolve.StatePending:
		return nil, b.notReady("not resolved yet", b.err)
	case resolve.StateEmpty:
		return nil, b.notReady("", withCause(discover.ErrNoEndpoints, b.err))
	case resolve.StateDoesNotExist:
		return nil, b.notReady("", withCause(discover.ErrDoesNotExist, b.err))
	}
	if n := b.lastUnready; n != nil && n.status.state() != ejected {
		return n, nil
	}
	for _, n := range b.nodes {
		if n.status.state() != ejected {
			return n, nil
		}
	}
	return nil, b.notReady("0 of 0 endpoints ready", nil)
}

// withCause returns an error that wraps both arguments. The argument resolver is the last error of
// the resolver. If resolver is nil, the result is the argument state.
func withCause(state, resolver error) error {
	if resolver == nil {
		return state
	}
	return fmt.Errorf("%w: %w", state, resolver)
}

// endpointError wraps the error of an endpoint as the cause of an error of the balancer. It does
// not match ErrClosed and ErrFailFast, because the balancer itself is not closed or in fail-fast.
type endpointError struct{ err error }

func (e endpointError) Error() string { return e.err.Error() }

func (e endpointError) Is(target error) bool {
	return target != layer.ErrClosed && target != layer.ErrFailFast && errors.Is(e.err, target)
}

func (e endpointError) As(target any) bool { return errors.As(e.err, target) }
