package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// Numbers of routes in the configurations, and the open loop's rate in requests per second.
const (
	fewRoutes   = 10
	manyRoutes  = 10_000
	gatewayRate = 1000
)

// gatewayLoops returns the loads for gateways in the order of their tables. They are measured with
// fewRoutes and with many routes.
func gatewayLoops(many int) []loop {
	fewProtocol := fmt.Sprintf(routesProtocol, fewRoutes)
	manyProtocol := fmt.Sprintf(routesProtocol, many)
	return []loop{
		{fewProtocol, closedLoopRate}, {fewProtocol, gatewayRate}, {manyProtocol, closedLoopRate}, {manyProtocol, gatewayRate},
	}
}

// gateway is a program that is configured by files. All gateways get the same configuration: routes
// by prefix, two endpoints, one retry, a JSON access log and metrics.
type gateway struct {
	name, program string
	versionArg    string // makes the program print its version
	// files returns the content of each configuration file by name.
	files func(gatewaySettings) map[string]string
	// args returns the arguments to serve the files in dir.
	args func(dir string) []string
	// reload makes the program load its changed files.
	reload func(ctx context.Context, g gateway, p *process, s gatewaySettings) error
}

// gatewaySettings contains what differs between runs. generation numbers the configurations, and is
// sent in [generationHeader]. master makes nginx start a master process, which a reload requires,
// but which is off while CPU time is measured.
type gatewaySettings struct {
	dir           string
	listen, admin string
	backends      []string
	routes        int
	generation    int
	master        bool
}

// generationHeader is the response header with the number of the gateway's configuration.
const generationHeader = "X-Generation"

// routePath returns the path prefix of route i.
func routePath(i int) string { return fmt.Sprintf("/route-%05d", i) }

// signalReload sends SIGHUP to p, which makes it read its files again.
func signalReload(_ context.Context, _ gateway, p *process, _ gatewaySettings) error {
	return p.cmd.Process.Signal(syscall.SIGHUP)
}

// runGateways measures the CPU time and latency of all gateways under load, and then how long they
// take to reload their configuration, unless b.reloads is 0.
func (b *bench) runGateways(ctx context.Context) (err error) {
	// Gateways balance over two backends. The other comparison has only one.
	if b.second, err = startRole(ctx, b.otherCPUs, "backend"); err != nil {
		return err
	}
	defer b.second.stop()
	if err := b.findGateways(ctx); err != nil {
		return err
	}
	if err := b.runRounds(ctx); err != nil {
		return err
	}
	// All targets, or none if b.reloads is 0.
	for i := range b.targets[:len(b.targets)*min(b.reloads, 1)] {
		fmt.Fprintf(b.log, "reloads of %s\n", b.targets[i].name)
		if err := b.measureReloads(ctx, &b.targets[i]); err != nil {
			return fmt.Errorf("%s, reloads: %w", b.targets[i].name, err)
		}
	}
	return nil
}

// findGateways adds examples/gateway, which it builds, and all other gateways that are installed to
// the targets.
func (b *bench) findGateways(ctx context.Context) error {
	built, err := b.buildGateway(ctx)
	if err != nil {
		return err
	}
	for _, g := range gateways(built) {
		name := g.name
		// Other gateways may be missing or have another version, which the table then shows.
		if g.program != built {
			g.program = installed(g.program)
			// The version is searched in the output, which differs between programs. Without one, the gateway is
			// not installed.
			text, _ := exec.CommandContext(ctx, g.program, g.versionArg).CombinedOutput() //nolint:gosec // a known gateway
			version := regexp.MustCompile(`\d+(\.\d+)+`).FindString(string(text))
			if version == "" {
				continue
			}
			name += " " + version
		}
		// g is a new variable in each iteration, so its address may be kept.
		b.targets = append(b.targets, target{name: name, gateway: &g, samples: make(map[loop][]sample),
			start: func(ctx context.Context, b *bench, protocol string) (*process, error) {
				s := b.gatewaySettings(g, 0)
				// A gateway's protocol is a text with the number of routes.
				if _, err := fmt.Sscanf(protocol, routesProtocol, &s.routes); err != nil {
					return nil, err
				}
				return g.start(ctx, b.proxyCPUs, s)
			}})
	}
	return nil
}

