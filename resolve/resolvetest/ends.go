package resolvetest

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"go.uber.org/goleak"
)

// many is the number of streams that a check opens to find leaks of streams.
const many = 8

// moment is the time for which a check waits for something that must not happen. A later
// violation is not found.
const moment = 50 * time.Millisecond

// soon is the time in which at least one of several streams must end. The other streams may
// be late on a slow machine.
const soon = time.Second

// ends returns the checks of how streams end.
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

// inTime calls leave repeatedly until a stream has ended within the time soon. leave ends a
// stream and returns it. inTime returns an error after many calls without success.
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

// leaveByForce leaves the consumer's loop by a panic or by runtime.Goexit, and then looks
// for leaked goroutines.
func leaveByForce(g *rig) error {
	for a, what := range map[action]string{panics: "panicked", exits: "exited"} {
		if err := g.leaveNothing(func(w *watch) error { return w.leave(a) }); err != nil {
			return fmt.Errorf("a consumer %s: %w", what, err)
		}
	}
	return nil
}

// endUnanswered ends the context of a stream before its first answer: for a target without
// an answer, and during an outage.
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

// endEarly ends the context of a new stream after its first item, or after a moment without
// an item. It returns the stream.
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

// endDone ends the context of a stream before ranging over the sequence.
func endDone(g *rig) error {
	g.set(0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return inTime(func() (*watch, error) {
		w := g.watch(ctx, g.target())
		return w, w.end()
	})
}

// leaveNothing opens many streams, ends each of them by the function leave, and looks for
// leaked goroutines. At least one stream must end within the time soon.
func (g *rig) leaveNothing(leave func(*watch) error) error {
	// The goroutines of the first stream do not count, because they may be shared by all,
	// as those of a connection.
	end := func() (*watch, error) { return g.endOne(leave) }
	if err := inTime(end); err != nil {
		return err
	}
	before := goleak.IgnoreCurrent()
	if err := g.endMany(leave); err != nil || goleak.Find(before) == nil {
		return err
	}
	// A shared connection may have been replaced. Then the number of goroutines does not
	// grow with the streams.
	before, count := goleak.IgnoreCurrent(), runtime.NumGoroutine()
	if err := g.endMany(leave); err != nil {
		return err
	}
	return g.noneSince(before, count+many)
}

func (g *rig) endMany(leave func(*watch) error) error {
	for range many {
		if _, err := g.endOne(leave); err != nil {
			return err
		}
	}
	return nil
}

func (g *rig) endOne(leave func(*watch) error) (*watch, error) {
	w, err := g.start(0, 1)
	if err != nil {
		return nil, err
	}
	if err := leave(w); err != nil {
		return nil, err
	}
	return w, w.close()
}

// noneSince checks that no goroutines have leaked. It waits until the process has fewer than
// limit goroutines, or only goroutines that the option ignore excludes. It returns an error
// after the timeout.
func (g *rig) noneSince(ignore goleak.Option, limit int) error {
	deadline := time.Now().Add(g.Timeout)
	for runtime.NumGoroutine() >= limit {
		err := goleak.Find(ignore)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
	return nil
}
