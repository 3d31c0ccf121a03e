package resolvetest

import (
	"github.com/gotower/gotower/resolve"
)

// outages returns the checks about failures of the source.
func outages() []Check {
	return []Check{
		{
			Name:  "interruption",
			Claim: "continue after an interruption; keep the set until the first message after it, which replaces the whole set",
			needs: []need{needInterrupt},
			run: func(g *rig) {
				g.interrupt(func() { g.set(1, 2) }, resolve.StateExists, g.endpoints(1, 2)...)
			},
		},
		{
			Name:  "interruption, then empty",
			Claim: "drop the set if the target is empty after an interruption",
			needs: []need{needInterrupt, needEmpty},
			run: func(g *rig) {
				g.interrupt(func() { g.Empty(g.target()) }, resolve.StateEmpty)
			},
		},
		{
			Name:  "interruption, then gone",
			Claim: "drop the set if the target does not exist after an interruption",
			needs: []need{needInterrupt, needAbsent},
			run: func(g *rig) {
				g.interrupt(func() { g.DoesNotExist(g.target()) }, resolve.StateDoesNotExist)
			},
		},
		{
			Name:  "interruption, then the same",
			Claim: "change nothing if the source is unchanged after an interruption",
			needs: []need{needInterrupt},
			run:   interruptedForNothing,
		},
		{
			Name:  "interruption of two streams",
			Claim: "update all streams of a target after an interruption",
			needs: []need{needInterrupt},
			run:   bothInterrupted,
		},
		{
			Name:  "interruption is over",
			Claim: "yield an update after an interruption, even if it is unchanged",
			needs: []need{needInterrupt},
			run:   interruptionIsOver,
		},
		{
			Name:  "context ends in an outage",
			Claim: "end soon after the context during an outage, without a leaked goroutine",
			needs: []need{needInterrupt},
			run:   endInOutage,
		},
		{
			Name:  "break in an outage",
			Claim: "yield an error for a lost source; end when the consumer breaks then, without a leaked goroutine",
			needs: []need{needInterrupt},
			run:   breakInOutage,
		},
	}
}

// interrupt interrupts a stream's source. During the interruption it calls meanwhile. It checks
// that one update after the interruption yields the given state and endpoints. It does so twice.
func (g *rig) interrupt(meanwhile func(), state resolve.State, endpoints ...resolve.Endpoint) {
	w := g.start(0, 1)
	g.Interrupt(g.target(), meanwhile)
	// jump: no set in between, such as an empty one, may be yielded.
	w.jump(state, endpoints...)
	g.during = "a change after the interruption"
	g.set(3)
	w.settle(resolve.StateExists, g.Endpoint(3))
	g.during = "another interruption"
	g.Interrupt(g.target(), meanwhile)
	w.jump(state, endpoints...)
}

// interruptedForNothing interrupts a source that does not change, and checks that the stream
// yields no change. At the end it adds an endpoint. That change must be the first one that
// arrives.
func interruptedForNothing(g *rig) {
	w := g.start(0, 1)
	// The consumer keeps its set over all these interruptions.
	for range 3 {
		g.Interrupt(g.target(), func() {})
	}
	g.Interrupt(g.target(), func() { g.set(0, 1, 2) })
	w.jump(resolve.StateExists, g.endpoints(0, 1, 2)...)
}

// bothInterrupted interrupts the source behind two streams for one target, and checks that both
// recover. It does so twice, because either stream may recover first.
func bothInterrupted(g *rig) {
	first := g.start(0, 1)
	second := g.start(0, 1)
	g.during = "one of two streams, after the interruption of both"
	for n := range 2 {
		g.Interrupt(g.target(), func() { g.set(2 + n) })
		// Each stream must recover by itself, whichever is the first.
		for _, w := range []*watch{first, second} {
			w.jump(resolve.StateExists, g.Endpoint(2+n))
		}
	}
}

// interruptionIsOver checks that the stream yields an outage's error, and an update after the
// outage.
func interruptionIsOver(g *rig) {
	w := g.start(0, 1)
	for range 2 {
		g.during = "waiting for the error of the outage"
		// The source works again after the error has arrived.
		g.Interrupt(g.target(), w.awaitError)
		g.during = "waiting for an update after an error"
		if g.err != nil {
			return
		}
		// Not settle: even an unchanged update must come.
		diff, err := w.step()
		if g.fail(err); diff.HasChanges() {
			g.failf("an interruption changed %+v", diff)
		}
	}
}

// endInOutage checks that a stream ends in time, and leaks no goroutine, if its context ends during
// an outage. The resolver then waits for its backoff or tries again.
func endInOutage(g *rig) {
	g.leaveNothing(func(w *watch) {
		g.Interrupt(g.target(), func() {
			// The consumer has left the loop body, so the resolver is waiting when ctx ends.
			w.answer(continues)
			w.cancel()
			w.end()
		})
	})
}

// breakInOutage breaks out of the loop at an outage's first error. It checks that no goroutines
// have leaked.
func breakInOutage(g *rig) {
	g.leaveNothing(func(w *watch) {
		g.Interrupt(g.target(), func() {
			// At the error, the resolver is in the middle of its outage.
			w.awaitError()
			w.leave(breaks)
		})
	})
}
