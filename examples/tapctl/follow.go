package main

import (
	"context"
	"errors"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// follow watches all processes, and calls the function in the argument each for every event. It
// returns when ctx ends, all streams have ended, or this function returns an error, which becomes
// the result. It passes the error of a single process to the function warn, and continues. If all
// processes have rejected req, follow returns their errors. Each process gets an equal part of the
// rate maxRPS.
func follow(
	ctx context.Context, all source, req *tappb.WatchRequest, maxRPS int, warn func(error), each func(tap.ProcessEvent) error,
) error {
	var refused []error
	seenAny := false
	for seen, err := range all.Watch(ctx, req, maxRPS) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			seenAny = true
			if err := each(seen); err != nil {
				return err
			}
		case top.Refused(err):
			if refused = append(refused, advise(err)); len(refused) == all.size() {
				return errors.Join(refused...)
			}
			warn(advise(err))
		default:
			warn(advise(err))
		}
	}
	if ctx.Err() == nil && !seenAny && all.size() == 0 {
		return errors.Join(refused...)
	}
	return nil
}