// buildGateway builds examples/gateway and returns the program's path.
func (b *bench) buildGateway(ctx context.Context) (program string, err error) {
	program = filepath.Join(b.dir, "gateway")
	const path = "github.com/gotower/gotower/examples/gateway"
	build := exec.CommandContext(ctx, "go", "build", "-o", program, path) //nolint:gosec // a constant
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build of examples/gateway: %w: %s", err, text)
	}
	return program, nil
}

// installed returns the path of a program that .ci/peers.sh has installed. It returns other names
// unchanged, to be found in PATH.
func installed(program string) string {
	// This is the directory in which the script installs programs by default.
	dir := os.Getenv("GOTOWER_PEERS")
	if dir == "" {
		cache, _ := os.UserCacheDir()
		dir = filepath.Join(cache, "gotower-peers")
	}
	path := filepath.Join(dir, program)
	if _, err := os.Stat(path); err != nil { //nolint:gosec // the user sets the directory
		return program
	}
	return path
}

// gatewaySettings returns the settings for a run of g with new addresses.
func (b *bench) gatewaySettings(g gateway, routes int) gatewaySettings {
	s := gatewaySettings{dir: filepath.Join(b.dir, g.name+".files"), backends: []string{b.backend.addr, b.second.addr}, routes: routes}
	s.listen = freeAddress()
	s.admin = freeAddress()
	return s
}

// freeAddress returns a free port on loopback, or "" if there is none.
func freeAddress() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return ""
	}
	defer l.Close()
	return l.Addr().String()
}

// write writes the gateway's configuration files. Each is written under another name and then
// renamed, so that a running gateway never reads an incomplete file.
func (g gateway) write(s gatewaySettings) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	for name, text := range g.files(s) {
		// The new name is in the same directory, so that renaming replaces the file at once.
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

// start writes the gateway's files, starts it, and waits until it serves its last route.
func (g gateway) start(ctx context.Context, cpus []int, s gatewaySettings) (*process, error) {
	// Files of an earlier run could change how the gateway starts.
	if err := os.RemoveAll(s.dir); err != nil {
		return nil, err
	}
	if err := g.write(s); err != nil {
		return nil, err
	}
	cmd := g.command(ctx, s.dir, g.args(s.dir)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // lets nginx end its workers
	p, err := start(cmd, cpus)
	if err != nil {
		return nil, err
	}
	p.addr = s.listen
	// With a master process, killing it would leave the workers behind.
	p.graceful = s.master
	return p, g.wait(ctx, p, s)
}

// command returns a command of the gateway, which stores its own data in dir only.
func (g gateway) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, g.program, args...) //nolint:gosec // a known gateway
	cmd.Dir = dir
	// Caddy stores its data and the last configuration in these directories.
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	return cmd
}

