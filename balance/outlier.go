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

// OutlierDetection ejects endpoints that fail more than their peers, for a while. It has
// the rules of Envoy and of gRPC's proposal A50. The zero value ejects none.
//
//   - ConsecutiveFailures ejects an endpoint after that many failures in a row.
//   - Interval compares the success rates of the endpoints. An endpoint is ejected if its
//     rate is below the mean by more than StdevFactor standard deviations and by more
//     than MinDifference. With little traffic a low rate may be chance: raise
//     RequestVolume or MinDifference then.
//
// The classifier defines failures, see [WithClassifier]. Rejections and canceled requests
// do not count. A missed deadline counts if it is at least the third in a row of its
// endpoint, longer than the median latency, and a failure to the classifier.
//
// An ejected endpoint gets no new requests. After BaseEjectionTime it returns, if it is
// ready, with one request, then two, four and eight at a time until four were answered.
//
// With latency costs the penalty of a failure already keeps most requests away from an
// endpoint that fails. Detection is of use with [ConsistentHash], [RoundRobin], [Random]
// and [LeastRequest], and for its metrics.
type OutlierDetection struct {
	// ConsecutiveFailures is the number of failures in a row that ejects an endpoint. A
	// [layer.Throttled] response neither counts nor ends the row. 0 means never; Envoy's
	// default is 5.
	ConsecutiveFailures int

	// Interval is the time between two comparisons, from 1 ms to 1 h. 0 means never;
	// Envoy and gRPC use 10 s.
	Interval time.Duration

	// StdevFactor is the number of standard deviations below the mean. 0 means 1.9.
	StdevFactor float64

	// MinDifference is the least difference to the mean, from 0 to 1. 0 means 0.05,
	// because retries handle fewer failures than one in twenty.
	MinDifference float64

	// RequestVolume is the number of responses that an endpoint needs in an interval to
	// be compared. 0 means 100.
	RequestVolume int

	// MinEndpoints is the number of such endpoints that a comparison needs. 0 means 5,
	// because among fewer a single one cannot be 1.9 deviations below the mean.
	MinEndpoints int

	// BaseEjectionTime is the time of the first ejection. Each further one is longer by
	// that, up to MaxEjectionTime, until an endpoint has stayed for MaxEjectionTime. Each
	// is up to a tenth shorter at random. 0 means 30 s.
	BaseEjectionTime time.Duration

	// MaxEjectionTime is the longest ejection. 0 means 5 minutes, or BaseEjectionTime if
	// that is more.
	MaxEjectionTime time.Duration

	// MinReady is the share of all endpoints, and at least one, that an ejection leaves
	// ready. From 0 to 1; 0 means ½. With 1 no endpoint is ejected, but the metrics count
	// the skipped ejections. If no endpoint is ready, all ejected ones return.
	//
	// MinReady also applies to circuit breakers, without any rule above. An endpoint whose
	// [layer.Breaker] rejects a request stays ready if fewer than MinReady would be left,
	// and gets the request with [layer.PastBreakers].
	MinReady float64
}

// Validate returns an error that names every field that is out of range.
func (e OutlierDetection) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("balance: outlier detection: %s is %v, want %s", field, value, want))
		}
	}
	const count, length = "0 or more", "0, or at least 1ms"
	check(e.ConsecutiveFailures >= 0 && e.ConsecutiveFailures <= math.MaxInt32, "ConsecutiveFailures", e.ConsecutiveFailures, count)
	check(e.Interval == 0 || e.Interval >= time.Millisecond && e.Interval <= maxInterval, "Interval", e.Interval, length+" and at most 1h")
	check(e.StdevFactor >= 0, "StdevFactor", e.StdevFactor, "0 for the default, or more")
	check(e.MinDifference >= 0 && e.MinDifference <= 1, "MinDifference", e.MinDifference, "from 0, for the default, to 1")
	check(e.RequestVolume >= 0, "RequestVolume", e.RequestVolume, count)
	check(e.MinEndpoints >= 0, "MinEndpoints", e.MinEndpoints, count)
	check(e.BaseEjectionTime == 0 || e.BaseEjectionTime >= time.Millisecond, "BaseEjectionTime", e.BaseEjectionTime, length)
	check(e.MaxEjectionTime == 0 || e.MaxEjectionTime >= cmp.Or(e.BaseEjectionTime, defaultEjectionTime),
		"MaxEjectionTime", e.MaxEjectionTime, "0, or at least BaseEjectionTime")
	check(e.MinReady >= 0 && e.MinReady <= 1, "MinReady", e.MinReady, "from 0, for the default, to 1")
	return errors.Join(errs...)
}

