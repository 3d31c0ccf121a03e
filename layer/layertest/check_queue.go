package layertest

import (
	"context"
	"errors"
	"runtime"
	"runtime/metrics"
	"testing/synctest"
	"time"
)

// fifo checks that waiting calls are served in the order in which they arrived. At most one in
// eight calls may be served out of order. Such calls are possible because a call leaves the queue
// before it takes the capacity.
func fifo[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	r.inner.Deny()
	served, misordered := 0, 0
	for served < 64 {
		n := r.serveQueued()
		served, misordered = served+min(r.Queue, 64), misordered+n
	}
	if misordered > served/8 {
		failf("of %d waiting calls, %d were served out of order", served, misordered)
	}
	// newCalls needs room for three calls.
	if r.Queue < 3 {
		return
	}
	r.newCalls()
}

// serveQueued fills the queue and then lets its calls be served one by one. It returns how many
// calls were served out of order.
func (r *rig[Req, Rsp]) serveQueued() (misordered int) {
	queued := make([]*probe[Req, Rsp], min(r.Queue, 64))
	count := len(r.inner.Requests())
	for i := range queued {
		queued[i] = r.call(r.ctx, plan{})
	}
	for i, p := range queued {
		r.allowOne(func() bool { return len(r.inner.Requests()) > count+i })
		if n := len(r.inner.Requests()) - count; n != i+1 {
			failf("after %d admissions, %d of the waiting calls were served", i+1, n)
		}
		// The capacity was used, as checked above, so if this call has none, a later one overtook it.
		if p.served() == 0 {
			misordered++
		}
	}
	return misordered
}

// newCalls checks that a waiting call is served before a new one. In each round two calls
// wait, one call is admitted, and a new call starts at the same time. The new call may be
// served first in at most an eighth of the rounds.
func (r *rig[Req, Rsp]) newCalls() {
	const rounds = 200
	overtaken := 0
	for range rounds {
		head := r.call(r.ctx, plan{})
		second := r.call(r.ctx, plan{})
		r.inner.Allow(1)
		added := r.call(r.ctx, plan{})
		if added.served() > 0 {
			overtaken++
		}
		// The first admission served one of the three calls, so two are left.
		for range 2 {
			count := len(r.inner.Requests())
			r.allowOne(func() bool { return len(r.inner.Requests()) > count })
		}
		for _, p := range []*probe[Req, Rsp]{head, second, added} {
			mustf(p.checkSuccess(r.bodies), "three calls in a queue, after three admissions")
		}
	}
	if overtaken > rounds/8 {
		failf("in %d of %d rounds, a new call is served before the waiting ones", overtaken, rounds)
	}
}

// cancelHarmless checks that a canceled waiter takes no capacity from another one. It
// cancels the waiter at the same time as it adds capacity. See golang/go#37852 for such a
// defect.
func cancelHarmless[Req, Rsp any](e env[Req, Rsp]) {
	// Fewer rounds for subjects that take long to fill.
	rounds := min(max(10*e.Callers/(e.Limit+e.Queue+1), 3), 100)
	for round := range rounds {
		cancelReady(e, round)
	}
	if e.Queue == 0 {
		return
	}
	if e.Queue >= 3 {
		r := e.rig()
		r.inner.Deny()
		for round := range e.Callers {
			r.cancelHead(round)
		}
	}
	cancelQueued(e, 0)
	cancelQueued(e, 1)
}

// cancelQueued fills a queue and cancels the calls in it, except some at the front and the last
// one. front is the number of calls at the front that are not canceled. The calls that are not
// canceled must be served, and the canceled calls must free their places in the queue.
func cancelQueued[Req, Rsp any](e env[Req, Rsp], front int) {
	r := e.rig()
	r.inner.Deny()
	ctx, cancel := context.WithCancelCause(r.ctx)
	var canceled, remaining []*probe[Req, Rsp]
	for i := range min(r.Queue, 64) {
		if i < front || i == min(r.Queue, 64)-1 {
			remaining = append(remaining, r.call(r.ctx, plan{}))
		} else {
			canceled = append(canceled, r.call(ctx, plan{}))
		}
	}
	cancel(errCancel)
	synctest.Wait()
	for _, p := range canceled {
		mustf(r.checkRejected(p, errCancel), "a canceled call in the queue")
	}
	for range remaining {
		count := len(r.inner.Requests())
		r.allowOne(func() bool { return len(r.inner.Requests()) > count })
	}
	for _, p := range remaining {
		mustf(p.checkSuccess(r.bodies), "a call in the queue, when others are canceled")
	}
	r.inner.Allow(Unlimited)
	synctest.Wait()
	mustf(r.checkCapacity(), "after calls in the queue were canceled")
}

// cancelReady cancels the first of several waiting calls of Ready at the same time as it
// adds capacity. The others must return.
func cancelReady[Req, Rsp any](e env[Req, Rsp], round int) {
	ctx, stop := context.WithCancelCause(e.ctx)
	defer stop(errCheckDone)
	e.ctx = ctx
	r := e.rig()
	free := r.saturate()
	ctx, cancel := context.WithCancelCause(e.ctx)
	first := r.ready(ctx, 1)[0]
	waiters := r.ready(e.ctx, 5)
	// If first is woken for the free capacity and then canceled, another must be woken in its place.
	race(round, func() { cancel(errCancel) }, free)
	if err := first.result(); err != nil && !errors.Is(err, errCancel) {
		failf("Ready, canceled when capacity came: %w", err)
	}
	for _, w := range waiters {
		mustf(w.result(), "Ready, when another was canceled as capacity came")
	}
}

