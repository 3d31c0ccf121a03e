// Command bench compares proxies on this machine. It measures a proxy with five layers of gotower's
// library (hop), the whole sidecar, its inbound side with an access log, the gateway, and two
// sidecars with mutual TLS. They are compared with a relay that parses nothing, with
// httputil.ReverseProxy, and with nginx and haproxy if they are installed. It also compares
// httpclient with net/http's client.
//
//	go run ./examples/bench
//
// The program starts itself again as the backend, the load generator and each proxy. These
// processes listen on loopback and end with the program. On Linux, the proxy gets a CPU of its own,
// and the other processes share the rest. Other systems do not pin processes and measure no CPU
// time. Each round measures every proxy once, so that changes in the machine's speed affect all of
// them equally.
//
//	bash .ci/peers.sh && go run ./examples/bench -gateways
//
// compares examples/gateway with nginx, Caddy and Traefik. All gateways get the same routes, two
// endpoints, a retry, an access log and metrics. The program also reloads their configurations
// under load, and counts failed requests.
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

// Protocols that are measured. In the upload and download protocols, requests or responses have a
// large body. fixedRate is the open loop's rate in requests per second.
const (
	http1Protocol    = "http1"
	grpcProtocol     = "grpc"
	downloadProtocol = "download"
	uploadProtocol   = "upload"
	fixedRate        = 5000

	grpcDownloadProtocol = "grpc download"
	grpcUploadProtocol   = "grpc upload"

	clientProtocol = "client" // HTTP/1.1 requests that the measured process itself sends
)

// loops returns the measured loads in the order of their tables.
func loops() []loop {
	return []loop{
		{http1Protocol, closedLoopRate}, {http1Protocol, fixedRate}, {grpcProtocol, closedLoopRate}, {grpcProtocol, fixedRate},
		{downloadProtocol, closedLoopRate}, {uploadProtocol, closedLoopRate}, {grpcDownloadProtocol, closedLoopRate},
		{grpcUploadProtocol, closedLoopRate}, {clientProtocol, closedLoopRate},
	}
}

// isGRPC reports whether the protocol is one of those over gRPC.
func isGRPC(protocol string) bool { return strings.HasPrefix(protocol, grpcProtocol) }

func main() {
	// This process is a child that plays a role.
	if name := os.Getenv(roleVariable); name != "" {
		os.Exit(cli.Status(os.Stderr, name, playRole(roles()[name], os.Args[1:], pollable(os.Stdin), os.Stdout)))
	}
	ctx, stop := cli.Interrupted()
	err := compare(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, "bench", err))
}

// bench is one comparison: its settings, its processes, and the compared targets with their
// results. gateways selects gateways instead of sidecars and other proxies.
type bench struct {
	proxyCPUs, otherCPUs        []int
	gateways                    bool
	short                       bool // leave out the gateway, which would have to be built
	loops                       []loop
	rounds                      int
	duration                    time.Duration
	reloads, routes             int    // number of each gateway's reloads and routes
	dir                         string // for configuration files
	log                         io.Writer
	backend, second, controller *process
	targets                     []target
}

// target is one of the compared proxies or clients, with its results.
type target struct {
	name    string
	isRole  bool // a role of this program, whose allocations are known
	sends   bool // a client, which sends the requests itself
	start   func(ctx context.Context, b *bench, protocol string) (*process, error)
	samples map[loop][]sample // one for each round
	gateway *gateway          // nil unless target is a gateway
	reloads reloads
}

// closedLoopRate is the rate of a loop without a fixed rate, in which each response triggers the next request.
const closedLoopRate = 0

// loop is a kind of load: a protocol and a rate in requests per second, or closedLoopRate.
type loop struct {
	protocol string
	rate     int
}

// sample is the result of one run. cpu and allocations are the proxy's CPU time in µs and
// allocations per request. busy is the share of the time in which its CPU was busy, p99 the
// latency's 99th percentile in µs, rate the requests per second, and resident the proxy's memory in
// MiB after the load.
type sample struct {
	cpu, busy, p99, rate, allocations, resident float64
}

// compare parses the flags, measures, and prints the result.
func compare(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	b := &bench{log: stderr, loops: loops(), routes: manyRoutes}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&b.rounds, "rounds", 5, "how often each proxy is measured")
	flags.DurationVar(&b.duration, "duration", 2*time.Second, "`time` of each load of a proxy in a round")
	flags.IntVar(&b.reloads, "reloads", 5, "with -gateways: reloads of each gateway under load")
	only := flags.String("only", "", "measure only the loads of this protocol, such as \"grpc upload\"")
	flags.BoolVar(&b.gateways, "gateways", false, "compare examples/gateway with nginx, Caddy and Traefik")
	flags.BoolVar(&b.short, "short", false,
		"one round of 30ms, to see that the command works; leaves out examples/gateway unless -gateways is set")
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
	// -short replaces the other settings.
	case b.short:
		b.rounds = 1
		b.duration = 30 * time.Millisecond
		b.reloads = 2
		b.routes = 2 * fewRoutes
	}
	if *only != "" {
		b.loops = slices.DeleteFunc(b.loops, func(l loop) bool { return l.protocol != *only })
		if len(b.loops) == 0 {
			return cli.Misuse(fmt.Errorf("-only %q: must be the name of a table, such as http1 or \"grpc upload\"", *only))
		}
	}
	show := b.print
	// The flag -only does not apply to gateways.
	if b.gateways {
		b.loops = gatewayLoops(b.routes)
		show = b.printGateways
	}
	if err := b.run(ctx); err != nil {
		return err
	}
	show(stdout, strings.Join(args, " "))
	return nil
}

