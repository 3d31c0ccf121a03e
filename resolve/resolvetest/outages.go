package resolvetest

import (
	"fmt"

	"github.com/gotower/gotower/resolve"
)

func outages() []Check {
	return []Check{
		{
			Name:  "interruption",
			Claim: "continue after an interruption; keep the set until the first message after it, which replaces the whole set",
			needs: []need{needInterrupt},
			run: func(g *rig) error {
				return g.interrupt(func() { g.set(1, 2) }, resolve.StateExists, g.endpoints(1, 2)...)
			},
		},
		{
			Name:  "interruption, then empty",
			Claim: "drop the set if the target is empty after an interruption",
			needs: []need{needInterrupt, needEmpty},
			run: func(g *rig) error {
				return g.interrupt(func() { g.Empty(g.target()) }, resolve.StateEmpty)
			},
		},
		{
			Name:  "interruption, then gone",
			Claim: "drop the set if the target does not exist after an interruption",
			needs: []need{needInterrupt, needAbsent},
			run: func(g *rig) error {
				return g.interrupt(func() { g.DoesNotExist(g.target()) }, resolve.StateDoesNotExist)
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

// interrupt interrupts the source of a stream, calls meanwhile during the interruption, and
// checks that one update after it yields the given state and endpoints. It does so twice.
func (g *rig) interrupt(meanwhile func(), state resolve.State, endpoints ...resolve.Endpoint) error {
	w, err := g.start(0, 1)
	if err != nil {
		return err
	}
	g.Interrupt(g.target(), meanwhile)
	if err := w.jump(state, endpoints...); err != nil {
		return err
	}
	g.set(3)
	if err := w.settle(resolve.StateExists, g.Endpoint(3)); err != nil {
		return fmt.Errorf("a change after the interruption: %w", err)
	}
	g.Interrupt(g.target(), meanwhile)
	return w.jump(state, endpoints...)
}

// interruptedForNothing interrupts a source that does not change, and checks that the set
// does not change. At the end it changes the source, because a wrong update would be
// yielded before that change.
func interruptedForNothing(g *rig) error {
	w, err := g.start(0, 1)
	if err != nil {
		return err
	}
	for range 3 {
		g.Interrupt(g.target(), func() {})
	}
	g.Interrupt(g.target(), func() { g.set(0, 1, 2) })
	return w.jump(resolve.StateExists, g.endpoints(0, 1, 2)...)
}

// bothInterrupted interrupts two streams of one target, and checks that both recover. It
// does so twice, because either stream may recover first.
func bothInterrupted(g *rig) error {
	first, err := g.start(0, 1)
	if err != nil {
		return err
	}
	second, err := g.start(0, 1)
	if err != nil {
		return err
	}
	for n := range 2 {
		g.Interrupt(g.target(), func() { g.set(2 + n) })
		for _, w := range []*watch{first, second} {
			if err := w.jump(resolve.StateExists, g.Endpoint(2+n)); err != nil {
				return fmt.Errorf("one of two streams, after the interruption of both: %w", err)
			}
		}
	}
	return nil
}

// interruptionIsOver checks that the stream yields the error of an outage, and an update
// after the outage.
func interruptionIsOver(g *rig) error {
	w, err := g.start(0, 1)
	if err != nil {
		return err
	}
	for range 2 {
		g.Interrupt(g.target(), func() { err = w.lost() })
		if err != nil {
			return fmt.Errorf("waiting for the error of the outage: %w", err)
		}
		diff, err := w.step()
		switch {
		case err != nil:
			return fmt.Errorf("waiting for an update after an error: %w", err)
		case diff.HasChanges():
			return fmt.Errorf("an interruption changed %+v", diff)
		}
	}
	return nil
}

// endInOutage ends the context of a stream during an outage, while the resolver waits for
// its backoff or tries again.
func endInOutage(g *rig) error {
	return g.leaveNothing(func(w *watch) error {
		var err error
		g.Interrupt(g.target(), func() {
			w.answer(continues)
			w.cancel()
			err = w.end()
		})
		return err
	})
}

// breakInOutage breaks out of the loop at the first error of an outage.
func breakInOutage(g *rig) error {
	return g.leaveNothing(func(w *watch) error {
		var err error
		g.Interrupt(g.target(), func() {
			if err = w.lost(); err == nil {
				err = w.leave(breaks)
			}
		})
		return err
	})
}
