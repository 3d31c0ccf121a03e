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

// exitUsage is the exit status of a wrong command line.
const exitUsage = 2

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if status := report(os.Stderr, err); status != 0 {
		os.Exit(status)
	}
}

// report prints a command's error and returns the exit status. It prints nothing if err is nil,
// or if the command has already printed the help or the findings.
func report(stderr io.Writer, err error) (status int) {
	// The order matters: what has been printed already must not be printed again.
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

// command is one of tapctl's commands, such as top. new returns a runner, which registers the
// command's flags, checks them, and runs the command.
type command struct {
	name, does string
	example    string
	more       string
	new        func() runner
}

// runner is the implementation of a command. Its methods are called in this order.
type runner interface {
	flags(f *flag.FlagSet)
	check() error
	run(ctx context.Context, term terminal) error
}

// terminal holds a command's output streams and targets.
type terminal struct {
	out     *os.File
	err     io.Writer
	targets []target
	pods    *pods // the targets in a cluster; nil means targets
}

// names returns the targets' names, as the user wrote them on the command line.
func (t terminal) names() []string {
	if t.pods != nil {
		return t.pods.names()
	}
	names := make([]string, 0, len(t.targets))
	for _, target := range t.targets {
		names = append(names, target.name)
	}
	return names
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
			name: "authz", does: "what the policies of a cluster permit and deny, by route and server",
			example: "tapctl authz deploy/web -n emojivoto",
			more:    "The columns are those of linkerd viz authz. UNAUTHORIZED also counts connections that are not HTTP.",
			new:     func() runner { return &authzCommand{} },
		},
		{
			name: "edges", does: "the connections between the resources of a cluster, and whether they are secured",
			example: "tapctl edges deploy -n emojivoto",
			more: "The columns are those of linkerd viz edges. Only the proxies of the targets are asked, so that clients\n" +
				"elsewhere have the name of their service account.",
			new: func() runner { return &edgesCommand{} },
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

// run runs the command that args name. It prints the help if there is none, or if args ask for it.
func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) error {
	if len(args) == 0 {
		// An empty name is no command, and gets its own error below.
		args = []string{""}
	}
	if name := args[0]; name == "help" || name == "-h" || name == "--help" {
		if len(args) > 1 && name == "help" {
			// "help COMMAND" is another form of "COMMAND --help".
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

// start parses args, the command line after the command's name, and runs the command. It prints
// the help instead if args request it.
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
	term := terminal{out: stdout, err: stderr}
	// The first error is kept, and later steps are skipped.
	if err == nil {
		term.pods, err = clusters.targets(written, &secure, warner(stderr))
	}
	if term.pods != nil {
		defer term.pods.Close()
		// Only commands that select requests have flags for the destination in a cluster.
		if filtered, ok := r.(interface{ useCluster(p *pods) error }); ok {
			err = filtered.useCluster(term.pods)
		}
	}
	// The default is the tap of a proxy on this machine.
	if len(written) == 0 {
		written = []string{"127.0.0.1:4190"}
	}
	if err == nil {
		// check runs after useCluster, because it depends on the kind of targets.
		err = r.check()
	}
	if err == nil && term.pods == nil {
		term.targets, err = secure.targets(written)
	}
	if err != nil {
		return usageError{fmt.Errorf("%w (see tapctl %s --help)", err, c.name)}
	}
	// Reading certificates can fail without a wrong command line.
	if err := secure.prove(term.targets); err != nil {
		return err
	}
	return r.run(ctx, term)
}

// parse parses args with the flags of f and returns the other arguments, which are the
// targets. Flags may be before, after and between targets.
func parse(f *flag.FlagSet, args []string) (targets []string, err error) {
	// Package flag stops at the first argument. Take it, and parse flags again after it.
	for {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if f.NArg() == 0 {
			return targets, nil
		}
		targets = append(targets, f.Arg(0))
		args = f.Args()[1:]
	}
}

// help prints the help for one command and its flags.
func (c command) help(w io.Writer, f *flag.FlagSet) {
	fmt.Fprintf(w, "tapctl %s shows %s.\n\n  %s\n\n", c.name, c.does, c.example)
	if c.more != "" {
		fmt.Fprintf(w, "%s\n\n", c.more)
	}
	fmt.Fprintf(w, "tapctl %s [flags] [host:port ...]\ntapctl %[1]s [flags] [-n NAMESPACE] KIND/NAME ...\n\n", c.name)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	f.VisitAll(func(option *flag.Flag) {
		dashes := "--"
		if len(option.Name) == 1 {
			dashes = "-"
		}
		value, usage := flag.UnquoteUsage(option)
		// Zero values are not interesting as defaults.
		if d := option.DefValue; d != "" && d != "0" && d != "0s" && d != "false" {
			usage += " (default " + d + ")"
		}
		fmt.Fprintf(table, "  %s%s %s\t%s\n", dashes, option.Name, value, usage)
	})
	_ = table.Flush()
}

// usage prints the list of commands.
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
