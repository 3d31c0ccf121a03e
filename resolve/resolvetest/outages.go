package resolvetest

import (
	"fmt"

	"github.com/gotower/gotower/resolve"
)

// outages are the checks of a source that goes away and comes back.
func outages() []Check {
	return []Check{
		{
			Name:  "interruption",
			Claim: "go on after the source broke the stream; keep what is known until the first message after it, which replaces it whole",
			needs: []need{needInterrupt},
			run: func(g *rig) error {
				return g.interrupt(func() { g.set(1, 2) }, resolve.StateExists, g.endpoints(1, 2)...)
			},
		},
		{
			Name:  "interruption, then empty",
			Claim: "forget what was known if the first message after an interruption says that there is nothing",
			needs: []need{needInterrupt, needEmpty},
			run: func(g *rig) error {
				return g.interrupt(func() { g.Empty(g.target()) }, resolve.StateEmpty)
			},
		},
		{
			Name:  "interruption, then gone",
			Claim: "forget what was known if the first message after an interruption says that the target does not exist",
			needs: []need{needInterrupt, needAbsent},
			run: func(g *rig) error {
				return g.interrupt(func() { g.DoesNotExist(g.target()) }, resolve.StateDoesNotExist)
			},
		},
		{
			Name:  "interruption, then the same",
			Claim: "change nothing if the source is after an interruption as it was before",
			needs: []need{needInterrupt},
			run:   interruptedForNothing,
		},
		{
			Name:  "interruption of two streams",
			Claim: "get all streams of a target up to date after an interruption",
			needs: []need{needInterrupt},
			run:   bothInterrupted,
		},
		{
			Name:  "interruption is over",
			Claim: "say, by an update, that the source is back, even if it is as it was before",
			needs: []need{needInterrupt},
			run:   interruptionIsOver,
		},
		{
			Name:  "context ends in an outage",
			Claim: "end soon after the context does while the source is away, and leave no goroutine",
			needs: []need{needInterrupt},
			run:   endInOutage,
		},
		{
			Name:  "break in an outage",
			Claim: "say that the source is lost; end when the consumer breaks at that, and leave no goroutine",
			needs: []need{needInterrupt},
			run:   breakInOutage,
		},
	}
}

// interrupt breaks a stream that knows 0 and 1, has meanwhile change the
// source, and waits for the wanted state to come about in one update; twice.
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

// interruptedForNothing makes a real change at the end, for the reason that
// redundant does.
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

// bothInterrupted does it twice: the stream that recovers may be another one then.
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

// interruptionIsOver waits for the news of the outage, and then for an answer.
func interruptionIsOver(g *rig) error {
	w, err := g.start(0, 1)
	if err != nil {
		return err
	}
	for range 2 {
		g.Interrupt(g.target(), func() { err = w.lost() })
		if err != nil {
			return fmt.Errorf("waiting for the news of the outage: %w", err)
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

// endInOutage ends the context while the resolver has nothing to read from, be
// it in a back-off or in an attempt.
func endInOutage(g *rig) error {
	return g.leaveNothing(func(w *watch) error {
		var err error
		g.Interrupt(g.target(), func() {
			w.answer(goesOn)
			w.cancel()
			err = w.end()
		})
		return err
	})
}

// breakInOutage breaks at the first error, which is the news of the outage.
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