const (
	maxInterval         = time.Hour // bounds the counts of an interval: see outlierState
	defaultEjectionTime = 30 * time.Second
)

// minReady returns how many of n endpoints must stay ready.
func (e OutlierDetection) minReady(n int) int {
	const rounding = 1e-9 // 0.07 · 100 is more than 7
	return max(1, int(math.Ceil(e.MinReady*float64(n)-rounding)))
}

// orDefault sets the defaults of a valid policy.
func (e OutlierDetection) orDefault() OutlierDetection {
	e.StdevFactor = cmp.Or(e.StdevFactor, 1.9)
	e.MinDifference = cmp.Or(e.MinDifference, 0.05)
	e.RequestVolume = cmp.Or(e.RequestVolume, 100)
	e.MinEndpoints = cmp.Or(e.MinEndpoints, 5)
	e.BaseEjectionTime = cmp.Or(e.BaseEjectionTime, defaultEjectionTime)
	e.MaxEjectionTime = cmp.Or(e.MaxEjectionTime, max(5*time.Minute, e.BaseEjectionTime))
	e.MinReady = cmp.Or(e.MinReady, 0.5)
	return e
}

func (e OutlierDetection) enabled() bool { return e.ConsecutiveFailures > 0 || e.Interval > 0 }

// successRate is the share of good responses of an endpoint in an interval.
type successRate struct {
	*endpoint
	all, good uint64
}

func (s successRate) share() float64 { return float64(s.good) / float64(s.all) }

// outliers returns the rates that are too low, the lowest first, and the mean. It sorts
// the argument.
func (e OutlierDetection) outliers(rates []successRate) (low []successRate, mean float64) {
	if len(rates) < e.MinEndpoints {
		return nil, 0
	}
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
	threshold := max(e.StdevFactor*math.Sqrt(variance), e.MinDifference)
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
	Cause string    // such as "5 failures in a row"
	Until time.Time // when the endpoint returns
	Times int       // number of ejections in a row, with this one
}

// Error returns the end and the cause.
func (e *EjectedError) Error() string {
	return fmt.Sprintf("ejected until %s: %s", e.Until.UTC().Format(time.RFC3339), e.Cause)
}

// Is reports whether target is layer.ErrNotReady.
func (*EjectedError) Is(target error) bool { return target == layer.ErrNotReady }

// outlierState is the state of outlier detection of one endpoint.
type outlierState struct {
	// tally has the responses since the last comparison (bits 63..32) and the failures
	// of these (bits 31..0). An hour has room for a million a second.
	tally atomic.Uint64
	row   atomic.Uint32 // failures in a row

	// Guarded by the balancer's mutex.
	times    int           // ejections in a row
	last     time.Duration // length of the last ejection
	returned time.Duration // end of it, since the balancer began
	end      *time.Timer   // of the ejection; nil before the first one
}

const answeredOne, failedOne = 1 << 32, 1

// record counts a response. It reports whether e has failed too often in a row. A
// throttled response counts for the success rate only.
func (p *OutlierDetection) record(e *endpoint, r result) (eject bool) {
	if p.Interval > 0 {
		if r.failed {
			e.outlier.tally.Add(answeredOne + failedOne)
		} else {
			e.outlier.tally.Add(answeredOne)
		}
	}
	switch {
	case p.ConsecutiveFailures == 0 || r.throttled:
	case r.failed:
		row := e.outlier.row.Add(1)
		e.status.mark()
		return row == uint32(p.ConsecutiveFailures)
	case e.status.marked() && e.outlier.row.Load() != 0:
		e.outlier.row.Store(0)
	}
	return false
}

