// Command bench compares proxies on this machine: gotower's library hop, whole sidecar
// and two sidecars with mutual TLS, with a relay that parses nothing,
// httputil.ReverseProxy, and nginx and haproxy if they are installed.
//
//	go run ./examples/bench
//
// It starts itself as backend, load generator and proxies, which listen on loopback and
// end with it. On Linux the proxy has a CPU for itself, and the other processes share
// the remaining CPUs. Other systems do not pin processes and measure no CPU time. Each
// round measures each proxy once, because a drift of the machine then affects all.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
)

// Protocols, and the rate of the open loop in requests per second.
const (
	http1Protocol = "http1"
	grpcProtocol  = "grpc"
	fixedRate     = 5000
)

func main() {
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(cli.Status(os.Stderr, playRole(roles()[name], os.Args[1:], os.Stdin, os.Stdout)))
	}
	ctx, stop := cli.Interrupted()
	err := compare(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, err))
}

// bench is one comparison.
type bench struct {
	proxyCPUs, otherCPUs []int
	rounds               int
	duration             time.Duration
	dir                  string // of the configuration files
	backend, controller  *process
	targets              []target
}

// target is a proxy that is compared.
type target struct {
	name    string
	isRole  bool // the proxy is a role of this program, so its allocations are known
	start   func(ctx context.Context, b *bench, protocol string) (*process, error)
	samples map[loop][]sample // one of each round
}

// loop is a protocol and the rate of the load, 0 for a closed loop.
type loop struct {
	protocol string
	rate     int
}

// sample has the results of one run of a loop. CPU time and allocations are those of
// the proxy, divided by the number of requests. Times are in µs.
type sample struct {
	cpu, busy, p99, rate, allocations float64
}

func compare(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	b := &bench{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&b.rounds, "rounds", 5, "how often each proxy is measured")
	flags.DurationVar(&b.duration, "duration", 2*time.Second, "of each of the two loads of a proxy in a round")
	short := flags.Bool("short", false, "one round of 30ms, to see that the command works")
	switch err := cli.Parse(flags, args, stderr); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("bench: %w", err)
	case b.rounds < 1 || b.rounds > 100:
		return cli.Misuse(fmt.Errorf("bench: -rounds is %d; it must be in [1, 100]", b.rounds))
	case b.duration < time.Millisecond || b.duration > time.Minute:
		return cli.Misuse(fmt.Errorf("bench: -duration is %v; it must be in [1ms, 1m]", b.duration))
	case *short:
		b.rounds, b.duration = 1, 30*time.Millisecond
	}
	if err := b.run(ctx, stderr); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	b.print(stdout, strings.Join(args, " "))
	return nil
}

// run starts the processes that all proxies use. In each round it measures each proxy
// once.
func (b *bench) run(ctx context.Context, stderr io.Writer) (err error) {
	if b.proxyCPUs, b.otherCPUs, err = split(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "gotower-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if b.backend, err = startRole(ctx, b.otherCPUs, "backend"); err != nil {
		return err
	}
	defer b.backend.stop()
	if b.controller, err = startRole(ctx, b.otherCPUs, "controller", b.backend.addr); err != nil {
		return err
	}
	defer b.controller.stop()
	b.findTargets(ctx)
	for round := range b.rounds {
		fmt.Fprintf(stderr, "round %d of %d\n", round+1, b.rounds)
		for _, protocol := range []string{http1Protocol, grpcProtocol} {
			for _, t := range b.targets {
				if err := b.measure(ctx, t, protocol); err != nil {
					return fmt.Errorf("%s, %s: %w", t.name, protocol, err)
				}
			}
		}
	}
	return nil
}

func (b *bench) findTargets(ctx context.Context) {
	for _, t := range []struct{ name, role string }{
		{"relay", "relay"}, {"ReverseProxy", "reverseproxy"}, {"library hop", "hop"}, {"whole sidecar", "sidecar"},
		{"two sidecars, mutual TLS", "mesh"},
	} {
		b.targets = append(b.targets, target{t.name, true, func(ctx context.Context, b *bench, protocol string) (*process, error) {
			return startRole(ctx, b.proxyCPUs, t.role, protocol, b.backend.addr, b.controller.addr)
		}, make(map[loop][]sample)})
	}
	for _, p := range peers() {
		if version := p.version(ctx); version != "" {
			b.targets = append(b.targets, target{p.program + " " + version, false, p.start, make(map[loop][]sample)})
		}
	}
}

// measure starts a target and measures both loops of a protocol, after a run that is
// not measured.
func (b *bench) measure(ctx context.Context, t target, protocol string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*b.duration+20*time.Second)
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(ctx.Err(), err) // the end of ctx kills the processes
		}
	}()
	proxy, err := t.start(ctx, b, protocol)
	if err != nil {
		return err
	}
	defer proxy.stop()
	generator, err := startRole(ctx, b.otherCPUs, "load", protocol, proxy.addr)
	if err != nil {
		return err
	}
	defer generator.stop()
	if err := generator.ask(new(summary), 0, b.duration.Seconds()/4); err != nil {
		return err
	}
	for _, rate := range []int{0, fixedRate} {
		var run summary
		before, err := proxy.usage()
		if err != nil {
			return err
		}
		if err := generator.ask(&run, rate, b.duration.Seconds()); err != nil {
			return err
		}
		after, err := proxy.usage()
		if err != nil {
			return err
		}
		n, cpu := float64(run.Requests), (after.cpu - before.cpu).Seconds()
		l := loop{protocol, rate}
		t.samples[l] = append(t.samples[l], sample{
			cpu: cpu / n * 1e6, busy: cpu / run.Seconds, p99: run.P99.Seconds() * 1e6, rate: n / run.Seconds,
			allocations: float64(after.Allocations-before.Allocations) / n,
		})
	}
	return nil
}
