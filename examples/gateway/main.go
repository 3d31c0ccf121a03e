// Command gateway is an HTTP gateway that is configured by one YAML file. "gateway help" lists
// its commands, which are in commands.go.
//
// Start reading in gateway.go. It shows the path that a request takes, and how the parts of the
// library fit together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/kube"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
)

func main() {
	ctx, stop := cli.Interrupted()
	// os.Exit skips deferred calls, so stop is called before.
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, "gateway", err))
}

// heapReserve is the size in bytes of memory that is allocated but never used. The garbage collector counts it
// as live memory, and therefore runs less often while the heap is small, as it is with some hundred connections. It
// is twice that of examples/proxy, because a request allocates twice as much: see "Memory" in BENCHMARKS.md.
const heapReserve = 12 << 20

// serveFile implements the command "run". It serves the configuration until ctx ends. It prints the
// addresses of the listeners as soon as they accept connections. After the end of ctx, it waits for
// the drain delay, and then for open requests, at most for the drain timeout.
func serveFile(ctx context.Context, line *commandLine) error {
	// Keep the reserve reachable until the end.
	defer runtime.KeepAlive(make([]byte, heapReserve))
	log, lines := cli.Log(line.stderr, line.logHandler)
	defer cli.Flush(lines)
	load, err := config.Loader(line.args[0])
	if err != nil {
		return err
	}
	// load is called again for each reload.
	c, err := load()
	if err != nil {
		return err
	}
	var cluster *kube.Watcher
	if c.Kubernetes != nil {
		if cluster, err = kube.New(c.Kubernetes, log); err != nil {
			return err
		}
	}
	// Requests that are still open at shutdown may need a retry or a new endpoint, so their
	// context must outlive ctx.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, err := newGateway(background, c, line.routes, log)
	if err != nil {
		return err
	}
	accessLog, err := newAccessLog(c.AccessLog, line.stdout, log)
	if err != nil {
		return err
	}
	// Both logs drop lines instead of blocking the gateway.
	g.registry.countDropped(map[string]*httplayer.LogWriter{"program": lines, "access": accessLog.lines})
	defer accessLog.Close()
	clients := &listeners{
		log: log, service: g.listenerService(accessLog), tcp: g.tcpServer(accessLog), open: make(map[string]*listener),
		counts: g.responses, state: g.state, challenges: &g.acme,
	}
	if err := clients.load(c); err != nil {
		return err
	}
	// operators are the servers for operators, here only the admin page.
	var operators serve.Group
	// merged loads the file's configuration and the cluster's together, whichever of them changes.
	merged := &merger{file: c, watches: c.Kubernetes != nil, load: func(c *config.Config) error {
		// Open the new log first. If the listeners cannot be changed, the old one stays in use.
		output, err := accessLog.open(c.AccessLog)
		if err != nil {
			return err
		}
		if err := clients.load(c); err != nil {
			accessLog.close(output)
			return err
		}
		accessLog.use(output)
		return g.load(background, c)
	}}
	// The gateway is ready when it has its routes and, if it watches a cluster, has read that.
	admin := newAdmin(g, texts(c.Admin.Hosts), func() bool { return g.isLoaded() && merged.isComplete() })
	if c.Admin.PProf {
		admin.addProfiles(texts(c.Admin.Hosts))
	}
	page := operators.HTTP("admin", string(c.Admin.Address), admin)
	if err := operators.Err(); err != nil {
		// The listeners are already open.
		clients.shutdown()
		return err
	}
	printAddresses(line.stdout, clients.addresses(), page)
	// The buffer keeps a signal that arrives during a reload.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	files := &reloader{
		parse: load, log: log, every: time.Second / 2, started: c, seen: c.Contents(), load: merged.setFile, loaded: g.state.reloaded,
	}
	// The first function that returns an error ends all others through ended.
	running, ended := errgroup.WithContext(ctx)
	running.Go(func() error { files.run(ended, hangup); return nil })
	if c.Kubernetes != nil {
		running.Go(func() error { cluster.Run(ended, merged.setCluster); return nil })
	}
	if c.Admin.Tap != "off" {
		running.Go(func() error { return g.serveTap(background, c.Admin.Tap) })
	}
	// Spans of the last requests end after ctx, so exporting outlives it.
	exporting, flush := context.WithCancel(context.WithoutCancel(ctx))
	if g.tracing != nil {
		running.Go(func() error { g.tracing.run(exporting); return nil })
	}
	running.Go(func() error { return operators.Run(background, time.Second, log) })
	running.Go(func() error {
		// The order of the shutdown: tell load balancers, wait until they react, end requests, then stop the rest.
		<-ended.Done()
		admin.draining.Store(true)
		notifyManager(background, "STOPPING=1", log)
		if ctx.Err() != nil { // not because of an error
			<-time.After(c.DrainDelay.D())
		}
		clients.shutdown()
		flush() // all spans have ended
		stop()
		return nil
	})
	notifyManager(background, "READY=1", log)
	return running.Wait()
}

// printAddresses prints the address of each listener, sorted by name, and that of the admin page.
func printAddresses(stdout io.Writer, listeners map[string]string, page string) {
	for _, name := range slices.Sorted(maps.Keys(listeners)) {
		fmt.Fprintf(stdout, "%s: %s\n", name, listeners[name])
	}
	fmt.Fprintf(stdout, "admin: http://%s/\n", page)
}

// serveTap serves the tap API at address until ctx ends. "" means tapctl's default address, or a
// free port if that is taken, so that two gateways can run on one machine.
func (g *gateway) serveTap(ctx context.Context, address string) error {
	describe := tap.WithDescribe(func() layer.Node { return g.describe() })
	err := tap.Serve(ctx, address, g.tap, describe)
	// The default address is only a convenience for one gateway per machine.
	if address == "" && errors.Is(err, syscall.EADDRINUSE) {
		err = tap.Serve(ctx, "127.0.0.1:0", g.tap, describe, tap.WithOnListen(func(a net.Addr) {
			g.log.Warn("the default address of the tap is in use: serving it at another one", "address", a.String())
		}))
	}
	return err
}

// texts converts a list of named strings to plain strings.
func texts[T ~string](list []T) []string {
	all := make([]string, 0, len(list))
	for _, t := range list {
		all = append(all, string(t))
	}
	return all
}
