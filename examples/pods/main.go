// Command pods runs the proxy in a real network on one machine. A pod is a network namespace with
// a proxy. examples/init redirects the pod's connections to the proxy. A destination controller
// and a CA run in another pod. Ordinary applications communicate through two proxies. The program
// verifies that their traffic is balanced, encrypted and observable.
//
//	go run ./examples/pods
//
// The program needs Linux, root, and the programs that .ci/pods.sh installs. All processes end
// with it. README.md shows a diagram.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
)

// exitFailed means that a check failed. exitSkipped means that this machine cannot run the
// program; 77 is what automake uses for a skipped test.
const (
	exitFailed  = 1
	exitSkipped = 77
)

// stepTimeout is the timeout of one step or check. Normally a step takes a few seconds at
// most, but on a busy machine it takes longer.
const stepTimeout = 2 * time.Minute

var (
	errFailed = errors.New("a check failed") // printed already
	errSkip   = errors.New("NOT RUN")
)

func main() {
	ctx, stop := cli.Interrupted()
	err := start(ctx, os.Args[1:])
	// os.Exit skips deferred calls, so stop is called before.
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

// options holds the flags' values.
type options struct {
	proxy string // program to run as the proxy
	only  string // names of the pods that run this program; "" means all
	mode  string // variant of iptables: nft or legacy
	keep  string // directory for logs, configuration and capture
	wire  bool   // list all connections

	kubernetes bool // the controller and the CA read from an API server instead of files
}

// parse sets o to the values of the flags in args.
func (o *options) parse(args []string) error {
	f := flag.NewFlagSet("pods", flag.ContinueOnError)
	f.StringVar(&o.proxy, "proxy", "", "`program` to run as the proxy, such as linkerd's; default: examples/proxy")
	f.StringVar(&o.only, "proxy-pods", "", "with -proxy: `names` of the pods that run it, such as web-1,web-2; default: all")
	f.StringVar(&o.mode, "iptables-mode", "nft", "nft or legacy")
	f.StringVar(&o.keep, "keep", "", "new `directory` for logs, configuration and capture; default: a temporary one")
	f.BoolVar(&o.wire, "wire", false, "list the captured connections")
	f.BoolVar(&o.kubernetes, "kubernetes", false, "read objects of a kube-apiserver, which .ci/kube.sh builds, instead of files")
	cli.Describe(f, "pods runs six pods in network namespaces of this machine, and verifies their traffic through proxies.")
	if err := cli.Parse(f, args, os.Stderr); err != nil {
		return err
	}
	if o.only != "" && o.proxy == "" {
		return cli.Misuse(fmt.Errorf("-proxy-pods %s: requires -proxy", o.only))
	}
	// Without the flag, only is empty, and the only name too.
	for name := range strings.SplitSeq(o.only, ",") {
		if c := newCluster(); o.only != "" && !slices.ContainsFunc(c.meshed(), func(p pod) bool { return p.name == name }) {
			return cli.Misuse(fmt.Errorf("-proxy-pods: %q must be one of %s", name, strings.Join(names(c.meshed()), ", ")))
		}
	}
	if o.mode != "nft" && o.mode != "legacy" {
		return cli.Misuse(fmt.Errorf("-iptables-mode: %q must be nft or legacy", o.mode))
	}
	return nil
}

// names returns the names of pods.
func names(pods []pod) []string {
	all := make([]string, 0, len(pods))
	for _, p := range pods {
		all = append(all, p.name)
	}
	return all
}

// isForeign reports whether the pod p runs the program in the flag -proxy. Proxies other than
// examples/proxy serve no /stack and no explanations, so checks leave out what needs them.
func (o *options) isForeign(p pod) bool {
	return o.proxy != "" && (o.only == "" || slices.Contains(strings.Split(o.only, ","), p.name))
}

// start runs the part of the program that is outside the sandbox, or the part inside it if the
// first argument is "inside".
func start(ctx context.Context, args []string) error {
	// In the sandbox, args[1] is the directory for all files, and the user's flags follow.
	if len(args) > 1 && args[0] == inside {
		var o options
		if err := o.parse(args[2:]); err != nil {
			return err
		}
		return run(ctx, args[1], o)
	}
	return outside(ctx, args)
}
