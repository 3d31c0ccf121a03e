package layertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"
)

// fifo is invariant 10: waiting calls are admitted in order of arrival, and a
// new call does not take the turn of a waiting one. A queue that passes its
// turn on before the call that uses it may be overtaken; the bound is one in
// eight.
func fifo[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	r.far.Deny()
	turns, late := 0, 0
	for turns < 64 {
		n, err := r.line()
		if err != nil {
			return err
		}
		turns, late = turns+min(r.queue, 64), late+n
	}
	if late > turns/8 {
		return fmt.Errorf("of %d waiting calls, %d were not served in their turn", turns, late)
	}
	if r.queue < 3 {
		return nil
	}
	return r.newcomers()
}

// line has some wait and gives each a turn. It returns how many were not served
// when theirs came.
func (r *rig[Req, Rsp]) line() (late int, err error) {
	line := make([]*probe[Req, Rsp], min(r.queue, 64))
	before := len(r.far.Requests())
	for i := range line {
		line[i] = r.do(r.ctx, plan{})
	}
	for i, p := range line {
		r.turn(func() bool { return len(r.far.Requests()) > before+i })
		if n := len(r.far.Requests()) - before; n != i+1 {
			return late, fmt.Errorf("after %d turns, %d of the waiting calls were served", i+1, n)
		}
		if p.served() == 0 {
			late++
		}
	}
	return late, nil
}

// newcomers sends a new call just when the first of two waiting calls has its
// turn. The second is still waiting, so it has priority.
func (r *rig[Req, Rsp]) newcomers() error {
	const rounds = 200
	overtaken := 0
	for range rounds {
		head, second := r.do(r.ctx, plan{}), r.do(r.ctx, plan{})
		r.far.Allow(1)
		newcomer := r.do(r.ctx, plan{})
		if newcomer.served() > 0 {
			overtaken++
		}
		all := []*probe[Req, Rsp]{head, second, newcomer}
		for range 2 {
			before := len(r.far.Requests())
			r.turn(func() bool { return len(r.far.Requests()) > before })
		}
		for _, p := range all {
			if err := p.well(r.bodies); err != nil {
				return fmt.Errorf("three in a queue, after three turns: %w", err)
			}
		}
	}
	if overtaken > rounds/8 {
		return fmt.Errorf("in %d of %d rounds, a new call is served before the waiting ones", overtaken, rounds)
	}
	return nil
}

// leaverHarmless is invariant 11: a canceled call, even at the instant of
// capacity, neither wakes needlessly nor keeps the slot of another
// (golang/go#37852).
func leaverHarmless[Req, Rsp any](e env[Req, Rsp]) error {
	// Filling a long queue takes its time.
	rounds := min(max(10*e.crowd/(e.limit+e.queue+1), 3), 100)
	for round := range rounds {
		if err := leavesReady(e, round); err != nil {
			return err
		}
	}
	if e.queue < 3 {
		return nil
	}
	r := e.rig()
	r.far.Deny()
	for round := range e.crowd {
		if err := r.leavesQueue(round); err != nil {
			return err
		}
	}
	return leavesInside(e)
}

// leavesInside cancels calls in the middle of the queue, and checks that their
// places are free.
func leavesInside[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	r.far.Deny()
	ctx, cancel := context.WithCancelCause(r.ctx)
	head := r.do(r.ctx, plan{})
	gone := make([]*probe[Req, Rsp], min(r.queue, 64)-2)
	for i := range gone {
		gone[i] = r.do(ctx, plan{})
	}
	last := r.do(r.ctx, plan{})
	cancel(errCancel)
	settle()
	for _, p := range gone {
		if err := r.refused(p, errCancel); err != nil {
			return fmt.Errorf("a call that leaves from inside the queue: %w", err)
		}
	}
	// Either of the two may take the first turn.
	for turn := range 2 {
		r.turn(func() bool { return head.served()+last.served() > turn })
	}
	for _, p := range []*probe[Req, Rsp]{head, last} {
		if err := p.well(r.bodies); err != nil {
			return fmt.Errorf("the first and the last of a queue whose inside has left, after two turns: %w", err)
		}
	}
	r.far.Allow(Unlimited)
	settle()
	if err := r.exact(); err != nil {
		return fmt.Errorf("after some have left the queue from inside: %w", err)
	}
	return nil
}

// leavesReady cancels the first of several waiting Readys, just when capacity
// comes.
func leavesReady[Req, Rsp any](e env[Req, Rsp], round int) error {
	over, stop := context.WithCancelCause(e.ctx)
	defer stop(errOver)
	e.ctx = over
	r := e.rig()
	free, err := r.saturate()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(e.ctx)
	first := r.wait(ctx)
	others := r.waiters(e.ctx, 5)
	race(round, func() { cancel(errCancel) }, free)
	if !first.returned() || first.err != nil && !errors.Is(first.err, errCancel) {
		return fmt.Errorf("Ready, left when capacity came: %w", first.result())
	}
	for _, w := range others {
		if !w.returned() || w.err != nil {
			return fmt.Errorf("Ready, when another left as capacity came: %w", w.result())
		}
	}
	return nil
}

