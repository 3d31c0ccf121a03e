// Command gateway is a custom gateway made of gotower's packages. It has its own mux and
// authentication. Routes and a canary split come from a file that is reloaded on changes. A
// page shows the live state.
//
//	go run ./examples/gateway
//
// Without -backend it starts three versions of a small service. gateway.go is the path of
// a request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/profiles/file"
	"github.com/gotower/gotower/resolve/static"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, err))
}

// grace is the time for open requests at shutdown.
const grace = 30 * time.Second

// run serves until ctx ends. It prints the addresses when it accepts connections, and logs
// to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "`address` for clients")
	admin := flags.String("admin", "127.0.0.1:8081", "`address` of the admin page; must not be public")
	profile := flags.String("profile", "examples/gateway/gateway.yaml", "`file` with the routes and the split, or a directory of files")
	key := flags.String("key", "sesame", "bearer `token` of clients")
	backends := make(table)
	flags.Var(backends, "backend", "`name:port=ip:port,...` of a target of the split; may be repeated; default: three built-in backends")
	switch err := cli.Parse(flags, args, stderr); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("gateway: %w", err)
	}
	if *key == "" {
		return fmt.Errorf("gateway: %w", cli.Misuse(errors.New("-key must not be empty")))
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))

	var started, servers serve.Group
	if err := prepare(ctx, *profile, backends, &started); err != nil {
		started.Close()
		return fmt.Errorf("gateway: %w", err)
	}
	// Requests that are open at shutdown may be retried, or need a new endpoint.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g := newGateway(background, file.New(*profile, file.WithLogger(log)), static.New(backends), *key, log)
	at := servers.Front("clients", *listen, g.clients(), grace)
	page := servers.HTTP("admin", *admin, g.admin())
	if err := servers.Err(); err != nil {
		started.Close()
		servers.Close()
		return fmt.Errorf("gateway: %w", err)
	}
	fmt.Fprintf(stdout, "clients: http://%s/books  admin: http://%s/\n", at, page)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return started.Run(background, grace, log) })
	running.Go(func() error {
		defer stop()
		return servers.Run(ctx, grace, log)
	})
	return running.Wait()
}

// prepare starts the built-in backends if there are no others, and checks the profile.
func prepare(ctx context.Context, profile string, backends table, started *serve.Group) error {
	if len(backends) == 0 {
		if err := backends.start(started); err != nil {
			return err
		}
	}
	return checkProfile(ctx, profile, backends)
}
