package resolvetest

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"go.uber.org/goleak"
)

// many is how many streams are opened to see whether they leave something.
const many = 8

// moment is how long a check looks for what nothing announces. What takes longer
// is not found out, and what is right is not wronged.
const moment = 50 * time.Millisecond

// soon is within which a stream has to end. Any machine may be late once, so what
// counts is whether one of [many] ends in time.
const soon = time.Second

// ends are the checks of how a stream is left.
func ends() []Check {
	return []Check{
		{
			Name:  "break",
			Claim: "end when the consumer breaks, yield nothing more, and leave no goroutine",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error { return w.leave(breaks) })
			},
		},
		{
			Name:  "panic",
			Claim: "leave no goroutine when the consumer panics, or its goroutine exits as that of a failed test does",
			run:   leaveByForce,
		},
		{
			Name:  "context ends between updates",
			Claim: "end soon after the context does, though no update comes, change nothing by that, and leave no goroutine",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error {
					w.answer(goesOn)
					w.cancel()
					return w.end()
				})
			},
		},
		{
			Name:  "context ends in the loop",
			Claim: "end soon after the context does, if the consumer is busy with an update then",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error {
					w.cancel()
					return w.end()
				})
			},
		},
		{
			Name:  "context ends before the first answer",
			Claim: "end soon after the context does, though the source has not answered yet",
			run:   endUnanswered,
		},
		{
			Name:  "context is done before",
			Claim: "end at once if the context has ended already",
			run:   endDone,
		},
	}
}

// inTime leaves streams until one ends soon.
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
	return fmt.Errorf("of %d streams that were left, the first one to end took %v; %v is soon", many, quickest, soon)
}

// leaveByForce gets out of the loop past all that is not deferred.
func leaveByForce(g *rig) error {
	for how, what := range map[verdict]string{panics: "panicked", exits: "exited"} {
		if err := g.leaveNothing(func(w *watch) error { return w.leave(how) }); err != nil {
			return fmt.Errorf("a consumer %s: %w", what, err)
		}
	}
	return nil
}

// endUnanswered resolves a target that nothing was said of, and one whose source
// is away.
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

// endEarly ends the context of a stream that has begun. If there is an answer all
// the same, it takes that.
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

// endDone has a context that has ended before the stream begins.
func endDone(g *rig) error {
	g.set(0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return inTime(func() (*watch, error) {
		w := g.watch(ctx, g.target())
		return w, w.end()
	})
}

// leaveNothing opens many streams, ends each of them as how says, and looks for
// goroutines that are left. One of them must end soon.
func (g *rig) leaveNothing(how func(*watch) error) error {
	// What the first stream starts may be for all that follow: a connection.
	// So this one does not count.
	end := func() (*watch, error) { return g.endOne(how) }
	if err := inTime(end); err != nil {
		return err
	}
	before := goleak.IgnoreCurrent()
	if err := g.endMany(how); err != nil || goleak.Find(before) == nil {
		return err
	}
	// The connection for all may be another one by now. Then what is left does
	// not grow with the streams.
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

// noneSince waits until there are fewer than limit goroutines, or none that was
// not there before.
func (g *rig) noneSince(before goleak.Option, limit int) error {
	deadline := time.Now().Add(g.Patience)
	for runtime.NumGoroutine() >= limit {
		err := goleak.Find(before)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
	return nil
}
