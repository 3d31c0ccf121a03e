package balance

import (
	"context"
	"fmt"
	"time"
)

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
