package resolvetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/resolve"
)

// answers are the checks of what a stream says first.
func answers() []Check {
	return []Check{
		{
			Name:  "first answer",
			Claim: "say at once, and whole, what is known: the endpoints there are",
			run: func(g *rig) error {
				g.set(1, 0)
				return g.first(resolve.StateExists, g.endpoints(0, 1)...)
			},
		},
		{
			Name:  "first answer empty",
			Claim: "say at once that a target exists and has no endpoint",
			needs: []need{needEmpty},
			run: func(g *rig) error {
				g.Empty(g.target())
				return g.first(resolve.StateEmpty)
			},
		},
		{
			Name:  "first answer does not exist",
			Claim: "say at once that a target does not exist, and go on in case it will",
			needs: []need{needAbsent},
			run: func(g *rig) error {
				g.DoesNotExist(g.target())
				return g.first(resolve.StateDoesNotExist)
			},
		},
		{
			Name:  "unresolvable",
			Claim: "end with an error that matches ErrUnresolvable, and nothing after it",
			needs: []need{needReject},
			run:   unresolvable,
		},
		{
			Name:  "not ranged over",
			Claim: "do nothing and hold nothing before the sequence is ranged over, and say what is known by then",
			run:   notRangedOver,
		},
	}
}

// first checks the first answer, and that the stream lives on after it.
func (g *rig) first(state resolve.State, endpoints ...resolve.Endpoint) error {
	w := g.watch(context.Background(), g.target())
	if err := w.jump(state, endpoints...); err != nil {
		return err
	}
	g.set(5)
	return w.settle(resolve.StateExists, g.Endpoint(5))
}

// notRangedOver asks for sequences that nobody ranges over, whose context does not
// end, and then for one that is ranged over late.
func notRangedOver(g *rig) error {
	other, err := g.start(0) // what it starts may be for all that follow
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before, count := goleak.IgnoreCurrent(), runtime.NumGoroutine()
	for range many * many { // other goroutines come and go meanwhile, but not as many
		g.resolver.Resolve(ctx, g.target())
	}
	if err := g.noneSince(before, count+many); err != nil {
		return err
	}
	w := g.prepare(ctx, g.target())
	for _, numbers := range [][]int{{1}, {2, 3}} {
		g.set(numbers...)
		if err := other.settle(resolve.StateExists, g.endpoints(numbers...)...); err != nil {
			return err
		}
	}
	g.begin(w)
	if err := w.jump(resolve.StateExists, g.endpoints(2, 3)...); err != nil {
		return fmt.Errorf("ranged over after the source changed: %w", err)
	}
	return nil
}

// unresolvable lets a resolver say other errors first.
func unresolvable(g *rig) error {
	g.Reject(g.target())
	w := g.watch(context.Background(), g.target())
	for {
		it, ok, err := w.next()
		switch {
		case err != nil:
			return err
		case !ok:
			return errors.New("the sequence ended without an error that matches ErrUnresolvable")
		case it.err == nil:
			return fmt.Errorf("an update (%v) of what cannot be resolved", it.update.Kind)
		case errors.Is(it.err, resolve.ErrUnresolvable):
			return w.last()
		}
	}
}

// last checks that the sequence ends by itself, without another item.
func (w *watch) last() error {
	it, more, err := w.next()
	switch {
	case err != nil:
		return fmt.Errorf("after the last item: %w", err)
	case more:
		return fmt.Errorf("after the last item came %v, %w", it.update.Kind, it.err)
	}
	return nil
}
