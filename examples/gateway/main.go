// Command gateway is a custom gateway made of gotower's packages: its own mux,
// its own authentication, routes and a canary split from a file that is followed
// as it changes, and a page that shows what it does.
//
//	go run ./examples/gateway
//
// Without -backend it starts three versions of a small service to stand behind
// it.
// gateway.go is the path of a request.
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

// grace is how long requests may take to end once the gateway is told to.
const grace = 30 * time.Second

// run serves until ctx ends. It prints where once it can be connected to, and
// logs to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "`address` for clients")
	admin := flags.String("admin", "127.0.0.1:8081", "`address` for the page that shows what the gateway does; give it to nobody else")
	profile := flags.String("profile", "examples/gateway/gateway.yaml", "`file` with the routes and the split, or a directory of such")
	key := flags.String("key", "sesame", "what clients must send as a bearer `token`")
	backends := make(table)
	flags.Var(backends, "backend", "`name:port=ip:port,...` of a target of the split; may be repeated; without it, three are started here")
	switch err := cli.Parse(flags, args, stderr); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("gateway: %w", err)
	}
	if *key == "" {
		return fmt.Errorf("gateway: %w", cli.Misuse(errors.New("-key is empty: every request without a token would have it")))
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))

	var behind, servers serve.Group
	if err := prepare(ctx, *profile, backends, &behind); err != nil {
		behind.Close()
		return fmt.Errorf("gateway: %w", err)
	}
	// A request that is on its way when the gateway is told to end may be sent once
	// more, or to an endpoint that had none yet.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g := newGateway(background, file.New(*profile, file.WithLogger(log)), static.New(backends), *key, log)
	at := servers.Front("clients", *listen, g.clients(), grace)
	page := servers.HTTP("admin", *admin, g.admin())
	if err := servers.Err(); err != nil {
		behind.Close()
		servers.Close()
		return fmt.Errorf("gateway: %w", err)
	}
	fmt.Fprintf(stdout, "clients: http://%s/books  admin: http://%s/\n", at, page)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return behind.Run(background, grace, log) })
	running.Go(func() error {
		defer stop()
		return servers.Run(ctx, grace, log)
	})
	return running.Wait()
}

// prepare adds backends, if there are none, and looks whether the profile goes
// with them.
func prepare(ctx context.Context, profile string, backends table, behind *serve.Group) error {
	if len(backends) == 0 {
		if err := backends.start(behind); err != nil {
			return err
		}
	}
	return checkProfile(ctx, profile, backends)
}
