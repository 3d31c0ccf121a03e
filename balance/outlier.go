package balance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// OutlierDetection ejects endpoints that fail more often than others, for a limited time.
// Its rules are those of Envoy and of gRPC's proposal A50, but it ends ejections earlier. The zero value
// ejects none.
//
//   - With ConsecutiveFailures, an endpoint is ejected after that many failures in a row.
//   - With Interval, the success rates of the endpoints are compared. An endpoint is
//     ejected if its rate is below the mean by more than 1.9 standard deviations and by
//     more than MinDifference. At least five endpoints must have RequestVolume responses.
//     With little traffic, raise RequestVolume or MinDifference.
//
// Rejections and canceled requests do not count. See [WithClassifier] for other failures. A missed
// deadline is a failure if it is at least the endpoint's third in a row and the request waited for
// longer than twice the median latency, or if it is at least the seventh in a row. It is none if
// other endpoints miss as many deadlines, or if the classifier does not return a failure.
//
// An ejected endpoint gets no new requests for the ejection time. If it was ejected for failures in a row,
// it is probed as any doubted endpoint: see "Failures" in the package documentation. The first success of
// a probe ends the ejection. Retries and requests with affinity are no probes. After the ejection, the
// endpoint gets one request, then two, four and eight at a time until it has sent four responses. A
// [Picker] that ignores costs has no such limits.
//
// The zero [Picker] already keeps most requests away from a failing endpoint: see "Failures" in the
// package documentation. Outlier detection helps [ConsistentHash], [RoundRobin] and [Random].
type OutlierDetection struct { //nolint:recvcheck // record runs per response
	// ConsecutiveFailures is the number of consecutive failures after which an endpoint
	// is ejected. A [layer.Throttled] response does not count and does not reset the
	// count. 0 disables the rule. Envoy's default is 5.
	ConsecutiveFailures int

	// Interval is the time between two comparisons of the success rates, from 1 ms to 1 h.
	// 0 disables the comparisons. Envoy and gRPC use 10 s.
	Interval time.Duration

	// MinDifference is the difference, from 0 to 1, by which the success rate of an endpoint must
	// be below the mean for an ejection. 0 means 0.05, because retries handle smaller differences.
	MinDifference float64

	// RequestVolume is the number of responses that an endpoint needs within an interval to
	// be compared. 0 means 100.
	RequestVolume int

	// BaseEjectionTime is the duration of the first ejection. Each further ejection is
	// longer by BaseEjectionTime, up to MaxEjectionTime. The duration starts again from
	// BaseEjectionTime after the endpoint was not ejected for MaxEjectionTime. Each
	// duration is reduced at random, by up to a tenth. 0 means 30 s.
	BaseEjectionTime time.Duration

	// MaxEjectionTime is the longest duration of an ejection. 0 means 5 minutes, or
	// BaseEjectionTime if that is longer.
	MaxEjectionTime time.Duration

	// MinReady is the share of endpoints, from 0 to 1, that must stay ready after an ejection. At
	// least one endpoint must stay ready. 0 means ½. With 1 no endpoint is ejected, but the metrics
	// count the prevented ejections. If no endpoint is ready, all ejections end. Here, an endpoint
	// that rejects requests also counts as ready while it has requests in flight, because it is
	// busy. This does not apply to rejections by a [layer.Breaker].
	//
	// The endpoints that stay ready must be able to serve all requests: at a load of 80 % of the
	// capacity, use at least 0.9. If most of them fail or miss deadlines in more than 10 % of the
	// requests, all ejections end, no endpoint is ejected for the next BaseEjectionTime, and breakers
	// are ignored for a second.
	//
	// MinReady also applies to circuit breakers, even if ConsecutiveFailures and Interval are 0. A
	// request that a [layer.Breaker] rejects may leave fewer endpoints ready than MinReady. The
	// balancer then ignores all breakers for a second, using [layer.PastBreakers]. Envoy calls this
	// a panic. A single endpoint's breaker is not ignored.
	MinReady float64
}

