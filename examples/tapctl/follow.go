package main

import (
	"context"
	"errors"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// follow watches all processes, and calls each for every event. It returns when ctx ends, all
// streams have ended, or each returns an error, which becomes the result. A single process's error
// is passed to warn, and does not end the loop. If all processes have rejected req, follow returns
// their errors. Each process gets an equal part of the rate maxRPS.
func follow(
	ctx context.Context, taps source, req *tappb.WatchRequest, maxRPS int, warn func(error), handle func(tap.ProcessEvent) error,
) error {
	var refused []error
	// seenAny tells whether a process has sent an event, so that it was not rejected.
	seenAny := false
	for event, err := range taps.Watch(ctx, req, maxRPS) {
		// The order matters: when ctx ends, all streams fail, which is no error.
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			seenAny = true
			if err := handle(event); err != nil {
				return err
			}
		// A refusal is final. Other errors are followed by another attempt.
		case top.Refused(err):
			if refused = append(refused, advise(err)); len(refused) == taps.size() {
				return errors.Join(refused...)
			}
			warn(advise(err))
		default:
			warn(advise(err))
		}
	}
	// In a cluster, the size is 0, so refusals of all pods are only known at the end.
	if ctx.Err() == nil && !seenAny && taps.size() == 0 {
		return errors.Join(refused...)
	}
	return nil
}
