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

// OutlierDetection takes endpoints out that fail more than their peers do, for a while.
// The zero value takes none out.
//
// Which responses are failures is for the classifier to say, see [WithClassifier]. A
// refusal is not a failure: an endpoint that refuses is not ready, and comes back
// when it is.
//
// A caller that cancels says nothing of the endpoint, unless the head of the
// response was a failure. A deadline that passes before the first byte is a failure
// if the classifier says so, if the wait was longer than the usual latency of the
// endpoints, and if it is at least the third in a row that the endpoint misses.
// So an endpoint that hangs is ejected, and callers that allow less time than the
// endpoints need eject none.
//
// Each balancer judges by its own traffic and shares nothing with others. Two
// clients of one target may disagree, and one with few requests knows little.
//
// There are two rules, on by Consecutive and by Interval. The first is for an
// endpoint that is broken: it acts within a few responses. The second is for
// one that is worse than the others; it needs traffic to compare. It compares
// as Envoy does, and gRPC by its proposal A50: an endpoint is an outlier if the
// share s of its responses that were good is below the mean m of these shares
// by more than each of
//
//	Deviations · σ, where σ is the standard deviation of the shares
//	Difference
//	5 · √((m(1−m)+1/N)/N), what chance makes of its N responses
//
// The first alone, which is all that Envoy and gRPC have, ejects for 99.9 % where
// the others have 100 % (envoyproxy/envoy#18752, #37723), and, where a tenth of
// all requests fails everywhere, whoever had no luck. Where all endpoints do
// equally badly, none is an outlier.
//
// Where the endpoint is chosen by its latency, the penalty of a failure alone
// keeps nearly all requests away from it, so that there is hardly anything left
// to eject for. An OutlierDetection is for the other picks and costs ([ConsistentHash],
// [RoundRobin], [Random], [LeastRequest]), and for those who want it to be seen and
// counted.
//
// An endpoint that is out gets no requests; those that it has go on. When its
// time is over its Ready is asked, and it gets one request, then two, four and
// eight at a time, until four were answered; or what it had before, where costs
// do not matter. For each Interval (10 s if that is 0) but the first that passes
// until it is ejected again, it counts as once less in a row. An endpoint that is
// removed and comes back starts anew.
type OutlierDetection struct {
	// Consecutive is after how many failures in a row an endpoint is taken out
	// at once. A [layer.Throttled] response neither counts nor ends the row. An
	// endpoint that hangs misses two deadlines before they count. 0 is never;
	// Envoy's default is 5.
	ConsecutiveFailures int

	// Interval is how often the endpoints are compared with each other, up to
	// an hour. 0 is never; 10 s is what Envoy and gRPC do.
	Interval time.Duration

	// Deviations is by how many standard deviations the share of an endpoint's
	// good responses must be below the mean of all. 1.9 if it is 0.
	StdevFactor float64

	// Difference is by how much that share must be below the mean, however
	// alike the endpoints are. From 0 to 1; 0.05 if it is 0: what costs fewer
	// requests than one in twenty is better left to retries than to the peers,
	// which would have to bear the load.
	MinDifference float64

	// Requests is how many responses an endpoint must have given in an interval
	// to be compared. 100 if it is 0. Of fewer than twenty, chance explains
	// nearly everything.
	RequestVolume int

	// Endpoints is how many such endpoints there must be. 5 if it is 0: of
	// fewer, no single one can be below by 1.9 deviations.
	MinEndpoints int

	// Time is for how long an endpoint is taken out the first time; the second
	// time in a row it is twice that, then three times, and so on. Up to a
	// tenth less, at random, so that the endpoints that went at once do not come
	// back at once. 30 s if it is 0.
	BaseEjectionTime time.Duration

	// MaxEjectionTime is the longest of these times. 5 minutes if it is 0, or Time if
	// that is more.
	MaxEjectionTime time.Duration

	// Floor is the share of all endpoints, whatever their state, below which
	// those that are ready never fall by ejection; nor below one endpoint. Where
	// more of them fail it is not for the endpoints to blame, and the few that
	// are left would not bear it: those that should go are spared. Where others
	// become unready, so that those that are ready fall below it, ejected ones
	// come back early, those that were out longest first. So there is always
	// an endpoint to try unless all refuse.
	//
	// It also holds for the breakers of endpoints, even where both rules are off. An
	// endpoint whose [layer.Breaker] rejects a request stays ready if fewer than the
	// floor would be left, and gets the request with [layer.PastBreakers]. Other
	// rejections take an endpoint out. An endpoint that is out already comes back
	// when its breaker admits a probe, and not before.
	//
	// From 0 to 1; ½ if it is 0. With 1 nothing is taken out, and what is
	// spared tells what would have been.
	MinReady float64
}

