// Command tapctl shows live requests of any process that serves linkerd's tap
// API, such as examples/proxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gotower/gotower/examples/tapctl/top"
	"github.com/gotower/gotower/tap"
)

const usage = `tapctl shows live requests.

  tapctl tap [flags] [host:port ...]   each request, response and end as it happens
  tapctl top [flags] [host:port ...]   a table of them, by source, destination, method and path

host:port is the tap port of a proxy, 127.0.0.1:4190 if none is given; several are merged.
`

const exitUsage = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "tapctl:", err)
	if errors.As(err, new(usageError)) {
		os.Exit(exitUsage)
	}
	os.Exit(1)
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// command is what the command line asks for.
type command struct {
	name     string // tap or top
	targets  []string
	filter   filter
	output   string
	duration time.Duration
}

func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	if c.name == "top" {
		return c.showTop(ctx, stdout)
	}
	c.filter.headers = c.output == "json"
	return observe(ctx, c.targets, c.filter, func(_ string, e tap.Event) error {
		if c.output == "json" {
			return writeJSON(stdout, e)
		}
		_, err := fmt.Fprintln(stdout, line(e, c.output == "wide"))
		return err
	})
}

func parse(args []string, stderr io.Writer) (command, error) {
	if len(args) == 0 {
		args = []string{""}
	}
	c := command{name: args[0]}
	switch c.name {
	case "tap", "top":
	case "help", "-h", "--help":
		fmt.Fprint(stderr, usage)
		return c, flag.ErrHelp
	default:
		fmt.Fprint(stderr, usage)
		return c, usageError{errors.New("say tap or top")}
	}
	flags := c.flags(stderr)
	if err := flags.Parse(args[1:]); err != nil {
		return c, usageError{err}
	}
	if c.targets = flags.Args(); len(c.targets) == 0 {
		c.targets = []string{"127.0.0.1:4190"}
	}
	return c, c.check()
}

func (c *command) flags(stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.filter.method, "method", "", "only this method")
	flags.StringVar(&c.filter.path, "path", "", "only paths that begin like this")
	flags.StringVar(&c.filter.authority, "authority", "", "only this authority")
	flags.StringVar(&c.filter.scheme, "scheme", "", "only this scheme")
	flags.StringVar(&c.filter.to, "to", "", "only endpoints with this label, as `kind/name`: pod/voting-0")
	flags.UintVar(&c.filter.maxRPS, "max-rps", 100, "at most so many requests a second, over all targets")
	flags.DurationVar(&c.duration, "for", 0, "stop after this time (0: when interrupted)")
	flags.StringVar(&c.output, "o", "", "`format`: json; for tap also wide")
	return flags
}

func (c *command) check() error {
	switch {
	case c.output == "", c.output == "json", c.output == "wide" && c.name == "tap":
	default:
		return usageError{fmt.Errorf("-o %s: no such format", c.output)}
	}
	if _, err := c.filter.match(); err != nil {
		return usageError{err}
	}
	return nil
}

// showTop shows the table while it grows; as JSON, once at the end.
func (c *command) showTop(ctx context.Context, stdout *os.File) error {
	var table top.Table
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	observed := make(chan error, 1)
	go func() {
		err := observe(ctx, c.targets, c.filter, func(from string, e tap.Event) error {
			table.Add(from, e)
			return nil
		})
		cancel(err)
		observed <- err
	}()
	if c.output == "json" {
		<-ctx.Done()
		return errors.Join(<-observed, top.WriteJSON(stdout, table.Rows()))
	}
	return errors.Join(top.Live(ctx, stdout, &table, ""), <-observed)
}
