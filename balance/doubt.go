package balance

import (
	"math"
	"sync/atomic"
	"time"
)

// doubt is the reaction to one endpoint's failures. It follows two independent rules.
//
// A row of failures begins a doubt, if it shows that the endpoint itself has failed: see
// [record.failedInRow]. A doubted endpoint gets no requests but probes, one at a time, with growing
// pauses: see probePause. The first success of a request that began after the doubt ends it. If most
// endpoints are doubted, the balancer cannot avoid them all: see failingLoadOf.
//
// The error rate is a moving average over the endpoint's requests. If it is significantly higher than
// that of other endpoints, the cost increases by the penalty times the difference. Only the first two
// failures in a row count. A longer row is a single event, which the first rule handles better:
// otherwise an endpoint would get few requests for long after an outage.
//
// A request misses its deadline if its time is over before its response has ended. The deadline may just
// have been too short. Therefore missed deadlines are counted separately, in missed and misses, and count
// as failures only after a row of them: see minLongRow.
type doubt struct {
	fails     atomic.Uint32 // consecutive failures; a success ends the row
	missed    atomic.Uint32 // consecutive missed deadlines; any response ends the row
	level     atomic.Uint32 // see probePause; 0 if the endpoint is not doubted
	startTick atomic.Uint32 // the tick at which the doubt began
	probed    atomic.Uint32 // the tick of the last probe, or of the begin of the doubt
	passed    atomic.Uint32 // picks that examined the endpoint since then, but did not pick it

	errors   visitRate     // the share of requests that failed, without the later ones of a long row
	misses   visitRate     // the share of requests that missed their deadline
	failedAt atomic.Uint32 // the tick of the last failure that counts
}

// probePause returns the pause between two probes of a doubted endpoint, both as a shortest time
// and as a number of requests per examined endpoint. Both must have passed. With little traffic,
// the second condition limits how many requests fail as probes.
//
// A doubt begins at level 1, and each failed probe increases the level by one up to maxFailedLevel.
// A missed deadline costs its caller the whole deadline. Therefore the doubt begins at level 3
// after missed deadlines, and a missed probe increases it by 2.
func probePause(level uint32) (ticks, requests uint32) {
	switch level {
	case 0, 1:
		return 96, 1
	case 2:
		return 384, 4
	case 3:
		return 1536, 16
	case maxFailedLevel:
		return 1920, 48
	}
	return 1920, 256
}

// The highest levels of doubt, after failures and after missed deadlines, and when several of them in a row count.
const (
	maxFailedLevel = 4
	maxMissedLevel = 5

	// minLongRow and minShortRow are the numbers of consecutive missed deadlines from which on a
	// missed deadline is a failure. minShortRow applies if the request waited for at most twice the
	// median latency, because such a deadline may be too short for any endpoint. The row must also
	// be more than peersFactor times as long as in other endpoints, and improbable for their rate of
	// missed deadlines.
	minLongRow  = 3
	minShortRow = 7
	peersFactor = 3

	// visitWeight is the weight of one request in a visitRate.
	visitWeight = 1.0 / 64
	// Several failures or missed deadlines in a row are not a coincidence if their probability is
	// below these.
	rareRefusals = 0.1 // of class layer.Retryable
	rareFailures = 2e-4
	rareMisses   = 1e-6
)

// probesAtOnce makes the next request a probe, if the endpoint is doubted, whatever the pause.
func (d *doubt) probesAtOnce(now uint32) {
	// With the largest values, both conditions of isDue hold: enough picks and enough time.
	d.passed.Store(math.MaxUint32)
	d.probed.Store(now - maxLag)
}