// compareRates compares the success rates every Interval until ctx ends.
func (b *Balancer[Req, Rsp]) compareRates(ctx context.Context) {
	ticker := time.NewTicker(b.detection.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.ejectOutliers()
		}
	}
}

func (b *Balancer[Req, Rsp]) ejectOutliers() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.rates) // releases removed endpoints
	b.rates = b.rates[:0]
	for _, n := range b.nodes {
		tally := n.outlier.tally.Swap(0)
		r := successRate{endpoint: &n.endpoint, all: tally >> 32}
		r.good = r.all - min(tally&(1<<32-1), r.all)
		if n.status.state() == ready && r.all >= uint64(b.detection.RequestVolume) {
			b.rates = append(b.rates, r)
		}
	}
	low, mean := b.detection.outliers(b.rates)
	for _, r := range low {
		cause := fmt.Sprintf("success rate %d of %d, mean %.1f %% of %d endpoints", r.good, r.all, 100*mean, len(b.rates))
		if b.eject(nodeOf[Req, Rsp](r.endpoint), cause) {
			b.meters.outlier.Add(1)
		}
	}
}

// ejectFailing ejects a node after too many failures in a row.
func (b *Balancer[Req, Rsp]) ejectFailing(n *node[Req, Rsp]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n.outlier.row.Store(0)
	if b.eject(n, fmt.Sprintf("%d failures in a row", b.detection.ConsecutiveFailures)) {
		b.meters.consecutive.Add(1)
	}
}

// eject ejects a node if MinReady allows it, and reports whether it did.
func (b *Balancer[Req, Rsp]) eject(n *node[Req, Rsp], cause string) bool {
	if n.status.state() != ready {
		return false
	}
	if b.group.len() <= b.detection.minReady(len(b.nodes)) {
		b.skipped++
		b.meters.skipped.Add(1)
		return false
	}
	b.leave(n)
	n.status.setState(ejected)
	b.ejections++
	b.ejected++
	o := &n.outlier
	if time.Since(b.start)-o.returned > b.detection.MaxEjectionTime {
		o.times, o.last = 0, 0
	}
	o.times++
	o.last += min(b.detection.BaseEjectionTime, b.detection.MaxEjectionTime-o.last)
	length := o.last - time.Duration(float64(o.last)*0.1*float64(b.group.draw()>>11)/(1<<53))
	reason := &EjectedError{Cause: cause, Until: time.Now().Add(length), Times: o.times}
	n.reason = reason
	o.end = time.AfterFunc(length, func() { b.endEjection(n, reason) })
	b.count()
	return true
}

// endEjection returns a node after its ejection time.
func (b *Balancer[Req, Rsp]) endEjection(n *node[Req, Rsp], ejection *EjectedError) {
	reason := n.poll() // user code, so not under the lock
	b.mu.Lock()
	if n.status.state() == ejected && errors.Is(n.reason, ejection) {
		b.readmit(n, reason)
	}
	b.mu.Unlock()
	b.changed.Wake()
}

// readmit ends the ejection of a node that is ready if reason is nil. The mutex is held.
func (b *Balancer[Req, Rsp]) readmit(n *node[Req, Rsp], reason error) {
	b.clearEjection(n)
	n.status.setSamples(0)
	if n.reason = reason; reason != nil {
		b.markUnready(n, reason)
		return
	}
	b.join(n)
}

// clearEjection clears the ejection and the counts of a node. The mutex is held.
func (b *Balancer[Req, Rsp]) clearEjection(n *node[Req, Rsp]) {
	b.ejected--
	o := &n.outlier
	o.end.Stop()
	o.returned = time.Since(b.start)
	o.tally.Store(0)
	o.row.Store(0)
}

// readmitAll returns all ejected nodes if no other is ready. They are not polled, so that
// the mutex is never released while there is a node to try and none is ready. The mutex
// is held.
func (b *Balancer[Req, Rsp]) readmitAll() {
	if b.ejected == 0 || b.group.len() > 0 {
		return
	}
	for _, n := range b.nodes {
		if n.status.state() == ejected {
			b.readmit(n, nil)
		}
	}
	b.changed.Wake()
}
