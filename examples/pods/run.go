package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gotower/gotower/examples/pods/wire"
)

// running is the cluster's state while it runs.
type running struct {
	cluster
	options

	dir       string // directory for all files
	processes []*process
	proxies   map[string]*process // by the name of the process
	capture   *process            // process of tcpdump
	captured  []wire.Flow         // all flows, once the capture is complete
	watcher   *watcher            // client of the taps; nil before its first use
	answered  int                 // the two web pods' responses to meshed clients, up to the checks on metrics
	apiServer *apiServer          // nil without the flag -kubernetes
}

// run starts the cluster in the sandbox and runs the checks. dir is the directory for all
// files.
func run(ctx context.Context, dir string, o options) error {
	begun := time.Now()
	r := &running{cluster: newCluster(), options: o, dir: dir, proxies: map[string]*process{}}
	r.redis.direct, r.api.direct = o.kubernetes, !o.kubernetes // Kubernetes: direct for opaque ports of pods with a proxy
	// The steps depend on each other in this order.
	for _, step := range []struct {
		name  string
		do    func(context.Context) error
		fault error // returned if the step fails
	}{
		{"sandbox", func(context.Context) error { return mountSandbox(dir, r.hosts()) }, errSkip},
		{"network", r.startNetwork, errSkip}, // the kernel may lack bridges
		{"redirects", r.redirect, errFailed},
		{"control plane", r.startControl, errFailed},
		{"proxies", r.startProxies, errFailed},
		{"applications", r.startApplications, errFailed},
	} {
		limited, cancel := context.WithTimeout(ctx, stepTimeout)
		err := step.do(limited)
		cancel()
		if err != nil {
			// The last lines of all programs show why the step failed.
			r.tails()
			return fmt.Errorf("%w: %s: %w", step.fault, step.name, err)
		}
	}
	fmt.Printf("%d pods and %d processes after %.1f s\n\n", len(r.pods()), len(r.processes), time.Since(begun).Seconds())
	failed := r.verify(ctx, os.Stdout)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fmt.Printf("\n%d of %d passed, %.1f s\n", len(r.checks())-failed, len(r.checks()), time.Since(begun).Seconds())
	if failed > 0 {
		r.tails()
		return errFailed
	}
	return nil
}

// startNetwork creates the pods and starts to capture their traffic.
func (r *running) startNetwork(ctx context.Context) error {
	for _, sub := range []string{"logs", "run"} {
		if err := os.MkdirAll(filepath.Join(r.dir, sub), 0o755); err != nil { //nolint:gosec // other users run there
			return err
		}
	}
	if err := createNetwork(ctx, r.pods()); err != nil {
		return err
	}
	// -s 0 captures whole packets, -B sets a buffer of 64 MiB, and -U writes each packet at once.
	p, err := r.start(pod{}, root, "tcpdump", nil,
		"tcpdump", "-i", bridge, "-n", "-s", "0", "-B", "65536", "--immediate-mode", "-U", "-Z", "root", "-w", r.path("wire.pcap"), "tcp")
	if err != nil {
		return err
	}
	r.capture = p
	// A packet before this line would be missing in the capture.
	return until(ctx, "tcpdump to listen", func() (bool, error) {
		text, err := os.ReadFile(p.log)
		return bytes.Contains(text, []byte("listening on")), errors.Join(err, p.ended())
	})
}

// redirect sets the iptables rules of each pod with a proxy.
func (r *running) redirect(ctx context.Context) error {
	for _, p := range r.meshed() {
		if _, err := output(command(ctx, p, root, nil, r.bin("init"),
			// Connections of the proxy's user are not redirected, and neither are those to the proxy's own ports or
			// to the API server.
			"-p", strconv.Itoa(inboundPort), "-o", strconv.Itoa(outboundPort), "-u", strconv.Itoa(proxy), "--iptables-mode", r.mode,
			"--inbound-ports-to-ignore", fmt.Sprintf("%d,%d", tapPort, adminPort), "--outbound-ports-to-ignore", strconv.Itoa(apiPort),
		)); err != nil {
			return err
		}
	}
	return nil
}

// start starts a program in the given pod, as the user uid. If the program still runs at the end
// of the sandbox, the kernel kills it.
func (r *running) start(in pod, uid int, name string, env []string, argv ...string) (*process, error) {
	// The program needs no context, because the end of the sandbox kills it.
	p, err := launch(filepath.Join(r.dir, "logs"), name, command(context.Background(), in, uid, env, argv...))
	if err == nil {
		r.processes = append(r.processes, p)
	}
	return p, err
}

// path returns a file's path in r.dir, the directory for all of the program's files.
func (r *running) path(name ...string) string {
	return filepath.Join(append([]string{r.dir}, name...)...)
}

// bin returns the path of a program that was built.
func (r *running) bin(name string) string { return r.path("bin", name) }

// alive returns an error if one of the processes has ended.
func (r *running) alive() error {
	for _, p := range r.processes {
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// tails prints the last lines that each process printed.
func (r *running) tails() {
	for _, p := range r.processes {
		fmt.Printf("\n%s:\n%s\n", p.name, p.tail())
	}
}

// until calls done until it returns true or an error. If ctx ends first, it returns an error that
// mentions goal.
func until(ctx context.Context, goal string, done func() (bool, error)) error {
	// 20 ms are short, compared to a step, and cheap enough for a condition that starts a program.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", goal, context.Cause(ctx))
		}
	}
}