// isDue reports whether the next request should probe the doubted endpoint: both pauses of probePause
// are over. Each call counts as a pick that has passed the endpoint over. examined is how many
// endpoints a pick examines. If requests already wait at the endpoint, the pauses are at least those of
// maxFailedLevel, because each of these requests is a probe.
func (d *doubt) isDue(now, examined uint32, waiting int32) bool {
	level := min(d.level.Load(), maxMissedLevel)
	if waiting > 0 {
		level = max(level, maxFailedLevel)
	}
	ticks, requests := probePause(level)
	// The pause is in requests first, which is the cheaper check and also counts this pick.
	if passed := d.passed.Load(); passed < requests*examined {
		d.passed.Add(1)
		return false
	}
	return since(now, d.probed.Load()) >= ticks
}

// claimProbe makes the caller's request the probe that is due. It returns false if a concurrent request
// was faster.
func (d *doubt) claimProbe(now uint32) bool {
	last := d.probed.Load()
	if last == now || !d.probed.CompareAndSwap(last, now) {
		return false
	}
	d.passed.Store(0)
	return true
}

// failedInRow counts a failure, and reports whether it begins or prolongs a doubt:
//
//   - a response of class layer.Retryable does, because the endpoint itself has failed, unless such
//     responses are usual now;
//   - a missed deadline does, because it counts as a failure only after a row of others;
//   - any other failure may be an error of the application. It does if it is at least the second in
//     a row, and the row is improbable for the error rate of the other endpoints.
func (d *doubt) failedInRow(r result, usual float32) bool {
	fails := d.fails.Add(1)
	switch r { //nolint:exhaustive // the others may be errors of the application
	case refused:
		// The endpoint refused the request: even one failure may be enough.
		return isRare(fails, usual, rareRefusals)
	case late:
		// late is counted only after a row of missed deadlines, so that it needs no further condition.
		return true
	}
	return fails > 1 && isRare(fails, usual, rareFailures)
}

// prolong begins a doubt, or raises its level if the failed request was a probe, which makes the pauses
// longer. It returns false if the failure changes nothing: the request was sent before the last probe,
// or a concurrent failure has begun the doubt. start is the tick at which the request began.
func (d *doubt) prolong(r result, start, now uint32) bool {
	// A missed deadline raises the level by two, and up to a higher one.
	step := uint32(1)
	maxLevel := uint32(maxFailedLevel)
	if r == late {
		step, maxLevel = 2, maxMissedLevel
	}
	level := d.level.Load()
	switch {
	case level == 0:
		// The level begins at 1, or at 3 for a missed deadline.
		if !d.level.CompareAndSwap(0, 2*step-1) {
			return false
		}
		d.startTick.Store(now)
		d.probed.Store(now)
		d.passed.Store(0)
		return true
	case int32(start-d.probed.Load()) < 0: // sent before the last probe, so it tells nothing new
		return false
	case level < maxLevel:
		d.level.CompareAndSwap(level, min(level+step, maxLevel))
	}
	return true
}

// missDeadline counts a missed deadline, and reports whether it counts as a failure: see minLongRow.
// long is true if the request waited for more than twice the median latency. usual holds what is normal
// for other endpoints. picks is how many requests the endpoint has got so far.
func (d *doubt) missDeadline(long bool, usual *peers, picks uint64) bool {
	row := d.missed.Add(1)
	d.misses.add(picks)
	// Both rules of minLongRow, and the comparison with the other endpoints, which may be as slow.
	return (long && row >= minLongRow || row >= minShortRow) &&
		row > peersFactor*usual.missed.Load() && isRare(row, usual.missRate(), rareMisses)
}

// isRare reports whether a row of so many failures is improbable, if requests fail at the given rate:
// whether its probability is below limit.
func isRare(row uint32, rate float32, limit float64) bool {
	return math.Pow(float64(rate), float64(row)) < limit
}

// visitRate is a moving average over an endpoint's requests: the share of those for which add was
// called. The word holds this share as a float32 (bits 31..0), and the number of requests when add
// was last called (bits 63..32).
type visitRate struct{ word atomic.Uint64 }

