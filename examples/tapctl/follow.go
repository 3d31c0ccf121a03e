package main

import (
	"context"
	"errors"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// follow watches all processes and calls the argument each with every event, until ctx ends
// or all streams have ended. Each process gets an equal part of the rate maxRPS. follow
// passes an error of a process to warn, and continues. If the argument each returns an
// error, follow returns it. If all processes have rejected req, it returns their errors.
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
