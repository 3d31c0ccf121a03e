package resolvetest

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"go.uber.org/goleak"
)

// many is how many streams are opened to find a leak.
const many = 8

// moment is how long a check waits for something that should not happen. A later
// violation is not found.
const moment = 50 * time.Millisecond

// soon is the time in which one of many streams has to end. Other streams may be late on
// a slow machine.
const soon = time.Second

// ends returns the checks of the end of a stream.
func ends() []Check {
	return []Check{
		{
			Name:  "break",
			Claim: "end when the consumer breaks, without another item or a leaked goroutine",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error { return w.leave(breaks) })
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
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error {
					w.answer(continues)
					w.cancel()
					return w.end()
				})
			},
		},
		{
			Name:  "context ends in the loop",
			Claim: "end soon after the context while the consumer is busy",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error {
					w.cancel()
					return w.end()
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

// inTime calls leave until the stream that leave ended has ended soon.
func inTime(leave func() (*watch, error)) error {
	quickest := time.Duration(math.MaxInt64)
	for range many {
		w, err := leave()
		if err != nil {
			return err
		}
		if quickest = min(quickest, w.took); quickest <= soon {
			return nil
		}
	}
	return fmt.Errorf("the fastest of %d streams took %v to end; want %v", many, quickest, soon)
}

// leaveByForce leaves the loop by a panic or Goexit.
func leaveByForce(g *rig) error {
	for how, what := range map[action]string{panics: "panicked", exits: "exited"} {
		if err := g.leaveNothing(func(w *watch) error { return w.leave(how) }); err != nil {
			return fmt.Errorf("a consumer %s: %w", what, err)
		}
	}
	return nil
}

// endUnanswered resolves a target without an answer, and one during an outage.
func endUnanswered(g *rig) error {
	err := inTime(g.endEarly)
	if err != nil || g.Interrupt == nil {
		return err
	}
	g.set(0)
	g.Interrupt(g.target(), func() { err = inTime(g.endEarly) })
	if err != nil {
		return fmt.Errorf("in an outage: %w", err)
	}
	return nil
}

// endEarly ends the context of a stream after a moment or the first item.
func (g *rig) endEarly() (*watch, error) {
	w := g.watch(context.Background(), g.target())
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-w.items:
		w.held = true
	case <-timer.C:
	}
	w.cancel()
	return w, w.end()
}

// endDone ends the context before the stream begins.
func endDone(g *rig) error {
	g.set(0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return inTime(func() (*watch, error) {
		w := g.watch(ctx, g.target())
		return w, w.end()
	})
}

// leaveNothing opens many streams, ends each of them by how, and looks for leaked
// goroutines. One stream has to end soon.
func (g *rig) leaveNothing(how func(*watch) error) error {
	// The goroutines of the first stream do not count, because they may be shared by all,
	// as those of a connection.
	end := func() (*watch, error) { return g.endOne(how) }
	if err := inTime(end); err != nil {
		return err
	}
	before := goleak.IgnoreCurrent()
	if err := g.endMany(how); err != nil || goleak.Find(before) == nil {
		return err
	}
	// A shared connection may have been replaced. Then the number of goroutines does not
	// grow with the streams.
	before, count := goleak.IgnoreCurrent(), runtime.NumGoroutine()
	if err := g.endMany(how); err != nil {
		return err
	}
	return g.noneSince(before, count+many)
}

func (g *rig) endMany(how func(*watch) error) error {
	for range many {
		if _, err := g.endOne(how); err != nil {
			return err
		}
	}
	return nil
}

func (g *rig) endOne(how func(*watch) error) (*watch, error) {
	w, err := g.start(0, 1)
	if err != nil {
		return nil, err
	}
	if err := how(w); err != nil {
		return nil, err
	}
	return w, w.close()
}

// noneSince waits until there are fewer than limit goroutines, or no new one.
func (g *rig) noneSince(before goleak.Option, limit int) error {
	deadline := time.Now().Add(g.Timeout)
	for runtime.NumGoroutine() >= limit {
		err := goleak.Find(before)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
	return nil
}
