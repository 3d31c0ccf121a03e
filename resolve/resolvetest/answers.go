package resolvetest

import (
	"context"
	"errors"
	"runtime"

	"go.uber.org/goleak"

	"github.com/gotower/gotower/resolve"
)

// answers returns the checks about the first answer of a stream.
func answers() []Check {
	return []Check{
		{
			Name:  "first answer",
			Claim: "yield the whole set of endpoints at once",
			run: func(g *rig) {
				g.set(1, 0)
				g.first(resolve.StateExists, g.endpoints(0, 1)...)
			},
		},
		{
			Name:  "first answer empty",
			Claim: "yield at once that a target exists without endpoints",
			needs: []need{needEmpty},
			run: func(g *rig) {
				g.Empty(g.target())
				g.first(resolve.StateEmpty)
			},
		},
		{
			Name:  "first answer does not exist",
			Claim: "yield at once that a target does not exist, and continue",
			needs: []need{needAbsent},
			run: func(g *rig) {
				g.DoesNotExist(g.target())
				g.first(resolve.StateDoesNotExist)
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

// first starts a stream and checks its first answer's state and endpoints. It then changes the
// source, and checks that the stream yields the change.
func (g *rig) first(state resolve.State, endpoints ...resolve.Endpoint) {
	w := g.watch(context.Background(), g.target())
	w.jump(state, endpoints...)
	g.set(5)
	w.settle(resolve.StateExists, g.Endpoint(5))
}

// notRangedOver calls Resolve many times without ranging over the sequences, and checks
// that no goroutines start. It then changes the source, ranges over one sequence, and
// checks that the sequence begins with the changed state.
func notRangedOver(g *rig) {
	second := g.start(0) // its goroutines may be shared by all streams
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	baseline := goleak.IgnoreCurrent()
	count := runtime.NumGoroutine()
	for range streamCount * streamCount { // other goroutines start and end meanwhile, but not as many
		// The sequence is dropped: calling Resolve alone must start nothing.
		g.resolver.Resolve(ctx, g.target())
	}
	// With fewer than streamCount more goroutines, the calls cannot have started one each.
	g.fail(g.noneSince(baseline, count+streamCount))
	// From here on, the sequence exists, but nobody ranges over it.
	w := g.prepare(ctx, g.target())
	for _, numbers := range [][]int{{1}, {2, 3}} {
		g.set(numbers...)
		// second has seen each change, so the source has certainly sent it.
		second.settle(resolve.StateExists, g.endpoints(numbers...)...)
	}
	g.begin(w)
	g.during = "ranged over after the source changed"
	// Neither the sets before the range nor one in between may be yielded.
	w.jump(resolve.StateExists, g.endpoints(2, 3)...)
}

// unresolvable checks that the sequence of a target that the resolver rejects ends with
// ErrUnresolvable. Other errors may precede ErrUnresolvable.
func unresolvable(g *rig) {
	g.Reject(g.target())
	w := g.watch(context.Background(), g.target())
	for g.err == nil {
		it, ok, err := w.next()
		switch {
		case err != nil:
			g.fail(err)
		case !ok:
			g.failf("the sequence ended without an error that matches ErrUnresolvable")
		case it.err == nil:
			g.failf("an update (%v) of an unresolvable target", it.update.Kind)
		// The last item. The sequence must return after it.
		case errors.Is(it.err, resolve.ErrUnresolvable):
			switch it, ok, err := w.next(); {
			case err != nil:
				g.failf("after the last item: %w", err)
			case ok:
				g.failf("%v after the last item, %w", it.update.Kind, it.err)
			}
			return
		}
	}
}
