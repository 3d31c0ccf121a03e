// Command bench compares proxies on this machine. It measures a proxy of five layers of
// gotower's library (hop), the whole sidecar, and two sidecars with mutual TLS. For
// comparison, it measures a relay that parses nothing, httputil.ReverseProxy, and nginx and
// haproxy if they are installed.
//
//	go run ./examples/bench
//
// The program starts itself again as backend, load generator and proxies. These processes
// listen on loopback and end with the program. On Linux the proxy has a CPU for itself, and
// the other processes share the remaining CPUs. Other systems do not pin processes and
// measure no CPU time. Each round measures each proxy once, so that a change in the speed
// of the machine affects all proxies equally.
//
//	bash .ci/peers.sh && go run ./examples/bench -gateways
//
// compares examples/gateway with nginx, Caddy and Traefik. All gateways have the same
// routes, two endpoints, a retry, an access log and metrics. The program also reloads their
// configurations under load, and counts the failed requests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
)

// The names of the protocols that are measured. In the upload protocols, requests have a large
// body. In the download protocols, responses have a large body. fixedRate is the rate of the
// open loop in requests per second.
const (
	http1Protocol    = "http1"
	grpcProtocol     = "grpc"
	downloadProtocol = "download"
	uploadProtocol   = "upload"
	fixedRate        = 5000

	grpcDownloadProtocol = "grpc download"
	grpcUploadProtocol   = "grpc upload"
)

// loops returns the measured loads in the order in which their tables are printed.
func loops() []loop {
	return []loop{
		{http1Protocol, 0}, {http1Protocol, fixedRate}, {grpcProtocol, 0}, {grpcProtocol, fixedRate},
		{downloadProtocol, 0}, {uploadProtocol, 0}, {grpcDownloadProtocol, 0}, {grpcUploadProtocol, 0},
	}
}

func isGRPC(protocol string) bool { return strings.HasPrefix(protocol, grpcProtocol) }

func main() {
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(cli.Status(os.Stderr, name, playRole(roles()[name], os.Args[1:], pollable(os.Stdin), os.Stdout)))
	}
	ctx, stop := cli.Interrupted()
	err := compare(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, "bench", err))
}

// bench is one comparison of proxies: its settings, its processes, and the proxies with their
// results. If gateways is true, it compares gateways instead of sidecars and other proxies.
type bench struct {
	proxyCPUs, otherCPUs        []int
	gateways                    bool
	loops                       []loop
	rounds                      int
	duration                    time.Duration
	reloads, routes             int    // numbers of the reloads of each gateway, and of its routes
	dir                         string // directory of the configuration files
	log                         io.Writer
	backend, second, controller *process
	targets                     []target
}

// target is one of the proxies that are compared, with the results of its measurements.
type target struct {
	name    string
	isRole  bool // the proxy is a role of this program, so its allocations are known
	start   func(ctx context.Context, b *bench, protocol string) (*process, error)
	samples map[loop][]sample // one sample for each round
	gateway *gateway          // nil unless the target is a gateway
	reloads reloads
}

// loop identifies a kind of load: a protocol and a rate in requests per second. A rate of 0
// means a closed loop, in which each response causes the next request.
type loop struct {
	protocol string
	rate     int
}

// sample has the results of one run of a loop. The fields cpu and allocations are the CPU
// time and the number of allocations of the proxy per request. busy is the share of the
// time in which the CPU of the proxy was busy. p99 is the 99th percentile of the latency.
// cpu and p99 are in µs, and rate is in requests per second.
type sample struct {
	cpu, busy, p99, rate, allocations float64
}

