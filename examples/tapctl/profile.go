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

// profileCommand is "tapctl profile". It watches requests for some time, and writes linkerd
// ServiceProfiles with their routes.
type profileCommand struct {
	filter   filter
	duration time.Duration
}

func (c *profileCommand) flags(f *flag.FlagSet) {
	c.filter.flags(f)
	f.DurationVar(&c.duration, "for", 30*time.Second, "`time` to watch")
}

// check reports invalid flags.
func (c *profileCommand) check() error {
	if c.duration <= 0 {
		return noTime("--for", c.duration)
	}
	return c.filter.check()
}

func (c *profileCommand) useCluster(p *pods) error { return c.filter.useCluster(p) }

// run watches requests for c.duration, and then prints the profiles.
func (c *profileCommand) run(ctx context.Context, term terminal) error {
	m, err := c.filter.match()
	if err != nil {
		return err
	}
	warn := warner(term.err)
	taps, closeAll, err := term.source(ctx, c.filter.gotowerOnly(), warn)
	if err != nil {
		return err
	}
	defer closeAll()
	began := time.Now()
	// watching ends after c.duration, or earlier if the user interrupts.
	watching, cancel := bounded(ctx, c.duration)
	defer cancel()
	var profiles learn.Profiles
	req := &tappb.WatchRequest{Match: m, Headers: c.filter.headerMatches()}
	if err := follow(watching, taps, req, c.filter.maxRPS, warn, func(s tap.ProcessEvent) error {
		profiles.Add(s.From, s.Event)
		return nil
	}); err != nil {
		return err
	}
	n, err := profiles.Write(term.out)
	// An empty profile would be useless, and its file would look valid.
	if err == nil && n == 0 {
		return fmt.Errorf("no request for a service by name in %v; send requests meanwhile, or use a longer --for",
			spent(watching, began, c.duration))
	}
	return err
}
