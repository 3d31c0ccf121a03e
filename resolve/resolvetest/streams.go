package resolvetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gotower/gotower/resolve"
)

// streams returns the checks of several concurrent streams.
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
			Claim: "keep targets separate",
			run:   twoTargets,
		},
	}
}

// twoStreams ends two streams in different ways, and checks that a third one continues.
func twoStreams(g *rig) error {
	first, err := g.start(0)
	if err != nil {
		return err
	}
	second, err := g.start(0)
	if err != nil {
		return err
	}
	third, err := g.start(0)
	if err != nil {
		return err
	}
	if err := first.leave(breaks); err != nil {
		return fmt.Errorf("breaking out of the first: %w", err)
	}
	second.cancel()
	if err := second.end(); err != nil {
		return fmt.Errorf("ending the context of the second: %w", err)
	}
	g.set(1, 2)
	if err := third.settle(resolve.StateExists, g.endpoints(1, 2)...); err != nil {
		return fmt.Errorf("the third, after the first and the second ended: %w", err)
	}
	return nil
}

// laterStream starts a second stream while the first one runs, and a third one after both
// have ended. It checks that each begins with the current state.
func laterStream(g *rig) error {
	first, err := g.start(0)
	if err != nil {
		return err
	}
	g.set(1, 2)
	if err := first.settle(resolve.StateExists, g.endpoints(1, 2)...); err != nil {
		return err
	}
	second := g.watch(context.Background(), g.target())
	if err := second.jump(resolve.StateExists, g.endpoints(1, 2)...); err != nil {
		return fmt.Errorf("a second stream: %w", err)
	}
	g.set(3)
	if err := first.settle(resolve.StateExists, g.Endpoint(3)); err != nil {
		return err
	}
	if err := errors.Join(first.close(), second.close()); err != nil {
		return err
	}
	if err := g.watch(context.Background(), g.target()).jump(resolve.StateExists, g.Endpoint(3)); err != nil {
		return fmt.Errorf("a stream after the others: %w", err)
	}
	return nil
}

// slowConsumer stalls one stream while another one follows a hundred changes. It checks
// that the stalled stream then gets the latest set.
func slowConsumer(g *rig) error {
	slow, err := g.start(0)
	if err != nil {
		return err
	}
	quick, err := g.start(0)
	if err != nil {
		return err
	}
	for i := range 100 {
		n := 1 + i%9
		g.set(n)
		if err := quick.settle(resolve.StateExists, g.Endpoint(n)); err != nil {
			return fmt.Errorf("while another consumer is slow: %w", err)
		}
	}
	g.set(0, 5)
	for _, w := range []*watch{quick, slow} {
		if err := w.settle(resolve.StateExists, g.endpoints(0, 5)...); err != nil {
			return fmt.Errorf("after another consumer was slow: %w", err)
		}
	}
	return nil
}

// twoTargets changes two targets and reads the stream of the second one first. It checks
// that each stream gets only the updates of its own target.
func twoTargets(g *rig) error {
	one, other := g.Targets[0], g.Targets[1]
	g.Set(one, g.endpoints(0)...)
	g.Set(other, g.endpoints(1)...)
	watches := []*watch{g.watch(context.Background(), one), g.watch(context.Background(), other)}
	for n, w := range watches {
		if err := w.jump(resolve.StateExists, g.Endpoint(n)); err != nil {
			return fmt.Errorf("%s: %w", g.Targets[n], err)
		}
	}
	g.Set(one, g.endpoints(2, 3)...)
	g.Set(other, g.endpoints(1, 4)...)
	slices.Reverse(watches)
	if err := watches[0].jump(resolve.StateExists, g.endpoints(1, 4)...); err != nil {
		return fmt.Errorf("%s, as %s changed too: %w", other, one, err)
	}
	if err := watches[1].settle(resolve.StateExists, g.endpoints(2, 3)...); err != nil {
		return fmt.Errorf("%s, as %s changed too: %w", one, other, err)
	}
	return nil
}