func compare(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	b := &bench{log: stderr, loops: loops(), routes: manyRoutes}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&b.rounds, "rounds", 5, "how often each proxy is measured")
	flags.DurationVar(&b.duration, "duration", 2*time.Second, "`time` of each load of a proxy in a round")
	flags.IntVar(&b.reloads, "reloads", 5, "with -gateways: reloads of each gateway under load")
	only := flags.String("only", "", "measure only the loads of this protocol, such as \"grpc upload\"")
	flags.BoolVar(&b.gateways, "gateways", false, "compare examples/gateway with nginx, Caddy and Traefik")
	short := flags.Bool("short", false, "one round of 30ms, to see that the command works")
	cli.Describe(flags, "bench measures the proxies of gotower, and nginx and haproxy if they are installed, on this machine.")
	switch err := cli.Parse(flags, args, stderr); {
	case err != nil:
		return err
	case b.rounds < 1 || b.rounds > 100:
		return cli.Misuse(fmt.Errorf("-rounds is %d; it must be in [1, 100]", b.rounds))
	case b.reloads < 0 || b.reloads > 100:
		return cli.Misuse(fmt.Errorf("-reloads is %d; it must be in [0, 100]", b.reloads))
	case b.duration < time.Millisecond || b.duration > time.Minute:
		return cli.Misuse(fmt.Errorf("-duration is %v; it must be in [1ms, 1m]", b.duration))
	case *short:
		b.rounds, b.duration, b.reloads, b.routes = 1, 30*time.Millisecond, 2, 2*fewRoutes
	}
	if *only != "" {
		b.loops = slices.DeleteFunc(b.loops, func(l loop) bool { return l.protocol != *only })
		if len(b.loops) == 0 {
			return cli.Misuse(fmt.Errorf("-only %q: must be the name of a table, such as http1 or \"grpc upload\"", *only))
		}
	}
	show := b.print
	if b.gateways {
		b.loops, show = gatewayLoops(b.routes), b.printGateways
	}
	if err := b.run(ctx); err != nil {
		return err
	}
	show(stdout, strings.Join(args, " "))
	return nil
}

// run starts the backend, which all proxies use, and measures the proxies. If b.gateways is
// true, it calls runGateways. Otherwise it also starts the controller, and measures each proxy
// once with each load in each round.
func (b *bench) run(ctx context.Context) (err error) {
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
	if b.gateways {
		return b.runGateways(ctx)
	}
	if b.controller, err = startRole(ctx, b.otherCPUs, "controller", b.backend.addr); err != nil {
		return err
	}
	defer b.controller.stop()
	b.findTargets(ctx)
	return b.runRounds(ctx)
}

// runRounds measures each target with each load, once in each round.
func (b *bench) runRounds(ctx context.Context) error {
	for round := range b.rounds {
		fmt.Fprintf(b.log, "round %d of %d\n", round+1, b.rounds)
		for i, l := range b.loops {
			if i > 0 && b.loops[i-1].protocol == l.protocol {
				continue // measured with the previous loop
			}
			for _, t := range b.targets {
				if err := b.measure(ctx, t, l.protocol); err != nil {
					return fmt.Errorf("%s, %s: %w", t.name, l.protocol, err)
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
		start := func(ctx context.Context, b *bench, protocol string) (*process, error) {
			return startRole(ctx, b.proxyCPUs, t.role, protocol, b.backend.addr, b.controller.addr)
		}
		b.targets = append(b.targets, target{name: t.name, isRole: true, start: start, samples: make(map[loop][]sample)})
	}
	for _, p := range peers() {
		if version := p.version(ctx); version != "" {
			b.targets = append(b.targets, target{name: p.program + " " + version, start: p.start, samples: make(map[loop][]sample)})
		}
	}
}

// measure starts the target t and a load generator for the given protocol. For each element of
// b.loops with this protocol, it runs the load once and adds the result to t.samples. A short
// run before the measurements warms the target up.
func (b *bench) measure(ctx context.Context, t target, protocol string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*b.duration+time.Minute)
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
	for _, l := range b.loops {
		if l.protocol != protocol {
			continue
		}
		var run summary
		before, err := proxy.usage()
		if err != nil {
			return err
		}
		if err := generator.ask(&run, l.rate, b.duration.Seconds()); err != nil {
			return err
		}
		after, err := proxy.usage()
		if err != nil {
			return err
		}
		n, cpu := float64(run.Requests), (after.cpu - before.cpu).Seconds()
		t.samples[l] = append(t.samples[l], sample{
			cpu: cpu / n * 1e6, busy: cpu / run.Seconds, p99: run.P99.Seconds() * 1e6, rate: n / run.Seconds,
			allocations: float64(after.Allocations-before.Allocations) / n,
		})
	}
	return nil
}