// wait sends requests to the last route until a response shows that the gateway uses the
// configuration s.generation. It returns an error if p or ctx ends first.
func (g gateway) wait(ctx context.Context, p *process, s gatewaySettings) error {
	// A new connection for each request, because old ones may still use the old configuration.
	transport := &http.Transport{DisableKeepAlives: true}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.listen+routePath(s.routes-1)+smallPath, http.NoBody)
		if err != nil {
			return err
		}
		req.Host = name
		if rsp, err := transport.RoundTrip(req); err == nil {
			_ = rsp.Body.Close()
			if rsp.StatusCode == http.StatusOK && rsp.Header.Get(generationHeader) == strconv.Itoa(s.generation) {
				return nil
			}
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", g.name, p.errors.String())
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve generation %d: %w", g.name, s.generation, ctx.Err())
		// A gateway that does not listen yet, or uses the old configuration, is asked again soon.
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// reloads is the result of measureReloads for one gateway: how long each reload took until a new
// connection used the new configuration, and how many requests were sent and failed meanwhile.
type reloads struct {
	durations        []time.Duration
	requests, failed int
}

// measureReloads changes the gateway's configuration several times while clients send requests, and
// stores the result in t.reloads.
func (b *bench) measureReloads(ctx context.Context, t *target) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	s := b.gatewaySettings(*t.gateway, b.routes)
	s.master = true
	p, err := t.gateway.start(ctx, b.proxyCPUs, s)
	if err != nil {
		return err
	}
	defer p.stop()
	clients, err := startRole(ctx, b.otherCPUs, "clients", p.addr, strconv.Itoa(b.routes))
	if err != nil {
		return err
	}
	defer clients.stop()
	// The configuration at the start has the number 0.
	for s.generation < b.reloads {
		s.generation++
		if err := t.gateway.write(s); err != nil {
			return err
		}
		// Writing the files does not count.
		begin := time.Now()
		if err := t.gateway.reload(ctx, *t.gateway, p, s); err != nil {
			return err
		}
		if err := t.gateway.wait(ctx, p, s); err != nil {
			return err
		}
		t.reloads.durations = append(t.reloads.durations, time.Since(begin))
		select { // leave time for requests to fail when the gateway closes old connections
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
	var counts clientCounts
	if err := clients.ask(&counts); err != nil {
		return err
	}
	// Otherwise, the clients' requests did not overlap with the reloads.
	if counts.Generations < b.reloads {
		return fmt.Errorf("the clients have seen %d of %d configurations", counts.Generations, b.reloads+1)
	}
	t.reloads.requests = counts.Requests
	t.reloads.failed = counts.Failed
	if counts.Failed > 0 {
		fmt.Fprintf(b.log, "%s: the first failed request: %s\n", t.name, counts.First)
	}
	return nil
}

// printGateways writes the comparison of gateways as Markdown. args are the arguments of the program, which the
// heading shows.
func (b *bench) printGateways(w io.Writer, args string) {
	b.printHead(w, args)
	// The loops are two for each number of routes: a closed one and an open one.
	for _, protocol := range []string{b.loops[0].protocol, b.loops[2].protocol} {
		full := loop{protocol, closedLoopRate}
		fixed := loop{protocol, gatewayRate}
		fmt.Fprintf(w, "\n%s:\n\n| gateway | requests/s | CPU µs (minimum) | p99 µs | memory MiB | CPU µs at %d/s | p99 µs at %d/s |\n",
			protocol, gatewayRate, gatewayRate)
		fmt.Fprintln(w, "|---|--:|--:|--:|--:|--:|--:|")
		for _, t := range b.targets {
			median := func(l loop, f func(sample) float64) float64 { return t.quantile(l, f, 0.5) }
			resident := func(s sample) float64 { return s.resident }
			fmt.Fprintf(w, "| %s | %.0f | %.1f (%.1f) | %.0f | %.1f |",
				t.name, median(full, rate), median(full, cpu), t.quantile(full, cpu, 0), median(full, p99), median(full, resident))
			// A gateway that does not keep up has no meaningful latency at this rate.
			if reached := median(fixed, rate); reached < 0.9*gatewayRate {
				fmt.Fprintf(w, " – | only %.0f/s |\n", reached)
			} else {
				fmt.Fprintf(w, " %.1f | %.0f |\n", median(fixed, cpu), median(fixed, p99))
			}
		}
	}
	if b.reloads == 0 {
		return
	}
	fmt.Fprintf(w, "\n%d reloads with %d routes under load:\n\n", b.reloads, b.routes)
	fmt.Fprint(w, "| gateway | median of a reload | longest | requests | failed |\n|---|--:|--:|--:|--:|\n")
	for _, t := range b.targets {
		r := t.reloads
		// Over the sorted durations, 0.5 is the median and 1 the longest.
		ms := func(q float64) time.Duration { return quantile(r.durations, q).Round(time.Millisecond) }
		fmt.Fprintf(w, "| %s | %v | %v | %d | %d |\n", t.name, ms(0.5), ms(1), r.requests, r.failed)
	}
}
