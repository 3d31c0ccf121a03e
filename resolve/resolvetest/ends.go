package resolvetest

import (
	"context"
	"math"
	"runtime"
	"time"

	"go.uber.org/goleak"
)

// streamCount is how many streams a check opens to find leaks.
const streamCount = 8

// moment is the time for which a check waits for something that must not happen. A later
// violation is not found.
const moment = 50 * time.Millisecond

// endLimit is the time limit for the fastest of several streams to end. The other streams may take
// longer, because the machine may be slow.
const endLimit = time.Second

// ends returns the checks about the end of streams.
func ends() []Check {
	return []Check{
		{
			Name:  "break",
			Claim: "end when the consumer breaks, without another item or a leaked goroutine",
			run: func(g *rig) {
				g.leaveNothing(func(w *watch) { w.leave(breaks) })
			},
		},
		{
			Name:  "panic",
			Claim: "leak no goroutine when the consumer panics or its goroutine exits",
			run:   leaveByForce,
		},
		{
			Name:  "context ends between updates",
			Claim: "end soon after the context while waiting for an update, without a change or a leaked goroutine",
			run: func(g *rig) {
				g.leaveNothing(func(w *watch) {
					w.answer(continues)
					w.cancel()
					w.end()
				})
			},
		},
		{
			Name:  "context ends in the loop",
			Claim: "end soon after the context while the consumer is busy",
			run: func(g *rig) {
				g.leaveNothing(func(w *watch) {
					w.cancel()
					w.end()
				})
			},
		},
		{
			Name:  "context ends before the first answer",
			Claim: "end soon after the context before the first answer",
			run:   endUnanswered,
		},
		{
			Name:  "context is done before",
			Claim: "end at once if the context has already ended",
			run:   endDone,
		},
	}
}

// inTime checks that a stream ends within endLimit. It calls leave, which ends a stream and returns
// it, until a stream has ended in time, at most streamCount times. If all streams take longer,
// inTime records a violation.
func (g *rig) inTime(leave func() *watch) {
	quickest := time.Duration(math.MaxInt64)
	// One stream in time suffices: a slow machine delays some, but a resolver that waits delays all.
	for i := 0; i < streamCount && g.err == nil; i++ {
		if quickest = min(quickest, leave().duration); quickest <= endLimit {
			return
		}
	}
	g.failf("the fastest of %d streams took %v to end; want %v", streamCount, quickest, endLimit)
}

// leaveByForce leaves the consumer's loop by a panic or by runtime.Goexit, and then looks
// for leaked goroutines.
func leaveByForce(g *rig) {
	for a, verb := range map[action]string{panics: "panicked", exits: "exited"} {
		g.during = "a consumer " + verb
		g.leaveNothing(func(w *watch) { w.leave(a) })
	}
}

// endUnanswered checks that a stream ends in time if its context ends before the first answer. It
// does so for a target without an answer, and during an outage.
func endUnanswered(g *rig) {
	g.inTime(g.endEarly)
	if g.Interrupt == nil {
		return
	}
	g.during = "in an outage"
	g.set(0)
	g.Interrupt(g.target(), func() { g.inTime(g.endEarly) })
}

// endEarly starts a stream and ends its context at the first item, or after the duration in the
// constant moment without an item. It waits for the end of the stream and returns it.
func (g *rig) endEarly() *watch {
	w := g.watch(context.Background(), g.target())
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	// The consumer is then in its loop body: its answer is pending.
	case <-w.items:
		w.pending = true // so that end lets the consumer continue
	case <-timer.C:
	}
	// Both before and after the first item, the stream must end by itself.
	w.cancel()
	w.end()
	return w
}

// endDone ranges over a sequence after its context has ended. It checks that the sequence ends
// soon.
func endDone(g *rig) {
	g.set(0) // one endpoint, the one with the number 0, which the resolver could yield
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	g.inTime(func() *watch {
		w := g.watch(ctx, g.target())
		w.end()
		return w
	})
}

// leaveNothing opens many streams, one after the other, and ends each by leave. It checks that no
// goroutines have leaked. It also checks that streams end in time: see inTime.
func (g *rig) leaveNothing(leave func(*watch)) {
	end := func() *watch {
		w := g.start(0, 1)
		leave(w)
		g.fail(w.close())
		return w
	}
	// For the second phase: if goroutines leak, their number grows with each stream.
	endMany := func() {
		for i := 0; i < streamCount && g.err == nil; i++ {
			end()
		}
	}
	// The first stream's goroutines do not count, because they may be shared by all, as those of
	// a connection.
	// inTime also warms up what all streams share.
	g.inTime(end)
	baseline := goleak.IgnoreCurrent()
	// No goroutine is new since baseline: nothing has leaked.
	if endMany(); g.err != nil || goleak.Find(baseline) == nil {
		return
	}
	// A shared connection may have been replaced. Then the goroutines do not grow with the
	// streams.
	baseline = goleak.IgnoreCurrent()
	count := runtime.NumGoroutine()
	endMany()
	g.fail(g.noneSince(baseline, count+streamCount))
}

// noneSince checks that no goroutines have leaked. The check succeeds if the process runs fewer
// than limit goroutines, or if goleak with the option ignore finds none. noneSince repeats the
// check until it succeeds. After the timeout it returns an error.
func (g *rig) noneSince(ignore goleak.Option, limit int) error {
	deadline := time.Now().Add(g.Timeout)
	// Ended goroutines may need a moment to disappear, so this loop repeats the check.
	for g.err == nil && runtime.NumGoroutine() >= limit {
		err := goleak.Find(ignore)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
	return nil
}
