package resolvetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/resolve"
)

func answers() []Check {
	return []Check{
		{
			Name:  "first answer",
			Claim: "yield the whole set of endpoints at once",
			run: func(g *rig) error {
				g.set(1, 0)
				return g.first(resolve.StateExists, g.endpoints(0, 1)...)
			},
		},
		{
			Name:  "first answer empty",
			Claim: "yield at once that a target exists without endpoints",
			needs: []need{needEmpty},
			run: func(g *rig) error {
				g.Empty(g.target())
				return g.first(resolve.StateEmpty)
			},
		},
		{
			Name:  "first answer does not exist",
			Claim: "yield at once that a target does not exist, and continue",
			needs: []need{needAbsent},
			run: func(g *rig) error {
				g.DoesNotExist(g.target())
				return g.first(resolve.StateDoesNotExist)
			},
		},
		{
			Name:  "unresolvable",
			Claim: "end with an error that matches ErrUnresolvable",
			needs: []need{needReject},
			run:   unresolvable,
		},
		{
			Name:  "not ranged over",
			Claim: "do nothing before the sequence is ranged over, and begin with the state at that time",
			run:   notRangedOver,
		},
	}
}

// first checks that the first answer of a new stream has the given state and endpoints, and
// that the stream yields a later change.
func (g *rig) first(state resolve.State, endpoints ...resolve.Endpoint) error {
	w := g.watch(context.Background(), g.target())
	if err := w.jump(state, endpoints...); err != nil {
		return err
	}
	g.set(5)
	return w.settle(resolve.StateExists, g.Endpoint(5))
}

// notRangedOver calls Resolve many times without ranging over the sequences, and checks
// that no goroutines start. It then changes the source, ranges over one sequence, and
// checks that the sequence begins with the changed state.
func notRangedOver(g *rig) error {
	other, err := g.start(0) // its goroutines may be shared by all streams
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before, count := goleak.IgnoreCurrent(), runtime.NumGoroutine()
	for range many * many { // other goroutines start and end meanwhile, but not as many
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

// unresolvable checks that the sequence of a target that the resolver rejects ends with
// ErrUnresolvable. Other errors may precede ErrUnresolvable.
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
			return fmt.Errorf("an update (%v) of an unresolvable target", it.update.Kind)
		case errors.Is(it.err, resolve.ErrUnresolvable):
			return w.last()
		}
	}
}

// last checks that the sequence ends without a further item after the last one.
func (w *watch) last() error {
	it, more, err := w.next()
	switch {
	case err != nil:
		return fmt.Errorf("after the last item: %w", err)
	case more:
		return fmt.Errorf("%v after the last item, %w", it.update.Kind, it.err)
	}
	return nil
}
