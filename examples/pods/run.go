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

// running is the running cluster.
type running struct {
	cluster
	options

	dir       string
	processes []*process
	proxies   map[string]*process // by name
	capture   *process
	captured  []wire.Flow
	watcher   *watcher
}

// run starts the cluster and runs the checks, in the sandbox.
func run(ctx context.Context, dir string, o options) error {
	begun := time.Now()
	r := &running{cluster: newCluster(), options: o, dir: dir, proxies: map[string]*process{}}
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
		limited, cancel := context.WithTimeout(ctx, patience)
		err := step.do(limited)
		cancel()
		if err != nil {
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

// startNetwork creates the pods and captures their traffic.
func (r *running) startNetwork(ctx context.Context) error {
	for _, sub := range []string{"logs", "run"} {
		if err := os.MkdirAll(filepath.Join(r.dir, sub), 0o755); err != nil { //nolint:gosec // other users run there
			return err
		}
	}
	if err := connect(ctx, r.pods()); err != nil {
		return err
	}
	p, err := r.start(pod{}, root, "tcpdump", nil,
		"tcpdump", "-i", bridge, "-n", "-s", "0", "-B", "65536", "--immediate-mode", "-U", "-Z", "root", "-w", r.path("wire.pcap"), "tcp")
	if err != nil {
		return err
	}
	r.capture = p
	return until(ctx, "tcpdump to listen", func() (bool, error) {
		text, err := os.ReadFile(p.log)
		return bytes.Contains(text, []byte("listening on")), errors.Join(err, p.ended())
	})
}

// redirect redirects the connections of each pod with a proxy.
func (r *running) redirect(ctx context.Context) error {
	for _, p := range r.meshed() {
		if _, err := output(command(ctx, p, root, nil, r.bin("init"),
			"-p", strconv.Itoa(inboundPort), "-o", strconv.Itoa(outboundPort), "-u", strconv.Itoa(proxy), "--iptables-mode", r.mode,
			"--inbound-ports-to-ignore", fmt.Sprintf("%d,%d", tapPort, adminPort),
		)); err != nil {
			return err
		}
	}
	return nil
}

// start runs a program in a pod until this program ends.
func (r *running) start(in pod, uid int, name string, env []string, argv ...string) (*process, error) {
	// The end of the sandbox ends it, without a context.
	p, err := launch(filepath.Join(r.dir, "logs"), name, command(context.Background(), in, uid, env, argv...))
	if err == nil {
		r.processes = append(r.processes, p)
	}
	return p, err
}

func (r *running) path(name ...string) string {
	return filepath.Join(append([]string{r.dir}, name...)...)
}

func (r *running) bin(name string) string { return r.path("bin", name) }

// alive returns an error if a process has ended.
func (r *running) alive() error {
	for _, p := range r.processes {
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// tails prints the last output of all processes.
func (r *running) tails() {
	for _, p := range r.processes {
		fmt.Printf("\n%s:\n%s\n", p.name, p.tail())
	}
}

// until waits until done returns true or an error.
func until(ctx context.Context, what string, done func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, context.Cause(ctx))
		}
	}
}