// Validate returns an error that names every field that is out of range, or nil.
func (p OutlierDetection) Validate() error {
	var errs []error
	// check adds an error for a field whose value is not allowed.
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("balance: outlier detection: %s is %v, want %s", field, value, want))
		}
	}
	const count, length = "0 or more", "0, or at least 1ms"
	check(p.ConsecutiveFailures >= 0 && p.ConsecutiveFailures <= math.MaxInt32, "ConsecutiveFailures", p.ConsecutiveFailures, count)
	check(p.Interval == 0 || p.Interval >= time.Millisecond && p.Interval <= maxInterval, "Interval", p.Interval, length+" and at most 1h")
	check(p.MinDifference >= 0 && p.MinDifference <= 1, "MinDifference", p.MinDifference, "from 0, for the default, to 1")
	check(p.RequestVolume >= 0, "RequestVolume", p.RequestVolume, count)
	check(p.BaseEjectionTime == 0 || p.BaseEjectionTime >= time.Millisecond, "BaseEjectionTime", p.BaseEjectionTime, length)
	check(p.MaxEjectionTime == 0 || p.MaxEjectionTime >= cmp.Or(p.BaseEjectionTime, defaultEjectionTime),
		"MaxEjectionTime", p.MaxEjectionTime, "0, or at least BaseEjectionTime")
	check(p.MinReady >= 0 && p.MinReady <= 1, "MinReady", p.MinReady, "from 0, for the default, to 1")
	return errors.Join(errs...)
}

// Limits and defaults of OutlierDetection.
const (
	maxInterval         = time.Hour // bounds the counts of an interval: see outlierState
	stdevFactor         = 1.9       // the default of Envoy and gRPC
	minEndpoints        = 5         // one of fewer endpoints cannot be 1.9 standard deviations below the mean
	defaultEjectionTime = 30 * time.Second
)

// minReady returns how many of n endpoints must stay ready.
func (p OutlierDetection) minReady(n int) int {
	// Floating-point errors must not round up.
	const rounding = 1e-9 // 0.07 · 100 is more than 7
	return max(1, int(math.Ceil(p.MinReady*float64(n)-rounding)))
}

// orDefault returns p with the default value in each field that is 0. p must be valid.
func (p OutlierDetection) orDefault() OutlierDetection {
	p.MinDifference = cmp.Or(p.MinDifference, 0.05)
	p.RequestVolume = cmp.Or(p.RequestVolume, 100)
	p.BaseEjectionTime = cmp.Or(p.BaseEjectionTime, defaultEjectionTime)
	p.MaxEjectionTime = cmp.Or(p.MaxEjectionTime, max(5*time.Minute, p.BaseEjectionTime))
	p.MinReady = cmp.Or(p.MinReady, 0.5)
	return p
}

// enabled reports whether any detection is configured.
func (p OutlierDetection) enabled() bool { return p.ConsecutiveFailures > 0 || p.Interval > 0 }

// successRate counts an endpoint's responses in one interval, and how many of them were successes.
type successRate struct {
	*endpoint
	total, good uint64
}

// share returns the rate from 0 to 1. total must not be 0.
func (s successRate) share() float64 { return float64(s.good) / float64(s.total) }