// Validate returns an error that names every field that is out of range.
func (e OutlierDetection) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("balance: ejection: %s is %v, want %s", field, value, want))
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
	check(e.MaxEjectionTime == 0 || e.MaxEjectionTime >= cmp.Or(e.BaseEjectionTime, defaultTime),
		"MaxEjectionTime", e.MaxEjectionTime, "0, or at least BaseEjectionTime")
	check(e.MinReady >= 0 && e.MinReady <= 1, "MinReady", e.MinReady, "from 0, for the default, to 1")
	return errors.Join(errs...)
}

const (
	maxInterval = time.Hour // bounds what an interval can count: see conduct
	defaultTime = 30 * time.Second
)

// floor returns how many of n endpoints must be left.
func (e OutlierDetection) floor(n int) int {
	const rounding = 1e-9 // 0.07 · 100 is more than 7
	return max(1, int(math.Ceil(e.MinReady*float64(n)-rounding)))
}

// orDefault sets the defaults of a valid policy.
func (e OutlierDetection) orDefault() OutlierDetection {
	e.StdevFactor = cmp.Or(e.StdevFactor, 1.9)
	e.MinDifference = cmp.Or(e.MinDifference, 0.05)
	e.RequestVolume = cmp.Or(e.RequestVolume, 100)
	e.MinEndpoints = cmp.Or(e.MinEndpoints, 5)
	e.BaseEjectionTime = cmp.Or(e.BaseEjectionTime, defaultTime)
	e.MaxEjectionTime = cmp.Or(e.MaxEjectionTime, max(5*time.Minute, e.BaseEjectionTime))
	e.MinReady = cmp.Or(e.MinReady, 0.5)
	return e
}

// standing is how an endpoint did in an interval.
type standing struct {
	*endpoint
	all, good uint64
}

func (s standing) share() float64 { return float64(s.good) / float64(s.all) }

func (s standing) cause(mean float64, of int) string {
	return fmt.Sprintf("%d of %d responses were good, %.1f %% on average of %d endpoints", s.good, s.all, 100*mean, of)
}

// luck is how many standard errors an endpoint may be below the mean by chance.
// Of a hundred that are equal one is below by three of them every 75 s, where an
// interval is 10 s; by four, every hour; by five, every four days.
const luck = 5

// chance is by how much an endpoint of n responses may be below the mean. Where
// hardly anything fails, failures are rarer than the standard error says but
// come in larger numbers; so it is taken as if there were one more.
func chance(mean float64, n uint64) float64 {
	each := 1 / float64(n)
	return luck * math.Sqrt((mean*(1-mean)+each)*each)
}

// outliers returns those that did worse than their peers, the worst first, and
// the mean share of good responses. It sorts what it is given.
func (e OutlierDetection) outliers(s []standing) (bad []standing, mean float64) {
	if len(s) < e.MinEndpoints {
		return nil, 0
	}
	slices.SortFunc(s, func(a, b standing) int {
		return cmp.Or(cmp.Compare(a.share(), b.share()), a.id.Addr.Compare(b.id.Addr))
	})
	for _, x := range s {
		mean += x.share()
	}
	mean /= float64(len(s))
	variance := 0.0
	for _, x := range s {
		variance += (x.share() - mean) * (x.share() - mean) / float64(len(s))
	}
	below := max(e.StdevFactor*math.Sqrt(variance), e.MinDifference)
	for _, x := range s {
		if mean-x.share() > max(below, chance(mean, x.all)) {
			bad = append(bad, x)
		}
	}
	return bad, mean
}

// EjectedError is why an endpoint is out, as its [EndpointState] has it: use
// errors.As. It matches [layer.ErrNotReady].
type EjectedError struct {
	Cause string    // what it did: "5 failures in a row"
	Until time.Time // when it comes back, if the floor does not ask for it before
	Times int       // how often in a row it is out, this time included
}

// Error says until when, and why.
func (e *EjectedError) Error() string {
	return fmt.Sprintf("ejected until %s: %s", e.Until.UTC().Format(time.RFC3339), e.Cause)
}

// Is reports whether target is layer.ErrNotReady.
func (*EjectedError) Is(target error) bool { return target == layer.ErrNotReady }

