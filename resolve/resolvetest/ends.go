package resolvetest

import (
	"context"
	"time"

	"go.uber.org/goleak"
)

// many is how many streams are opened to see whether they leave something.
const many = 8

// ends are the checks of how a stream is left.
func ends() []Check {
	return []Check{
		{
			Name:  "break",
			Claim: "end when the consumer breaks, yield nothing more, and leave no goroutine",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error { return w.leave() })
			},
		},
		{
			Name:  "context ends between updates",
			Claim: "end soon after the context does, though no update comes, and leave no goroutine",
			run: func(g *rig) error {
				return g.leaveNothing(func(w *watch) error {
					w.answer(true)
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
			Name:  "context is done before",
			Claim: "end at once if the context has ended already",
			run: func(g *rig) error {
				g.set(0)
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				return g.watch(ctx, g.target()).end()
			},
		},
	}
}

// leaveNothing opens many streams, ends each of them as how says, and looks for
// goroutines that are left.
func (g *rig) leaveNothing(how func(*watch) error) error {
	// What the first stream starts may be for all that follow: a connection.
	// So this one does not count.
	if err := g.endOne(how); err != nil {
		return err
	}
	before := goleak.IgnoreCurrent()
	for range many {
		if err := g.endOne(how); err != nil {
			return err
		}
	}
	return g.noneSince(before)
}

func (g *rig) endOne(how func(*watch) error) error {
	w, err := g.start(0, 1)
	if err != nil {
		return err
	}
	if err := how(w); err != nil {
		return err
	}
	return w.close()
}

// noneSince waits until no goroutine is left that was not there before.
func (g *rig) noneSince(before goleak.Option) error {
	deadline := time.Now().Add(g.Patience)
	for {
		err := goleak.Find(before)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
