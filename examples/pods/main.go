// Command pods runs the proxy in a real network on one machine. A pod is a network
// namespace with a proxy. examples/init redirects the connections of the pod to the proxy.
// A destination controller and a CA run in another pod. Ordinary applications communicate
// through two proxies. The program verifies that their traffic is balanced, encrypted and
// observable.
//
//	go run ./examples/pods
//
// The program needs Linux, root, and the programs that .ci/pods.sh installs. All processes
// end with it. README.md has a diagram.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
)

// exitFailed is the exit status if a check has failed. exitSkipped is the exit status on a
// machine that cannot run the program. automake treats 77 as a skipped test.
const (
	exitFailed  = 1
	exitSkipped = 77
)

// stepTimeout is the timeout of one step or check. Normally a step takes a few seconds at
// most, but on a busy machine it takes longer.
const stepTimeout = 60 * time.Second

var (
	errFailed = errors.New("a check failed") // printed already
	errSkip   = errors.New("NOT RUN")
)

func main() {
	ctx, stop := cli.Interrupted()
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
		os.Exit(cli.Status(os.Stderr, "pods", err))
	}
}

// inside is the first argument of this program when it runs in the sandbox.
const inside = "inside"

// options has the values of the flags.
type options struct {
	proxy string // program to run as the proxy
	mode  string // variant of iptables: nft or legacy
	keep  string // directory for logs, configuration and capture
	wire  bool   // list all connections

	kubernetes bool // the controller and the CA read objects of an API server instead of files
}

// parse sets o to the values of the flags in args.
func (o *options) parse(args []string) error {
	f := flag.NewFlagSet("pods", flag.ContinueOnError)
	f.StringVar(&o.proxy, "proxy", "", "`program` to run as the proxy, such as linkerd's; default: examples/proxy")
	f.StringVar(&o.mode, "iptables-mode", "nft", "nft or legacy")
	f.StringVar(&o.keep, "keep", "", "new `directory` for logs, configuration and capture; default: a temporary one")
	f.BoolVar(&o.wire, "wire", false, "list the captured connections")
	f.BoolVar(&o.kubernetes, "kubernetes", false, "read objects of a kube-apiserver, which .ci/kube.sh builds, instead of files")
	cli.Describe(f, "pods runs six pods in network namespaces of this machine, and verifies their traffic through proxies.")
	if err := cli.Parse(f, args, os.Stderr); err != nil {
		return err
	}
	if o.mode != "nft" && o.mode != "legacy" {
		return cli.Misuse(fmt.Errorf("-iptables-mode: %q must be nft or legacy", o.mode))
	}
	return nil
}

// start runs the part of the program that is outside the sandbox. If the first argument is
// "inside", start runs the part in the sandbox instead.
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