// cancelHead cancels the first of three waiting calls at the same time as it admits one call. It
// checks that this admission serves exactly one call. It then admits and checks the other calls
// that were not canceled.
func (r *rig[Req, Rsp]) cancelHead(round int) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	head := r.call(ctx, plan{})
	second := r.call(r.ctx, plan{})
	third := r.call(r.ctx, plan{})
	race(round, func() { cancel(errCancel) }, func() { r.inner.Allow(1) })
	served := func() int { return head.served() + second.served() + third.served() }
	r.pauseUnless(func() bool { return served() > 0 })
	if !head.returned() {
		failf("the head of the queue does not return when its ctx is done")
	}
	if head.served() == 0 {
		must(r.checkRejected(head, errCancel))
	}
	if served() != 1 {
		failf("one admission, when the head of the queue is canceled: the first three are served %d, %d and %d times",
			head.served(), second.served(), third.served())
	}
	// If the admission served the canceled head, the second and the third call still need one each.
	// Otherwise only one of them does.
	for range 1 + head.served() {
		count := served()
		r.allowOne(func() bool { return served() > count })
	}
	for i, p := range []*probe[Req, Rsp]{second, third} {
		mustf(p.checkSuccess(r.bodies), "call %d, when the head of the queue is canceled", i+2)
	}
}

// allowOne lets the inner service admit one call. Then it calls served. If the result is false,
// allowOne sleeps for up to 100 ms, because a queue may pause (see pauseUnless).
func (r *rig[Req, Rsp]) allowOne(served func() bool) {
	r.inner.Allow(1)
	synctest.Wait()
	r.pauseUnless(served)
}

// pauseUnless sleeps for up to 100 ms if done returns false. If the inner service was ready and
// still rejected a call, a queue may pause before it sends the call again.
func (r *rig[Req, Rsp]) pauseUnless(done func() bool) {
	if done() {
		return
	}
	pause := 100 * time.Millisecond
	if r.MaxWait > 0 {
		pause = min(pause, r.MaxWait/2)
	}
	time.Sleep(pause)
	synctest.Wait()
}

// race runs the functions a and b on two goroutines and waits until both have returned or
// are blocked. round determines which of them starts first.
func race(round int, a, b func()) {
	if round%2 == 0 {
		a, b = b, a
	}
	go a()
	// The first function gets a head start, whose length varies with the round.
	for range round % 5 {
		runtime.Gosched()
	}
	go b()
	synctest.Wait()
}

// maxWaiters is the largest number of waiting calls in wakeUpsBounded.
const maxWaiters = 500

// maxInnerCalls and maxRuns are how many inner calls and goroutine runs one waiting call may
// cost. A queue exceeds both if it wakes all waiting calls for each admission.
const (
	maxInnerCalls = 4   // inner calls for one waiting call; Ready and Call count separately
	maxRuns       = 100 // runs of goroutines for one waiting call; a run is the time from a start to the next block
)

// wakeUpsBounded checks that the number of wake-ups for one waiting call does not grow with the
// queue's length. Without a queue, each call must call the inner service once.
func wakeUpsBounded[Req, Rsp any](e env[Req, Rsp]) {
	if e.Queue == 0 {
		r := e.rig()
		n := min(e.Callers, 100)
		for range n {
			must(r.call(r.ctx, plan{}).checkSuccess(r.bodies))
		}
		r.checkInnerCalls(n, 1)
		return
	}
	// tries is how often a measurement above the bound is made, because the runtime's own
	// goroutines count as well.
	const tries = 3
	for i := 1; ; i++ {
		n := min(e.Queue, maxWaiters)
		switch runs := e.rig().serveWaiters(n); {
		case runs <= maxRuns*uint64(n):
			return
		// If each admission woke all n calls, a call would still cost at most maxRuns runs.
		case n <= maxRuns:
			return
		case i == tries:
			failf("%d waiting calls: goroutines were woken %d times", n, runs)
		}
	}
}

// serveWaiters lets n waiting calls be served one by one. It returns the number of times
// that goroutines began to run during this time.
func (r *rig[Req, Rsp]) serveWaiters(n int) (runs uint64) {
	// All calls arrive while there is no capacity, so all of them wait.
	r.inner.Deny()
	queued := make([]*probe[Req, Rsp], n)
	for i := range queued {
		queued[i] = r.start(r.ctx, plan{})
	}
	synctest.Wait()
	runs = goroutineRuns()
	for range n {
		r.inner.Allow(1)
		synctest.Wait()
	}
	runs = goroutineRuns() - runs
	r.pauseUnless(func() bool { return len(r.inner.Requests()) == n })
	for _, p := range queued {
		mustf(p.checkSuccess(r.bodies), "%d waiting calls, after as many admissions", n)
	}
	r.checkInnerCalls(n, maxInnerCalls)
	return runs
}

// checkInnerCalls fails if n calls caused more than limit calls each of the inner service's Call or Ready.
func (r *rig[Req, Rsp]) checkInnerCalls(n, limit int) {
	if calls, readies := r.inner.Calls(), r.inner.ReadyCalls(); calls > limit*n || readies > limit*n {
		failf("%d calls caused %d calls and %d times Ready of the inner service", n, calls, readies)
	}
}

// goroutineRuns estimates how often this process's goroutines began to run. The runtime counts
// one in eight of these events, so the count is multiplied by eight.
func goroutineRuns() uint64 {
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