// conduct is what the ejection of an endpoint depends on.
type conduct struct {
	// tally is how many responses there were since the last comparison (bits
	// 63..32) and how many of them failed (bits 31..0). An interval is an hour
	// at the most, which leaves room for a million a second.
	tally atomic.Uint64
	row   atomic.Uint32 // failures in a row

	// Guarded by the balancer's mutex.
	times    int           // how often it was ejected, less what was forgiven
	back     time.Duration // when it came back last, since the balancer began
	until    time.Duration // when it will
	sentence *EjectedError // nil if it is not ejected
}

const answered, failed = 1 << 32, 1

// jury takes endpoints out that fail. It is nil where no rule says so.
type jury struct {
	policy OutlierDetection
	most   int           // how often in a row, as far as it matters
	sooner chan struct{} // the next return may be sooner than it was

	// Guarded by the balancer's mutex.
	out                         []*endpoint // those that are ejected, in that order; some may be removed
	standings                   []standing  // of the last comparison, for its room
	ejections, spared, recalled uint64
}

func newJury(p OutlierDetection) *jury {
	if p.ConsecutiveFailures == 0 && p.Interval == 0 {
		return nil
	}
	most := (int64(p.MaxEjectionTime)-1)/int64(p.BaseEjectionTime) + 1 // rounded up
	return &jury{policy: p, most: int(min(most, math.MaxInt32)), sooner: make(chan struct{}, 1)}
}

// hear counts one response, and reports whether it was one failure too many. One
// that was throttled is a failure in the comparison; it is none in a row, nor does
// it end one: the endpoint is well, and without it the others would have to bear
// what was too much for all.
func (j *jury) hear(e *endpoint, v verdict) (tripped bool) {
	if j.policy.Interval > 0 {
		if v.failed {
			e.conduct.tally.Add(answered + failed)
		} else {
			e.conduct.tally.Add(answered)
		}
	}
	if j.policy.ConsecutiveFailures == 0 || v.throttled {
		return false
	}
	if v.failed {
		row := e.conduct.row.Add(1)
		e.status.mark()
		return row == uint32(j.policy.ConsecutiveFailures)
	}
	if e.status.marked() && e.conduct.row.Load() != 0 {
		e.conduct.row.Store(0)
	}
	return false
}

// condemn notes that e is out from now on, by a number at random, and returns
// for how long.
func (j *jury) condemn(e *endpoint, now time.Duration, random uint64) time.Duration {
	c := &e.conduct
	interval := j.policy.Interval
	if interval == 0 {
		interval = 10 * time.Second
	}
	// Who goes on failing is found by the second comparison after its return at
	// the latest. The interval until then is not to its credit.
	well := int(min(max((now-c.back)/interval-1, 0), math.MaxInt32))
	c.times = min(max(c.times-well, 0)+1, j.most)
	term := j.policy.MaxEjectionTime
	if c.times < j.most {
		term = j.policy.BaseEjectionTime * time.Duration(c.times)
	}
	term -= time.Duration(float64(term) * 0.1 * float64(random>>11) / (1 << 53))
	c.until = now + term
	j.out = append(j.out, e)
	j.ejections++
	select {
	case j.sooner <- struct{}{}:
	default:
	}
	return term
}

// acquit forgets what e was out for.
func (j *jury) acquit(e *endpoint, now time.Duration) {
	c := &e.conduct
	c.back, c.sentence = now, nil
	c.tally.Store(0)
	c.row.Store(0)
	e.status.setProven(0)
	if i := slices.Index(j.out, e); i >= 0 {
		j.out = slices.Delete(j.out, i, i+1)
	}
}

// stillOut forgets the endpoints that were removed while they were out, and
// returns those that are out, the first one first.
func (j *jury) stillOut() []*endpoint {
	j.out = slices.DeleteFunc(j.out, func(e *endpoint) bool { return e.status.state() != ejected })
	return j.out
}

// attributes is what the jury did, for Describe.
func (j *jury) attributes() layer.State {
	if j == nil {
		return nil
	}
	return layer.State{
		{Key: "ejected", Value: len(j.stillOut())},
		{Key: "ejections", Value: j.ejections},
		{Key: "spared", Value: j.spared},
		{Key: "recalled", Value: j.recalled},
	}
}

