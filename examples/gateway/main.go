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
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/serve"
	"github.com/gotower/gotower/profiles/file"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal does not wait for the grace
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
	profile := flags.String("profile", "examples/gateway/gateway.yaml", "`file` with the routes and the split")
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
	if err := checkProfile(*profile); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))

	var servers serve.Group
	if len(backends) == 0 {
		for _, version := range []string{"v1", "v2", "next"} {
			addr := servers.HTTP("books "+version, "127.0.0.1:0", books(version))
			if err := backends.Set("books-" + version + ".example:80=" + addr); err != nil {
				return errors.Join(err, servers.Err())
			}
		}
	}
	g := newGateway(ctx, file.New(*profile, file.Logger(log)), static.New(backends), *key, log)
	at := servers.HTTP("clients", *listen, g.clients())
	page := servers.HTTP("admin", *admin, g.admin())
	if servers.Err() == nil {
		fmt.Fprintf(stdout, "clients: http://%s/books  admin: http://%s/\n", at, page)
	}
	return servers.Run(ctx, grace, log)
}

// checkProfile refuses what is wrong from the start. Later the gateway goes on
// with the last file that was good, but at the start there is none.
func checkProfile(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("no profile: %w: start it in the top folder of the repository, or say with -profile where the file is", err)
	}
	set, err := file.Parse(path, text)
	if err != nil {
		return fmt.Errorf("bad profile:\n%w", err)
	}
	if set.Profile(target) == nil {
		return fmt.Errorf("%s has no profile for %s, only for %v: it would not know where requests are to go", path, target, set.Targets())
	}
	return nil
}

// table is the backends by their names.
type table map[string][]resolve.Endpoint

func (t table) String() string { return "" }

func (t table) Set(entry string) error {
	name, addrs, ok := strings.Cut(entry, "=")
	if !ok {
		return fmt.Errorf("%q has no address: want name:port=ip:port", entry)
	}
	endpoints, err := static.Endpoints(strings.Split(addrs, ",")...)
	t[name] = append(t[name], endpoints...)
	return err
}