// outliers returns the rates that are too low, in ascending order, and the mean of all rates. A rate is
// too low if it is below the mean by more than MinDifference and by more than stdevFactor standard
// deviations. With fewer than minEndpoints rates it returns nil, because no rate can then differ so
// much. It sorts rates.
func (p OutlierDetection) outliers(rates []successRate) (low []successRate, mean float64) {
	if len(rates) < minEndpoints {
		return nil, 0
	}
	// The lowest rates come first, because MinReady may stop the ejections. Addresses make the order certain.
	slices.SortFunc(rates, func(a, b successRate) int {
		return cmp.Or(cmp.Compare(a.share(), b.share()), a.id.Addr.Compare(b.id.Addr))
	})
	for _, r := range rates {
		mean += r.share() / float64(len(rates))
	}
	variance := 0.0
	for _, r := range rates {
		variance += (r.share() - mean) * (r.share() - mean) / float64(len(rates))
	}
	// Both conditions must hold, so the larger difference is the threshold.
	threshold := max(stdevFactor*math.Sqrt(variance), p.MinDifference)
	for _, r := range rates {
		if mean-r.share() > threshold {
			low = append(low, r)
		}
	}
	return low, mean
}

// EjectedError is the Reason in the [EndpointState] of an ejected endpoint. It matches
// [layer.ErrNotReady].
type EjectedError struct {
	Cause string    // for example "5 failures in a row"
	Until time.Time // the end of the ejection
	Times int       // number of consecutive ejections, including this one
}

// Error returns the end of the ejection and its cause.
func (e *EjectedError) Error() string {
	return fmt.Sprintf("ejected until %s: %s", e.Until.UTC().Format(time.RFC3339), e.Cause)
}

// Is reports whether target is layer.ErrNotReady.
func (*EjectedError) Is(target error) bool { return target == layer.ErrNotReady }

// outlierState counts the responses, failures and ejections of one endpoint, for outlier detection.
type outlierState struct {
	// tally counts the responses since the last comparison (bits 63..32) and the failures among
	// them (bits 31..0). The counts do not overflow within the longest interval, one hour, at up
	// to a million responses per second.
	tally atomic.Uint64
	row   atomic.Uint32 // consecutive failures

	// Guarded by the balancer's mutex.
	times    int           // consecutive ejections: see BaseEjectionTime
	last     time.Duration // duration of the last ejection
	returned time.Duration // end of the last ejection, relative to the balancer's start
	end      *time.Timer   // ends the ejection; nil before the first one
	inRow    bool          // whether the ejection is for failures in a row, so that a success ends it
}

// count adds a response to the counts for the success rate. failed reports whether it was a
// failure.
func (o *outlierState) count(failed bool) {
	// One response in the upper half, and one failure in the lower half.
	delta := uint64(1 << 32)
	if failed {
		delta++
	}
	o.tally.Add(delta)
}

// record counts a response of e for ConsecutiveFailures: a failure extends e's row of failures, and
// another response ends it. Throttled responses do neither. record reports whether the row has just
// reached the number at which e must be ejected.
func (p *OutlierDetection) record(e *endpoint, r result) (eject bool) {
	switch {
	case p.ConsecutiveFailures == 0 || r == throttled:
	case r.isFailure():
		// Equal, not above: of several concurrent failures, exactly one reports that the limit is reached.
		row := e.outlier.row.Add(1)
		e.status.mark()
		return row == uint32(p.ConsecutiveFailures)
	default:
		e.outlier.row.Store(0)
	}
	return false
}

// startComparing starts a goroutine that calls ejectOutliers every Interval, and ends the goroutine of
// an earlier call. It is called again when the policy changes. The caller must hold mu, or the balancer
// must be new.
func (b *Balancer[Req, Rsp]) startComparing() {
	b.stopComparing()
	b.stopComparing = func() {}
	interval := b.policy.Load().OutlierDetection.Interval
	if interval == 0 {
		return
	}
	// Each comparison goroutine has its own context, so that stopComparing ends just that one.
	var ctx context.Context
	ctx, b.stopComparing = context.WithCancel(b.ctx)
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				b.ejectOutliers()
			}
		}
	}()
}

