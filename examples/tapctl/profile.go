package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/gotower/gotower/examples/tapctl/learn"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// profileCommand writes a ServiceProfile of the observed requests.
type profileCommand struct {
	filter   filter
	duration time.Duration
}

func (c *profileCommand) flags(f *flag.FlagSet) {
	c.filter.flags(f)
	f.DurationVar(&c.duration, "for", 30*time.Second, "`time` to watch")
}

func (c *profileCommand) check() error {
	if c.duration <= 0 {
		return noTime("--for", c.duration)
	}
	return c.filter.check()
}

func (c *profileCommand) run(ctx context.Context, on terminal) error {
	m, err := c.filter.match()
	if err != nil {
		return err
	}
	all, closeAll, err := processes(on.targets)
	if err != nil {
		return err
	}
	defer closeAll()
	warn := warner(on.err)
	if err := reachable(ctx, all, c.filter.gotowerOnly(), warn); err != nil {
		return err
	}
	began := time.Now()
	watching, cancel := bounded(ctx, c.duration)
	defer cancel()
	var seen learn.Profiles
	req := &tappb.WatchRequest{Match: m, Headers: c.filter.headerMatches()}
	if err := follow(watching, all, req, c.filter.maxRPS, warn, func(s tap.ProcessEvent) error {
		seen.Add(s.From, s.Event)
		return nil
	}); err != nil {
		return err
	}
	n, err := seen.Write(on.out)
	if err == nil && n == 0 {
		return fmt.Errorf("no request for a service by name in %v; send requests meanwhile, or use a longer --for",
			spent(watching, began, c.duration))
	}
	return err
}
