// Command pods is the proxy in a real network, on one machine: pods out of
// network namespaces, redirected by examples/init, with a proxy in each, and a
// destination controller and a CA beside them. Applications that know of nothing
// talk through two proxies, and it is looked at from all sides whether that is
// balanced, encrypted, and can be watched.
//
//	go run ./examples/pods
//
// It needs Linux, root, and programs that .ci/pods.sh installs. It leaves
// nothing running, however it ends. README.md has the picture.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
)

// The exit codes. The one of a run that was not possible is automake's.
const (
	exitFailed  = 1
	exitSkipped = 77
)

// patience is how long anything may take that should take no time at all: the
// machine may be busy.
const patience = 60 * time.Second

var (
	errFailed = errors.New("not everything is as it should be") // which was said
	errCannot = errors.New("NOT RUN")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errCannot):
		fmt.Fprintf(os.Stderr, "\n!!! %v\n", err)
		os.Exit(exitSkipped)
	case err == errFailed: //nolint:errorlint // all of it was said
		os.Exit(exitFailed)
	default:
		os.Exit(cli.Status(os.Stderr, fmt.Errorf("pods: %w", err)))
	}
}

// inside is the first argument of this program in its sandbox.
const inside = "inside"

// options are the flags.
type options struct {
	proxy string // another program to use as the proxy
	mode  string // of iptables
	keep  string // where to leave what was written
	wire  bool   // list all connections
}

func (o *options) parse(args []string) error {
	f := flag.NewFlagSet("pods", flag.ContinueOnError)
	f.StringVar(&o.proxy, "proxy", "", "`program` to run as the proxy, such as linkerd's; none is examples/proxy")
	f.StringVar(&o.mode, "iptables-mode", "nft", "nft or legacy")
	f.StringVar(&o.keep, "keep", "", "`directory` for the logs, the configuration and the capture; none keeps nothing")
	f.BoolVar(&o.wire, "wire", false, "list what was seen on the wire")
	if err := cli.Parse(f, args, os.Stderr); err != nil {
		return err
	}
	if o.mode != "nft" && o.mode != "legacy" {
		return cli.Misuse(fmt.Errorf("-iptables-mode: %q is neither nft nor legacy", o.mode))
	}
	return nil
}

// start is the program outside and inside of the sandbox.
func start(ctx context.Context, args []string) error {
	if len(args) > 1 && args[0] == inside {
		var o options
		if err := o.parse(args[2:]); err != nil {
			return err
		}
		return run(ctx, args[1], o)
	}
	return outside(ctx, args)
}
