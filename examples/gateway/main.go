// Command gateway is an HTTP gateway that is configured by one YAML file.
//
//	gateway run FILE                   serves
//	gateway check FILE                 reports the mistakes in a file
//	gateway explain FILE METHOD URL    reports the route and the service of a request
//
// Read gateway.go first. It has the path of a request, and shows how the parts of the
// library fit together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/gateway/kube"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, "gateway", err))
}

const usage = `gateway is an HTTP gateway that is configured by one YAML file. It routes requests by host, path, method,
header and query to balanced services, with retries, timeouts, limits and a live view of the requests.

  gateway run FILE                               serves until SIGTERM; reloads FILE on changes and on SIGHUP
  gateway check FILE                             reports each mistake in FILE with its line and column
  gateway explain FILE METHOD URL [-H 'A: b']    reports the route and the service that a request would use

examples/gateway/complete.yaml has every field with its default.
`

// run runs the command that args specify. It prints results to stdout and logs to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage) }
	header := make(http.Header)
	flags.Func("H", "", func(field string) error { return addField(header, field) })
	var words []string // without flags, which may be before, after and between them
	for rest := args; ; rest = flags.Args()[1:] {
		if err := cli.ParseFlags(flags, rest, stderr); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		words = append(words, flags.Arg(0))
	}
	err := cli.Misuse(errors.New("want run FILE, check FILE, or explain FILE METHOD URL [-H 'Name: value']"))
	switch {
	case len(words) == 2 && words[0] == "run":
		err = serveFile(ctx, words[1], stdout, slog.New(slog.NewTextHandler(stderr, nil)))
	case len(words) == 2 && words[0] == "check":
		if _, err = config.Load(words[1]); err == nil {
			fmt.Fprintf(stdout, "%s is valid\n", words[1])
		}
	case len(words) == 4 && words[0] == "explain":
		err = explain(ctx, words[1], words[2], words[3], header, stdout)
	}
	return err
}

// serveFile implements the command "run". It serves the configuration at path until ctx
// ends. It prints the addresses of the listeners as soon as they accept connections. After
// the end of ctx, it waits for open requests, at most for the drain timeout.
func serveFile(ctx context.Context, path string, stdout io.Writer, log *slog.Logger) error {
	c, err := config.Load(path)
	if err != nil {
		return err
	}
	var cluster *kube.Watcher
	if c.Kubernetes != nil {
		if cluster, err = kube.New(c.Kubernetes, log); err != nil {
			return err
		}
	}
	// Requests that are open at shutdown may be retried, or need a new endpoint.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, err := newGateway(background, c, log)
	if err != nil {
		return err
	}
	accessLog, err := newAccessLog(c.AccessLog, stdout)
	if err != nil {
		return err
	}
	defer accessLog.Close()
	clients := &listeners{log: log, handler: g.listenerHandler(accessLog), open: make(map[string]*listener)}
	if err := clients.load(c); err != nil {
		return err
	}
	var operators serve.Group
	both := &merger{file: c, watches: c.Kubernetes != nil, load: func(c *config.Config) error {
		to, err := accessLog.open(c.AccessLog)
		if err != nil {
			return err
		}
		if err := clients.load(c); err != nil {
			if to != nil {
				_ = to.Close()
			}
			return err
		}
		accessLog.use(to)
		return g.load(background, c)
	}}
	admin := newAdmin(g, texts(c.Admin.Hosts), func() bool { return g.isLoaded() && both.isComplete() })
	page := operators.HTTP("admin", string(c.Admin.Address), admin)
	if err := operators.Err(); err != nil {
		clients.shutdown()
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(clients.addresses())) {
		fmt.Fprintf(stdout, "%s: %s\n", name, clients.addresses()[name])
	}
	fmt.Fprintf(stdout, "admin: http://%s/\n", page)

	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	files := &reloader{path: path, log: log, every: time.Second / 2, started: c, seen: c.Contents(), load: both.setFile}
	running, ended := errgroup.WithContext(ctx)
	running.Go(func() error { files.run(ended, hangup); return nil })
	if c.Kubernetes != nil {
		running.Go(func() error { cluster.Run(ended, both.setCluster); return nil })
	}
	if c.Admin.Tap != "off" {
		running.Go(func() error {
			return tap.Serve(background, c.Admin.Tap, g.tap, tap.WithDescribe(func() layer.Node { return g.describe() }))
		})
	}
	exporting, flush := context.WithCancel(context.WithoutCancel(ctx))
	if g.tracing != nil {
		running.Go(func() error { g.tracing.run(exporting); return nil })
	}
	running.Go(func() error { return operators.Run(background, time.Second, log) })
	running.Go(func() error {
		<-ended.Done()
		admin.draining.Store(true)
		clients.shutdown()
		flush() // all spans have ended
		stop()
		return nil
	})
	return running.Wait()
}

func texts[T ~string](list []T) []string {
	all := make([]string, 0, len(list))
	for _, t := range list {
		all = append(all, string(t))
	}
	return all
}