// leavesQueue cancels the head of three waiting calls, just when its turn
// comes. One of them is served then, and the others in turn.
func (r *rig[Req, Rsp]) leavesQueue(round int) error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	head := r.do(ctx, plan{})
	second, third := r.do(r.ctx, plan{}), r.do(r.ctx, plan{})
	race(round, func() { cancel(errCancel) }, func() { r.far.Allow(1) })
	served := func() int { return head.served() + second.served() + third.served() }
	r.grace(func() bool { return served() > 0 })
	if !head.returned() {
		return errors.New("the head of the queue does not leave when its ctx is done")
	}
	if head.served() == 0 {
		if err := r.refused(head, errCancel); err != nil {
			return err
		}
	}
	if served() != 1 {
		return fmt.Errorf("one turn, given as the head of the queue leaves: the first three are served %d, %d and %d times",
			head.served(), second.served(), third.served())
	}
	for range 1 + head.served() {
		before := served()
		r.turn(func() bool { return served() > before })
	}
	for i, p := range []*probe[Req, Rsp]{second, third} {
		if err := p.well(r.bodies); err != nil {
			return fmt.Errorf("number %d, after the head of the queue has left: %w", i+2, err)
		}
	}
	return nil
}

// turn gives one turn, and lets it be taken.
func (r *rig[Req, Rsp]) turn(taken func() bool) {
	r.far.Allow(1)
	settle()
	r.grace(taken)
}

// grace gives a queue a little time where it did not do what it should
// without any: one that was refused twice, though the inner service had said
// that it is ready, may pause before it asks again.
func (r *rig[Req, Rsp]) grace(enough func() bool) {
	if enough() {
		return
	}
	pause := 100 * time.Millisecond
	if r.maxWait > 0 {
		pause = min(pause, r.maxWait/2)
	}
	time.Sleep(pause)
	settle()
}

// race lets two things happen at the same time, and gives now the one and now
// the other the better start.
func race(round int, a, b func()) {
	if round%2 == 0 {
		a, b = b, a
	}
	go a()
	for range round % 5 {
		runtime.Gosched()
	}
	go b()
	settle()
}

// herd is how many waiters there are for wakesBounded, if the queue takes
// them.
const herd = 10_000

// Bounds on the cost of one call: the calls of the inner service, and the
// number of times that any goroutine starts to run. A queue that wakes all
// waiters for each turn exceeds them by its length.
const (
	maxAsked = 4
	maxRuns  = 100
)

// wakesBounded is invariant 12: a waiting call is woken a few times, regardless
// of the length of the queue. Without a queue, a call calls the inner service
// once.
func wakesBounded[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	if r.queue > 0 {
		return e.wakesFew(r)
	}
	for range e.crowd {
		if err := r.do(r.ctx, plan{}).well(r.bodies); err != nil {
			return err
		}
	}
	if calls, asked := r.far.Calls(), r.far.ReadyCalls(); calls > e.crowd || asked > e.crowd {
		return fmt.Errorf("%d calls made the inner service %d calls and %d times Ready", e.crowd, calls, asked)
	}
	return nil
}

// wakesFew looks again before it finds fault: goroutines of the runtime count,
// too, and those that a busy machine interrupts.
func (e env[Req, Rsp]) wakesFew(r *rig[Req, Rsp]) error {
	const looks = 3
	for look := 1; ; look++ {
		n := min(r.queue, herd)
		switch ran, err := r.drains(n); {
		case err != nil || ran <= maxRuns*uint64(n), n <= maxRuns: // so few that waking all of them is within the bound
			return err
		case look == looks:
			return fmt.Errorf("%d wait for as many turns: goroutines were woken %d times", n, ran)
		}
		r = e.rig()
	}
}

// drains serves n waiting calls one by one, and returns how often goroutines
// started to run.
func (r *rig[Req, Rsp]) drains(n int) (ran uint64, err error) {
	r.far.Deny()
	line := make([]*probe[Req, Rsp], n)
	for i := range line {
		line[i] = r.call(r.ctx, plan{})
	}
	settle()
	ran = runs()
	for range n {
		r.far.Allow(1)
		settle()
	}
	ran = runs() - ran
	r.grace(func() bool { return len(r.far.Requests()) == n })
	for _, p := range line {
		if err := p.well(r.bodies); err != nil {
			return ran, fmt.Errorf("%d wait for as many turns: %w", n, err)
		}
	}
	if calls, asked := r.far.Calls(), r.far.ReadyCalls(); calls > maxAsked*n || asked > maxAsked*n {
		return ran, fmt.Errorf("%d wait for as many turns: the inner service saw %d calls and %d times Ready", n, calls, asked)
	}
	return ran, nil
}

// runs returns how often goroutines of this program have begun to run. The
// runtime looks at one in eight.
func runs() uint64 {
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	var n uint64
	for _, count := range sample[0].Value.Float64Histogram().Counts {
		n += count
	}
	return 8 * n
}
