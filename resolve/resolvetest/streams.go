package resolvetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/resolve"
)

// streams returns the checks with several concurrent streams.
func streams() []Check {
	return []Check{
		{
			Name:  "two streams",
			Claim: "give each call of Resolve a separate stream: one ends, the others continue",
			run:   twoStreams,
		},
		{
			Name:  "later stream",
			Claim: "begin a later stream with the current state, with or without other streams",
			run:   laterStream,
		},
		{
			Name:  "slow consumer",
			Claim: "not delay other consumers by a stalled one, and update that one later",
			run:   slowConsumer,
		},
		{
			Name:  "two targets",
			Claim: "yield only the endpoints of the target that it was asked for",
			run:   twoTargets,
		},
	}
}

// twoStreams ends two streams in different ways, and checks that a third one continues.
func twoStreams(g *rig) {
	first := g.start(0)
	second := g.start(0)
	third := g.start(0)
	// leave and end wait until the stream has returned.
	g.during = "breaking out of the first"
	first.leave(breaks)
	g.during = "ending the context of the second"
	second.cancel()
	second.end()
	g.during = "the third, after the first and the second ended"
	g.set(1, 2)
	third.settle(resolve.StateExists, g.endpoints(1, 2)...)
}

// laterStream starts a second stream while the first one runs, and a third one after both
// have ended. It checks that each begins with the current state.
func laterStream(g *rig) {
	first := g.start(0)
	g.set(1, 2)
	first.settle(resolve.StateExists, g.endpoints(1, 2)...)
	g.during = "a second stream"
	second := g.watch(context.Background(), g.target())
	second.jump(resolve.StateExists, g.endpoints(1, 2)...)
	g.during = "the first stream, after a second one began"
	g.set(3)
	first.settle(resolve.StateExists, g.Endpoint(3))
	g.during = "a stream after the others"
	// Without any stream, a resolver may have dropped its shared state.
	g.fail(errors.Join(first.close(), second.close()))
	g.watch(context.Background(), g.target()).jump(resolve.StateExists, g.Endpoint(3))
}

// slowConsumer stalls one stream while another one follows a hundred changes. It checks
// that the stalled stream then gets the latest set.
func slowConsumer(g *rig) {
	// slow has an item that it does not answer until settle below.
	slow := g.start(0)
	quick := g.start(0)
	g.during = "while another consumer is slow"
	for i := range 100 {
		n := 1 + i%9
		g.set(n)
		quick.settle(resolve.StateExists, g.Endpoint(n))
	}
	g.during = "after another consumer was slow"
	g.set(0, 5)
	for _, w := range []*watch{quick, slow} {
		w.settle(resolve.StateExists, g.endpoints(0, 5)...)
	}
}

// twoTargets changes two targets and reads the stream of the second one first. It checks that
// each stream gets only its own target's updates.
func twoTargets(g *rig) {
	first := g.Targets[0]
	second := g.Targets[1]
	g.Set(first, g.endpoints(0)...)
	g.Set(second, g.endpoints(1)...)
	// Both streams are open before either is read.
	firstWatch := g.watch(context.Background(), first)
	secondWatch := g.watch(context.Background(), second)
	firstWatch.jump(resolve.StateExists, g.Endpoint(0))
	secondWatch.jump(resolve.StateExists, g.Endpoint(1))
	g.Set(first, g.endpoints(2, 3)...)
	g.Set(second, g.endpoints(1, 4)...)
	g.during = fmt.Sprintf("%s, as %s changed too", second, first)
	// The second first: it must not get the change of the first target.
	secondWatch.jump(resolve.StateExists, g.endpoints(1, 4)...)
	g.during = fmt.Sprintf("%s, as %s changed too", first, second)
	firstWatch.settle(resolve.StateExists, g.endpoints(2, 3)...)
}