// ejectOutliers compares the success rates since its last call, and ejects the endpoints whose rate is
// too low. The next comparison starts from zero.
func (b *Balancer[Req, Rsp]) ejectOutliers() {
	b.mu.Lock()
	defer b.mu.Unlock()
	detection := &b.policy.Load().OutlierDetection
	clear(b.rates) // so that removed endpoints can be collected
	b.rates = b.rates[:0]
	for _, n := range b.nodes {
		// Reading and clearing in one step loses no response.
		tally := n.outlier.tally.Swap(0)
		r := successRate{endpoint: &n.endpoint, total: tally >> 32}
		r.good = r.total - min(tally&(1<<32-1), r.total) // more failures than responses mean an overflow
		// Without enough responses, a rate says little.
		if n.isAvailable() && r.total >= uint64(detection.RequestVolume) {
			b.rates = append(b.rates, r)
		}
	}
	low, mean := detection.outliers(b.rates)
	for _, r := range low {
		cause := fmt.Sprintf("success rate %d of %d, mean %.1f %% of %d endpoints", r.good, r.total, 100*mean, len(b.rates))
		if b.eject(nodeOf[Req, Rsp](r.endpoint), cause) {
			b.meters.outlier.Add(1)
		}
	}
}

// ejectFailing ejects n after ConsecutiveFailures failures in a row. It does nothing if n is
// not available, or if MinReady forbids the ejection.
func (b *Balancer[Req, Rsp]) ejectFailing(n *node[Req, Rsp]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A new row begins after the ejection.
	n.outlier.row.Store(0)
	if b.eject(n, fmt.Sprintf("%d failures in a row", b.policy.Load().OutlierDetection.ConsecutiveFailures)) {
		b.meters.consecutive.Add(1)
		n.outlier.inRow = true
		// If another node is to be probed next already, n follows by nextOutcast.
		b.outcast.CompareAndSwap(nil, n)
	}
}

// eject ejects n because of cause, and returns true. It returns false if n is not available anyway, if
// MinReady does not allow it, or while the endpoints fail so often that ejections make it worse. The
// caller must hold mu.
func (b *Balancer[Req, Rsp]) eject(n *node[Req, Rsp], cause string) bool {
	if !n.isAvailable() {
		return false
	}
	// Fewer ready endpoints would get even more requests each.
	if b.isAtMinReady() || b.groupOf(&n.endpoint).peers.strained() || time.Since(b.start) < b.strainEnd {
		b.skipped++
		b.meters.skipped.Add(1)
		return false
	}
	// A ready node is in a set, and an unready one may be in its turn.
	switch n.status.setState(ejected) {
	case ready:
		b.leave(n)
	case unready:
		n.endTurn()
	}
	b.ejections++
	b.ejected++
	o := &n.outlier
	detection := &b.policy.Load().OutlierDetection
	// Long after its last ejection, the endpoint begins with a short one again.
	if time.Since(b.start)-o.returned > detection.MaxEjectionTime {
		o.times, o.last = 0, 0
	}
	o.times++
	o.last += max(0, min(detection.BaseEjectionTime, detection.MaxEjectionTime-o.last))
	// Up to a tenth shorter, at random.
	// draw has 64 random bits, of which a float64 can hold 53.
	length := o.last - time.Duration(float64(o.last)*0.1*float64(b.group.draw()>>11)/(1<<53))
	// endEjection recognizes its ejection by reason, because a later one has another.
	reason := &EjectedError{Cause: cause, Until: time.Now().Add(length), Times: o.times}
	n.reason = reason
	o.end = time.AfterFunc(length, func() { b.endEjection(n, reason) })
	b.count()
	b.noteDown(n, reason)
	b.divide()
	b.noteTarget()
	return true
}