// run starts the backend and measures the targets. Gateways are left to runGateways. All other
// proxies also need the controller.
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
	// runGateways starts the second backend itself.
	if b.gateways {
		return b.runGateways(ctx)
	}
	if b.controller, err = startRole(ctx, b.otherCPUs, "controller", b.backend.addr); err != nil {
		return err
	}
	defer b.controller.stop()
	if err := b.findTargets(ctx); err != nil {
		return err
	}
	return b.runRounds(ctx)
}

// runRounds measures each target with each load once in each round.
func (b *bench) runRounds(ctx context.Context) error {
	// A round measures all targets shortly one after another, so that a change of the machine's speed concerns all.
	for round := range b.rounds {
		fmt.Fprintf(b.log, "round %d of %d\n", round+1, b.rounds)
		for i, l := range b.loops {
			// Both loops of a protocol are next to each other.
			if i > 0 && b.loops[i-1].protocol == l.protocol {
				continue // measured with the previous loop
			}
			for _, t := range b.targets {
				// Clients are measured with their own protocol only, and proxies with all others.
				if t.sends != (l.protocol == clientProtocol) {
					continue // clients have a protocol of their own, and proxies have the others
				}
				if err := b.measure(ctx, t, l.protocol); err != nil {
					return fmt.Errorf("%s, %s: %w", t.name, l.protocol, err)
				}
			}
		}
	}
	return nil
}

// findTargets adds all targets except other projects' gateways.
func (b *bench) findTargets(ctx context.Context) error {
	for _, t := range []struct {
		name, role string
		sends      bool
	}{
		{name: "relay", role: "relay"}, {name: "ReverseProxy", role: "reverseproxy"}, {name: "library hop", role: "hop"},
		{name: "whole sidecar", role: "sidecar"}, {name: "sidecar, access log", role: "inbound"},
		{name: "two sidecars, mutual TLS", role: "mesh"},
		{name: "net/http", role: "net/http", sends: true}, {name: "httpclient", role: "httpclient", sends: true},
	} {
		// The role's arguments are the protocol and two addresses.
		start := func(ctx context.Context, b *bench, protocol string) (*process, error) {
			return startRole(ctx, b.proxyCPUs, t.role, protocol, b.backend.addr, b.controller.addr)
		}
		b.targets = append(b.targets, target{name: t.name, isRole: true, sends: t.sends, start: start, samples: make(map[loop][]sample)})
	}
	if !b.short {
		program, err := b.buildGateway(ctx)
		if err != nil {
			return err
		}
		args := func(_, file string) []string { return []string{"run", file} }
		start := peer{program, args, gatewayConfig}.start
		b.targets = append(b.targets, target{name: "gateway", start: start, samples: make(map[loop][]sample)})
	}
	for _, p := range peers() {
		if version := p.version(ctx); version != "" {
			b.targets = append(b.targets, target{name: p.program + " " + version, start: p.start, samples: make(map[loop][]sample)})
		}
	}
	return nil
}

// measure starts the target and, unless it is a client, a load generator. It runs each of b.loops
// with this protocol once, after a short run to warm up, and adds the results to t.samples.
func (b *bench) measure(ctx context.Context, t target, protocol string) (err error) {
	// In the worst case, a protocol has two loops and the short run. The minute is for the starts.
	ctx, cancel := context.WithTimeout(ctx, 3*b.duration+time.Minute)
	defer cancel()
	defer func() {
		// The processes' errors alone would not tell that the time was over.
		if err != nil {
			err = errors.Join(ctx.Err(), err) // when ctx ends, it kills the processes
		}
	}()
	proxy, err := t.start(ctx, b, protocol)
	if err != nil {
		return err
	}
	defer proxy.stop()
	// A client is the measured process and sends the requests itself.
	generator := proxy
	if !t.sends {
		if generator, err = startRole(ctx, b.otherCPUs, "load", protocol, proxy.addr); err != nil {
			return err
		}
		defer generator.stop()
	}
	// This run warms up connections, caches and the runtime.
	if err := generator.ask(new(summary), 0, b.duration.Seconds()/4); err != nil {
		return err
	}
	for _, l := range b.loops {
		if l.protocol != protocol {
			continue
		}
		var run summary
		// Only the CPU time between both calls counts.
		previous, err := proxy.usage()
		if err != nil {
			return err
		}
		if err := generator.ask(&run, l.rate, b.duration.Seconds()); err != nil {
			return err
		}
		current, err := proxy.usage()
		if err != nil {
			return err
		}
		n := float64(run.Requests)
		cpu := (current.cpu - previous.cpu).Seconds()
		// The factor 1e6 turns seconds into microseconds.
		t.samples[l] = append(t.samples[l], sample{
			cpu: cpu / n * 1e6, busy: cpu / run.Seconds, p99: run.P99.Seconds() * 1e6, rate: n / run.Seconds,
			allocations: float64(current.Allocations-previous.Allocations) / n, resident: current.resident,
		})
	}
	return nil
}