// add adds a request for which the average rises. picks is the number of requests so far; those since
// the last add lower it.
func (v *visitRate) add(picks uint64) {
	for {
		// The average changes by compare-and-swap, so a concurrent add is not lost.
		old := v.word.Load()
		rate := rateAt(old, picks)
		rate += (1 - rate) * visitWeight
		if v.word.CompareAndSwap(old, picks<<32|uint64(math.Float32bits(rate))) {
			return
		}
	}
}

// rate returns the share after so many requests.
func (v *visitRate) rate(picks uint64) float32 { return rateAt(v.word.Load(), picks) }

// rateAt decodes a moving average that was stored in word with the number of requests at that time.
// picks is the number of requests now: the average fades with each request in between.
func rateAt(word, picks uint64) float32 {
	rate := math.Float32frombits(uint32(word))
	// The difference works modulo 1<<32, as the word stores only the lower bits.
	otherPicks := int32(uint32(picks) - uint32(word>>32))
	if rate == 0 || otherPicks <= 0 {
		return rate
	}
	return rate * float32(math.Exp(-visitWeight*float64(otherPicks)))
}

// errorRate returns the moving average of e's error rate at the tick now. It fades with each request,
// and with time, but three times as slowly as latencies do.
func (e *endpoint) errorRate(now uint32, p *params) float32 {
	rate := e.errors.rate(e.picks())
	if rate == 0 {
		return 0
	}
	age := float64(since(now, e.failedAt.Load()))
	return rate * float32(math.Exp(-age/(3*p.curve.decay)))
}

// excess returns by how much an error rate is significantly higher than the usual one: the part above
// 1.9 standard deviations, as in [OutlierDetection]. Both rates deviate like an average over about 128
// requests. With the smallest usual rate, two errors in 64 requests are hardly significant, but three
// are.
func excess(rate, usual float32) float32 {
	const smallest, requests = 1.0 / 64, 2/visitWeight - 1
	// The standard deviation of a difference of two rates is √2 times that of one.
	u := float64(max(usual, smallest))
	deviation := stdevFactor * math.Sqrt(2*u*(1-u)/requests)
	return max(rate-usual-float32(deviation), 0)
}

// react makes the balancer react to the result r of a response from n: a failure may begin or prolong a
// doubt about n and raises its error rate, and a success may end the doubt; see doubt. start is when
// the request began, as the time since the balancer's start.
func (b *Balancer[Req, Rsp]) react(n *node[Req, Rsp], r result, start time.Duration) {
	now := b.now()
	if !r.isFailure() {
		b.forgive(n, tick(start), now)
		return
	}
	// The record now contains a failure, so successes must look at it.
	n.status.mark()
	g := b.groupOf(&n.endpoint)
	p := g.params.Load()
	median := g.median.read()
	usual := g.peers.errorRate()
	doubted := n.failedInRow(r, usual)
	if n.fails.Load() <= 2 { // a longer row is one event: see doubt
		n.errors.add(n.picks())
		n.failedAt.Store(now)
	}
	// Failures everywhere mean overload, which ejections make worse.
	b.relieve(g, now)
	if p.penaltyAt(median) <= 0 { // failures do not affect costs: see Policy.Penalty
		g.refresh(&n.endpoint, now, false) // not a first sample
		return
	}
	if doubted && n.prolong(r, tick(start), now) {
		b.leaveAperture(&n.endpoint)
		// From now on, recall brings doubted endpoints back into the aperture now and then.
		if !b.displaced.Swap(true) {
			b.recalled.Store(now)
		}
		// A doubt changes the health of a priority.
		b.divideIfGroups()
	}
	if doubted || excess(n.errorRate(now, p), usual) > 0 {
		n.status.suspect()
	}
	g.refresh(&n.endpoint, now, false) // not a first sample
}

