// Command tapctl shows live requests of any process that serves tap, such as linkerd's
// proxy, examples/proxy, or a program with a tap.Layer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/tapctl/text"
)

const exitUsage = 2

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if status := report(os.Stderr, err); status != 0 {
		os.Exit(status)
	}
}

// report prints err, the error of a command. It prints nothing if err is nil, or if the
// command has already printed the help or the findings. It returns the exit status of the
// process.
func report(stderr io.Writer, err error) (status int) {
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUnfit): // the checks are printed
		return 1
	case errors.Is(err, context.Canceled):
		err = errors.New("interrupted")
	}
	fmt.Fprintln(stderr, "tapctl:", text.CleanLines(err.Error()))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return 1
}

// noTime returns the error for a flag that was set to d, a duration of 0 or less.
func noTime(flag string, d time.Duration) error {
	return fmt.Errorf("%s %v: must be positive", flag, d)
}

// usageError is an error in the command line. The exit status is 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// command is one of the commands of tapctl, such as top. Its function new returns a runner,
// which registers the flags of the command, checks them, and runs the command.
type command struct {
	name, does string
	example    string
	more       string
	new        func() runner
}

type runner interface {
	flags(f *flag.FlagSet)
	check() error
	run(ctx context.Context, on terminal) error
}

// terminal has the output streams and the targets of a command.
type terminal struct {
	out     *os.File
	err     io.Writer
	targets []target
	pods    *pods // the targets in a cluster; nil means targets
}

// names returns the names of the targets, as the user wrote them on the command line.
func (t terminal) names() []string {
	if t.pods != nil {
		return t.pods.names()
	}
	all := make([]string, 0, len(t.targets))
	for _, one := range t.targets {
		all = append(all, one.name)
	}
	return all
}

// commands returns all commands, in the order in which the help lists them.
func commands() []command {
	return []command{
		{
			name: "tap", does: "each request, response and end as it happens",
			example: "tapctl tap --path /api/ --failures --explain 127.0.0.1:4190",
			more: "The lines have the format of linkerd viz tap. Conditions on responses and header fields,\n" +
				"--sample, --body and --explain need gotower's tap service, which linkerd's proxy does not have.",
			new: func() runner { return &tapCommand{} },
		},
		{
			name: "top", does: "a live table by source, destination, method and path",
			example: "tapctl top 127.0.0.1:4190 127.0.0.1:4290",
			more: "On a terminal: the arrows select a row, enter shows its requests, enter again shows one of them; ? lists the keys.\n" +
				"Elsewhere the table is printed every 5 s, or once (--once), or as JSON at the end (-o json).\n" +
				"Rows without a request for 10m are removed, and for 1m if there are 1000 rows. Further rows count as (other).",
			new: func() runner { return &topCommand{} },
		},
		{
			name: "check", does: "problems, with advice",
			example: "tapctl check 127.0.0.1:4190",
			more:    "The exit status is 1 if a check failed (×). A missing optional feature is a warning (‼).",
			new:     func() runner { return &checkCommand{} },
		},
		{
			name: "stat", does: "success rate, rate and latency of each destination",
			example: "tapctl stat --for 10s 127.0.0.1:4190",
			new:     func() runner { return &statCommand{} },
		},
		{
			name: "endpoints", does: "the endpoints that the balancers know, and their state",
			example: "tapctl endpoints 127.0.0.1:4190",
			more:    "The process must describe its layers: tap.WithDescribe.",
			new:     func() runner { return &endpointsCommand{} },
		},
		{
			name: "profile", does: "a ServiceProfile from the requests",
			example: "tapctl profile --for 60s 127.0.0.1:4190 > profile.yaml",
			new:     func() runner { return &profileCommand{} },
		},
	}
}

func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) error {
	if len(args) == 0 {
		args = []string{""}
	}
	if name := args[0]; name == "help" || name == "-h" || name == "--help" {
		if len(args) > 1 && name == "help" {
			return run(ctx, []string{args[1], "--help"}, stdout, stderr)
		}
		usage(stdout)
		return flag.ErrHelp
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.start(ctx, args[1:], stdout, stderr)
		}
	}
	usage(stderr)
	if args[0] == "" {
		return usageError{errors.New("no command")}
	}
	return usageError{fmt.Errorf("%q is not a command", args[0])}
}

// start parses args, the command line after the name of the command, and runs the command.
// It prints the help instead if args request it.
func (c command) start(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) error {
	r := c.new()
	f := flag.NewFlagSet(c.name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, at the end
	r.flags(f)
	var secure security
	secure.flags(f)
	var clusters clusterFlags
	clusters.flags(f)
	written, err := parse(f, args)
	if errors.Is(err, flag.ErrHelp) {
		c.help(stdout, f)
		return err
	}
	on := terminal{out: stdout, err: stderr}
	if err == nil {
		on.pods, err = clusters.targets(written, &secure, warner(stderr))
	}
	if on.pods != nil {
		defer on.pods.Close()
		if filtered, ok := r.(interface{ useCluster(p *pods) error }); ok {
			err = filtered.useCluster(on.pods)
		}
	}
	if len(written) == 0 {
		written = []string{"127.0.0.1:4190"}
	}
	if err == nil {
		err = r.check()
	}
	if err == nil && on.pods == nil {
		on.targets, err = secure.targets(written)
	}
	if err != nil {
		return usageError{fmt.Errorf("%w (see tapctl %s --help)", err, c.name)}
	}
	if err := secure.prove(on.targets); err != nil {
		return err
	}
	return r.run(ctx, on)
}

// parse parses args with the flags of f and returns the other arguments, which are the
// targets. Flags may be before, after and between targets.
func parse(f *flag.FlagSet, args []string) (targets []string, err error) {
	for {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			return targets, nil
		}
		targets, args = append(targets, f.Arg(0)), f.Args()[1:]
	}
}

func (c command) help(w io.Writer, f *flag.FlagSet) {
	fmt.Fprintf(w, "tapctl %s shows %s.\n\n  %s\n\n", c.name, c.does, c.example)
	if c.more != "" {
		fmt.Fprintf(w, "%s\n\n", c.more)
	}
	fmt.Fprintf(w, "tapctl %s [flags] [host:port ...]\ntapctl %[1]s [flags] [-n NAMESPACE] KIND/NAME ...\n\n", c.name)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	f.VisitAll(func(one *flag.Flag) {
		dashes := "--"
		if len(one.Name) == 1 {
			dashes = "-"
		}
		value, does := flag.UnquoteUsage(one)
		if d := one.DefValue; d != "" && d != "0" && d != "0s" && d != "false" {
			does += " (default " + d + ")"
		}
		fmt.Fprintf(table, "  %s%s %s\t%s\n", dashes, one.Name, value, does)
	})
	_ = table.Flush()
}

func usage(w io.Writer) {
	fmt.Fprint(w, "tapctl shows live requests.\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  tapctl %-9s  %s\n", c.name, c.does)
	}
	fmt.Fprint(w, "\nUsage: tapctl COMMAND [flags] [host:port ...]\n"+
		"       tapctl COMMAND [flags] [-n NAMESPACE] KIND/NAME ...\n"+
		"Targets are tap ports of processes, by default 127.0.0.1:4190, or resources of a Kubernetes cluster such as deploy/web.\n"+
		"tapctl COMMAND --help lists the flags. Processes on other machines need TLS: --cacert, --cert and --key.\n")
}
