package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap/tappb"
)

// topCommand is "tapctl top". It shows a live table of requests in all targets.
type topCommand struct {
	filter   filter
	columns  top.Columns
	output   string
	once     bool // print the table once, and end
	duration time.Duration
	every    time.Duration
}

// flags defines the flags in f.
func (c *topCommand) flags(f *flag.FlagSet) {
	c.filter.flags(f)
	f.BoolVar(&c.columns.HideSources, "hide-sources", false, "combine rows that differ by source only")
	f.BoolVar(&c.columns.Routes, "routes", false, "a row for each route, not for each method and path")
	f.StringVar(&c.output, "o", "", "`format`: wide, with open requests, rate and quantiles; json, once at the end")
	f.BoolVar(&c.once, "once", false, "print the table once, after the time of --for or 5 s")
	f.DurationVar(&c.duration, "for", 0, "stop after this `time`")
	f.DurationVar(&c.every, "every", 0, "`time` between two tables: 500ms on a terminal, 5s elsewhere")
}

// check returns an error for a flag that has a wrong value, and completes the settings.
func (c *topCommand) check() error {
	switch c.output {
	case "", "wide", "json":
	default:
		return fmt.Errorf("-o %s: no such format; there are wide and json", c.output)
	}
	// A faster table would cost the processes too much.
	if c.every != 0 && c.every < 100*time.Millisecond {
		return fmt.Errorf("--every %v: it must be at least 100ms", c.every)
	}
	if c.duration < 0 {
		return noTime("--for", c.duration)
	}
	c.columns.Wide = c.output == "wide"
	// A single table needs some time to count requests.
	if c.once && c.duration == 0 {
		c.duration = top.Interval
	}
	return c.filter.check()
}

// run shows the table until the user interrupts, or c.duration has passed.
func (c *topCommand) run(ctx context.Context, term terminal) error {
	config, err := c.filter.config(term)
	if err != nil {
		return err
	}
	closeAll, err := watched(ctx, term, &config, "counts of requests")
	if err != nil {
		return err
	}
	defer closeAll()
	config.Columns = c.columns
	config.Request.ByRoute = c.columns.Routes
	config.Every = c.every
	ctx, cancel := bounded(ctx, c.duration)
	defer cancel()
	return c.show(ctx, term, config)
}

func (c *topCommand) useCluster(p *pods) error { return c.filter.useCluster(p) }

// watched stores the targets of the terminal in config, as the processes to watch. It gets them
// from the method source, with feature. It sets the field Processes if the targets cannot
// change, and otherwise the field Source. closeAll closes the connections.
func watched(ctx context.Context, term terminal, config *top.Config, feature string) (closeAll func(), err error) {
	taps, closeAll, err := term.source(ctx, feature, config.Warn)
	if err != nil {
		return nil, err
	}
	// A fixed set of processes is known to be complete, so Live can end when all of them have refused.
	if static, ok := taps.(fixed); ok {
		config.Processes = static.Processes
	} else {
		config.Source = taps
	}
	return closeAll, nil
}

// show runs the table in the form that the flags and the terminal ask for, and prints the result that remains.
func (c *topCommand) show(ctx context.Context, term terminal, config top.Config) error {
	isOnce := c.once || c.output == "json"
	// Live redraws the table, and Collect only counts until ctx ends.
	show := top.Live
	if isOnce {
		show = func(ctx context.Context, _ *os.File, config top.Config) ([]*tappb.Row, error) {
			return top.Collect(ctx, config)
		}
	}
	began := time.Now()
	rows, err := show(ctx, term.out, config)
	switch {
	case err != nil:
		return err
	case c.output == "json":
		config.Wide = true
		return top.WriteJSON(term.out, rows, config.Columns)
	// The screen has already shown the rows.
	case !isOnce && top.OnScreen(term.out):
		return nil
	case len(rows) == 0:
		noRequest(term, spent(ctx, began, c.duration))
		return nil
	}
	return top.Write(term.out, rows, config.Columns)
}

// config returns the configuration for package top. It contains the conditions in the flags f,
// but no processes.
func (f *filter) config(term terminal) (top.Config, error) {
	m, err := f.match()
	if err != nil {
		return top.Config{}, err
	}
	// The title tells what is watched and by which conditions.
	title := strings.Join(append([]string{strings.Join(term.names(), " ")}, f.conditions()...), "  ")
	return top.Config{
		Title: title, MaxRPS: f.maxRPS,
		Request: &tappb.TopRequest{Match: m, Headers: f.headerMatches()},
		Advise:  advise, Warn: warner(term.err),
	}, nil
}

// conditions returns the flags' conditions as texts such as "method=GET". The title of the table
// shows them.
func (f *filter) conditions() []string {
	var texts []string
	for _, c := range []struct{ name, value string }{
		{"method", f.method}, {"path", f.path}, {"authority", f.authority}, {"scheme", f.scheme},
		{"from", f.from}, {"to", f.to}, {"to-namespace", f.toNamespace}, {"header", strings.Join(f.headers, ",")},
	} {
		if c.value != "" {
			texts = append(texts, c.name+"="+c.value)
		}
	}
	return texts
}

// bounded returns a context that ends after d, or only by its cancel function if d is 0.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d > 0 {
		return context.WithTimeout(ctx, d)
	}
	return context.WithCancel(ctx)
}

// spent returns how long a command ran, to tell the user: period, which the user asked for, or
// the time since began if period is 0 or the user canceled.
func spent(ctx context.Context, began time.Time, period time.Duration) time.Duration {
	// After an interrupt, the period has not passed.
	if period > 0 && !errors.Is(ctx.Err(), context.Canceled) {
		return period
	}
	return time.Since(began).Round(100 * time.Millisecond)
}

// noRequest prints that no request matched, and that tapctl check may find the reason.
// waited is the duration that it prints.
func noRequest(term terminal, waited time.Duration) {
	fmt.Fprintf(term.err, "tapctl: no such request in %v; tapctl check may find the reason\n", waited)
}
