// Command pods runs the proxy in a real network on one machine. Pods are network
// namespaces, redirected by examples/init, with a proxy in each, a destination controller
// and a CA. Ordinary applications communicate through two proxies. Checks verify that the
// traffic is balanced, encrypted and observable.
//
//	go run ./examples/pods
//
// It needs Linux, root, and programs that .ci/pods.sh installs. It leaves no processes
// behind. README.md has a diagram.
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

// The exit codes. exitSkipped is automake's.
const (
	exitFailed  = 1
	exitSkipped = 77
)

// patience is the timeout of steps that normally take no time, for a busy machine.
const patience = 60 * time.Second

var (
	errFailed = errors.New("a check failed") // printed already
	errSkip   = errors.New("NOT RUN")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errSkip):
		fmt.Fprintf(os.Stderr, "\n!!! %v\n", err)
		os.Exit(exitSkipped)
	case err == errFailed: //nolint:errorlint // printed already
		os.Exit(exitFailed)
	default:
		os.Exit(cli.Status(os.Stderr, fmt.Errorf("pods: %w", err)))
	}
}

// inside is the first argument of this program in the sandbox.
const inside = "inside"

// options are the flags.
type options struct {
	proxy string // program to run as the proxy
	mode  string // of iptables
	keep  string // directory for logs, configuration and capture
	wire  bool   // list all connections
}

func (o *options) parse(args []string) error {
	f := flag.NewFlagSet("pods", flag.ContinueOnError)
	f.StringVar(&o.proxy, "proxy", "", "`program` to run as the proxy, such as linkerd's; default: examples/proxy")
	f.StringVar(&o.mode, "iptables-mode", "nft", "nft or legacy")
	f.StringVar(&o.keep, "keep", "", "new `directory` for logs, configuration and capture; default: a temporary one")
	f.BoolVar(&o.wire, "wire", false, "list the captured connections")
	if err := cli.Parse(f, args, os.Stderr); err != nil {
		return err
	}
	if o.mode != "nft" && o.mode != "legacy" {
		return cli.Misuse(fmt.Errorf("-iptables-mode: %q must be nft or legacy", o.mode))
	}
	return nil
}

// start runs the program outside or inside of the sandbox.
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
