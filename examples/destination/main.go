// Command destination is a destination and policy controller. It serves linkerd's destination and
// policy APIs from a YAML file, which it reloads when it changes, or from a Kubernetes cluster.
//
//	go run ./examples/destination -config examples/destination/destination.yaml
//	go run ./examples/destination -kubernetes -kubeconfig ~/.kube/config
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/cli"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	// os.Exit skips deferred calls, so stop is called before.
	stop()
	os.Exit(cli.Status(os.Stderr, "destination", err))
}

// run reads the configuration and serves until ctx ends. When it is ready to accept connections,
// it prints one line to stdout. Logs go to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("destination", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8086", "`address` to serve gRPC on, in cleartext")
	config := flags.String("config", "", "YAML `file` with the destinations; this or -kubernetes is required")
	verbose := flags.Bool("v", false, "log every stream")
	var cluster kubernetes
	cluster.flags(flags)
	cli.Describe(flags, "destination serves linkerd's destination and policy APIs from a YAML file or a Kubernetes cluster.")
	switch err := cli.Parse(flags, args, stderr); {
	case err != nil:
		return err
	// Exactly one of the two sources must be chosen.
	case (*config == "") != cluster.on:
		return cli.Misuse(errors.New("either -config or -kubernetes is required"))
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	log, lines := cli.Log(stderr, func(w io.Writer) slog.Handler {
		return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	})
	defer cli.Flush(lines)

	c := controller.New(log)
	if cluster.on {
		return cluster.serve(ctx, c, *listen, log, stdout)
	}
	cfg, watch, err := c.Load(*config)
	if err != nil {
		return err
	}
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "serving %d destinations of %s on %s\n", len(cfg.Destinations), *config, lis.Addr())

	// If serving fails, ctx ends the watch, and the other way round.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		watch(ctx)
		return nil
	})
	group.Go(func() error { return c.Serve(ctx, lis) })
	return group.Wait()
}