// endEjection ends the given ejection of n, because its duration is over. It does nothing if that
// ejection has already ended.
func (b *Balancer[Req, Rsp]) endEjection(n *node[Req, Rsp], ejection *EjectedError) {
	reason := n.poll() // calls user code, which must not run with mu held
	b.mu.Lock()
	if n.status.state() == ejected && errors.Is(n.reason, ejection) {
		b.readmit(n, reason)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// readmit ends the ejection of n. n becomes ready if reason is nil, closed if reason matches
// layer.ErrClosed, and otherwise unready. The caller must hold mu.
func (b *Balancer[Req, Rsp]) readmit(n *node[Req, Rsp], reason error) {
	b.clearEjection(n)
	// Without samples, it counts as a new endpoint: it gets few requests until it has answered some.
	n.status.setSamples(0)
	if n.reason = reason; reason != nil {
		// A goroutine calls its Ready until that returns nil, unless the reason is final.
		b.markUnready(n, reason)
		return
	}
	b.join(n)      // into its ready set, where picks find it
	b.divide()     // the shares of the groups, because this group has one more ready node
	b.noteTarget() // reports an event if the target is now available again
}

// clearEjection undoes what the ejection of n has set, except for n's state, which the caller changes.
// The caller must hold mu.
func (b *Balancer[Req, Rsp]) clearEjection(n *node[Req, Rsp]) {
	b.ejected--
	o := &n.outlier
	o.end.Stop()
	o.inRow = false
	// This node is the one that would be probed next.
	if b.outcast.Load() == n {
		b.nextOutcast()
	}
	o.returned = time.Since(b.start)
	o.tally.Store(0)
	o.row.Store(0)
}

// nextOutcast sets the ejected node that is probed next: the one that has waited longest since its last
// probe. The caller must hold mu.
func (b *Balancer[Req, Rsp]) nextOutcast() {
	var next *node[Req, Rsp]
	for _, n := range b.nodes {
		if !n.outlier.inRow {
			continue
		}
		// The node whose last probe is longest ago, by a difference modulo 1<<32.
		if next == nil || cmp.Or(int(int32(n.probed.Load()-next.probed.Load())), n.id.Addr.Compare(next.id.Addr)) < 0 {
			next = n
		}
	}
	b.outcast.Store(next)
}

// claimOutcast decides whether the request should probe the ejected node n, which was ejected for
// failures in a row, and if so counts it as in flight there and returns true. A request with affinity
// is no probe, because its key belongs to another endpoint.
func (b *Balancer[Req, Rsp]) claimOutcast(n *node[Req, Rsp], q query) bool {
	if q.hasAffinity || !q.mayProbe() || n.level.Load() == 0 {
		return false
	}
	waiting, _ := n.load()
	// The pauses are counted in requests per ready endpoint, as an ejected node is in no set.
	if !n.isDue(q.now, uint32(max(b.readyLen(), 1)), waiting) || !n.claimProbe(q.now) {
		return false
	}
	// The request is counted as in flight here, because begin refuses an ejected node.
	n.work.Add(oneRequest)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nextOutcast()
	return true
}

// forgiveOutcast ends the ejection of n after a successful probe. The other ejected nodes are then
// probed soon, because they may have recovered as well.
func (b *Balancer[Req, Rsp]) forgiveOutcast(n *node[Req, Rsp]) {
	if n.status.state() != ejected {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// An ejection for a low success rate ends only when its time is over.
	if !n.outlier.inRow {
		return
	}
	b.readmit(n, nil)
	for _, peer := range b.nodes {
		if peer.outlier.inRow {
			peer.probesAtOnce(b.now())
		}
	}
	b.changed.Wake()
}

// readmitAll ends all ejections if no node is available. The ejected nodes become ready without a
// poll, because a poll must not run with mu held. The caller must hold mu.
func (b *Balancer[Req, Rsp]) readmitAll() {
	if b.ejected > 0 && !b.hasAvailable(1) {
		b.endEjections()
	}
}

// endEjections ends all ejections. The caller must hold mu.
func (b *Balancer[Req, Rsp]) endEjections() {
	if b.ejected == 0 {
		return
	}
	nodes, _ := b.states() // in a fixed order
	for _, n := range nodes {
		if n.status.state() == ejected {
			b.readmit(n, nil)
		}
	}
	b.changed.Wake()
}