// forgive is called for each success of n while n's status is suspected or has a badRecord. It ends a
// doubt and the row of failures, unless the request began before the doubt, because then it does not
// show that the endpoint has recovered. start is the tick at which the request began.
func (b *Balancer[Req, Rsp]) forgive(n *node[Req, Rsp], start, now uint32) {
	level := n.level.Load()
	startTick := n.startTick.Load()
	// The request began before the doubt, so its success shows nothing about the time after it.
	if level > 0 && int32(start-startTick) < 0 {
		return
	}
	n.fails.Store(0)
	n.missed.Store(0)
	g := b.groupOf(&n.endpoint)
	if level > 0 {
		n.level.Store(0)
		b.forgiveOutcast(n)
		// If the outage was long, or most endpoints are doubted, it may be over for other endpoints, too.
		if since(now, startTick) > longDoubt || g.peers.failingLoad() == 0 {
			b.reconsider()
		}
		b.divideIfGroups()
	}
	// Without an excess of errors and without a doubt, the endpoint costs as much as others again.
	if excess(n.errorRate(now, g.params.Load()), g.peers.errorRate()) == 0 {
		n.status.trust()
		if n.level.Load() > 0 { // a concurrent failure
			n.status.suspect()
		}
	}
}

// longDoubt is the number of ticks, about 2 s, after which the end of a doubt shows that an outage is
// over, perhaps also for other endpoints. So does the end of any doubt while most endpoints are
// doubted.
const longDoubt = 1920

// divideIfGroups divides the requests among the groups again after a change of a doubt, which affects
// the health of a group. With a single group there is nothing to divide.
func (b *Balancer[Req, Rsp]) divideIfGroups() {
	if b.division.Load() != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.divide()
	}
}

// reconsider makes the next requests probe all doubted endpoints. Those outside the aperture, which no
// pick would examine, move to random places.
func (b *Balancer[Req, Rsp]) reconsider() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, g := range b.groups {
		for i := range g.sets {
			s := g.sets[i].slots.Load()
			n := int(s.n.Load())
			width := g.aperture.limit(n) // the first width places are inside the aperture
			for place := range n {
				e := s.endpoints[place].Load()
				if e.level.Load() == 0 {
					continue
				}
				e.probesAtOnce(now)
				// Swap the endpoint with a random one inside. A Peer keeps its fixed order.
				if inside := int(g.draw() % uint64(n)); place >= width && inside < width && g.aperture.peers.Load() == 0 {
					s.swap(place, inside)
					s.updateFront(inside)
				}
			}
		}
	}
}

// recall makes sure that doubted endpoints outside g's aperture are probed in the end: it moves one of
// them into the aperture, at most once per decay time, and as seldom as the longest pauses of
// probePause require. It is called for each response while there may be such an endpoint.
func (b *Balancer[Req, Rsp]) recall(g *group, now uint32) {
	last := b.recalled.Load()
	_, requests := probePause(maxMissedLevel)
	// With a Peer, endpoints do not move. Otherwise once per decay time and so many responses, by one goroutine.
	if g.aperture.peers.Load() > 0 || b.responses.Add(1) < requests*g.examines() ||
		since(now, last) < uint32(g.params.Load().curve.decay) || !b.recalled.CompareAndSwap(last, now) {
		return
	}
	b.responses.Store(0)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range g.sets {
		s := g.sets[i].slots.Load()
		n := int(s.n.Load())
		width := g.aperture.limit(n)
		// Everything is inside, so pickers find doubted endpoints themselves.
		if width == n {
			continue
		}
		outside := n - width // the first width places are inside the aperture
		// A random order, so that different endpoints get their turn.
		w := newWalk(g.draw(), outside)
		for range outside {
			place := width + w.next()
			if e := s.endpoints[place].Load(); e.level.Load() > 0 {
				e.probesAtOnce(now)
				inside := int(g.draw() % uint64(width))
				s.swap(place, inside)
				s.updateFront(inside)
				return
			}
		}
	}
	// No doubted endpoint is outside an aperture.
	b.displaced.Store(false)
}
