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

// running is the cluster at work.
type running struct {
	cluster
	options

	dir       string
	processes []*process
	proxies   map[string]*process // by the names of the processes
	capture   *process
	captured  []wire.Flow
	watcher   *watcher
}

// run is the whole story, in the sandbox.
func run(ctx context.Context, dir string, o options) error {
	begun := time.Now()
	r := &running{cluster: newCluster(), options: o, dir: dir, proxies: map[string]*process{}}
	for _, step := range []struct {
		name  string
		do    func(context.Context) error
		fault error // of what failed, if it did
	}{
		{"sandbox", func(context.Context) error { return furnish(dir, r.hosts()) }, errCannot},
		{"network", r.startNetwork, errCannot}, // the kernel may lack bridges
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
	fmt.Printf("\n%d of %d hold, %.1f s\n", len(r.checks())-failed, len(r.checks()), time.Since(begun).Seconds())
	if failed > 0 {
		r.tails()
		return errFailed
	}
	return nil
}

// startNetwork makes the pods, and listens to what is said between them.
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
		said, err := os.ReadFile(p.log)
		return bytes.Contains(said, []byte("listening on")), errors.Join(err, p.ended())
	})
}

// redirect makes each pod with a proxy lead its connections there.
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

// start runs a program in a pod for as long as this one runs.
func (r *running) start(in pod, uid int, name string, env []string, argv ...string) (*process, error) {
	// The end of the sandbox ends it: there is no context to do so.
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

// alive is why a process is gone that should be there.
func (r *running) alive() error {
	for _, p := range r.processes {
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// tails shows the last that everybody said.
func (r *running) tails() {
	for _, p := range r.processes {
		fmt.Printf("\n%s:\n%s\n", p.name, p.tail())
	}
}

// until waits for something to be so, or impossible.
func until(ctx context.Context, what string, is func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if done, err := is(); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, context.Cause(ctx))
		}
	}
}
