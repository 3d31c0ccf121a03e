package main

import (
	"context"
	"errors"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// follow calls each for every event until ctx ends or all processes have ended their
// streams. It returns an error if all processes rejected the request. The processes share
// maxRPS.
func follow(
	ctx context.Context, all []tap.Process, req *tappb.WatchRequest, maxRPS int, warn func(error), each func(tap.ProcessEvent) error,
) error {
	req.MaxRps = top.PerProcess(maxRPS, len(all))
	var refused []error
	for seen, err := range tap.Follow(ctx, all, req, tap.WithMaxRPS(maxRPS)) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if err := each(seen); err != nil {
				return err
			}
		case top.Refused(err):
			if refused = append(refused, advise(err)); len(refused) == len(all) {
				return errors.Join(refused...)
			}
			warn(advise(err))
		default:
			warn(advise(err))
		}
	}
	return nil
}