// preside compares the endpoints when it is time to, and brings back those
// whose time is over, until ctx ends. It is the one goroutine that a jury has.
func (b *Balancer[Req, Rsp]) preside(ctx context.Context) {
	var compare <-chan time.Time
	if every := b.jury.policy.Interval; every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		compare = ticker.C
	}
	next := time.NewTimer(maxInterval)
	defer next.Stop()
	for {
		if wait, some := b.nextRelease(); some {
			next.Reset(wait)
		} else {
			next.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-compare:
			b.compare()
		case <-next.C:
			b.release()
		case <-b.jury.sooner:
		}
	}
}

// nextRelease is how long it is until an endpoint's time is over.
func (b *Balancer[Req, Rsp]) nextRelease() (wait time.Duration, some bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.jury.stillOut() {
		if !some || e.conduct.until < wait {
			wait, some = e.conduct.until, true
		}
	}
	return wait - time.Since(b.start), some
}

// compare takes the outliers out.
func (b *Balancer[Req, Rsp]) compare() {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jury
	clear(j.standings)
	j.standings = j.standings[:0]
	for _, n := range b.nodes {
		tally := n.conduct.tally.Swap(0)
		s := standing{endpoint: &n.endpoint, all: tally >> 32}
		s.good = s.all - min(tally&(1<<32-1), s.all)
		if n.status.state() == ready && s.all >= uint64(j.policy.RequestVolume) {
			j.standings = append(j.standings, s)
		}
	}
	bad, mean := j.policy.outliers(j.standings)
	for _, s := range bad {
		if b.eject(nodeOf[Req, Rsp](s.endpoint), s.cause(mean, len(j.standings))) {
			b.meters.outlier.Add(1)
		}
	}
}

// trip takes a node out that failed too often in a row.
func (b *Balancer[Req, Rsp]) trip(n *node[Req, Rsp]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n.conduct.row.Store(0)
	if b.eject(n, fmt.Sprintf("%d failures in a row", b.jury.policy.ConsecutiveFailures)) {
		b.meters.consecutive.Add(1)
	}
}

// eject takes a node out of the ready set if enough are left, and reports
// whether it did.
func (b *Balancer[Req, Rsp]) eject(n *node[Req, Rsp], cause string) bool {
	if n.status.state() != ready {
		return false // it is out already, for this or for another reason
	}
	if b.group.len() <= b.ejection.floor(len(b.nodes)) {
		b.jury.spared++
		b.meters.spared.Add(1)
		return false
	}
	b.leave(n)
	n.status.setState(ejected)
	term := b.jury.condemn(&n.endpoint, time.Since(b.start), b.group.draw())
	n.conduct.sentence = &EjectedError{Cause: cause, Until: time.Now().Add(term), Times: n.conduct.times}
	n.reason = n.conduct.sentence
	b.count()
	return true
}

// release brings back those whose time is over.
func (b *Balancer[Req, Rsp]) release() {
	now := time.Since(b.start)
	b.mu.Lock()
	var due []*node[Req, Rsp]
	var served []*EjectedError
	for _, e := range b.jury.stillOut() {
		if e.conduct.until <= now {
			due, served = append(due, nodeOf[Req, Rsp](e)), append(served, e.conduct.sentence)
		}
	}
	b.mu.Unlock()
	for i, n := range due {
		reason := n.poll() // the caller's code, so not under the lock
		b.mu.Lock()
		if n.status.state() == ejected && n.conduct.sentence == served[i] {
			b.readmit(n, reason)
		}
		b.mu.Unlock()
	}
	b.changed.Wake()
}

func (b *Balancer[Req, Rsp]) readmit(n *node[Req, Rsp], reason error) {
	b.jury.acquit(&n.endpoint, time.Since(b.start))
	if n.reason = reason; reason != nil {
		b.setAside(n, reason)
		return
	}
	b.join(n)
}

// recall brings nodes back before their time while fewer are ready than the
// floor asks for, because others refused or were removed: those that were out
// longest first, which have had the most time to become well. They are not
// polled, so that between two holders of the lock there is never a moment
// where none is ready and one is ejected. Who is not ready refuses, and makes
// room for the next.
func (b *Balancer[Req, Rsp]) recall() {
	j := b.jury
	if j == nil || len(j.out) == 0 || b.ended.Load() != nil {
		return
	}
	need := b.ejection.floor(len(b.nodes))
	for b.group.len() < need {
		out := j.stillOut()
		if len(out) == 0 {
			break
		}
		b.readmit(nodeOf[Req, Rsp](out[0]), nil)
		j.recalled++
		b.meters.recalled.Add(1)
	}
	b.changed.Wake()
}
