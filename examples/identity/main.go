// Command identity is a small certificate authority: it serves linkerd's
// identity API, so that proxies on one machine can prove to each other who they
// are.
//
//	go run ./examples/identity -dir /tmp/ca -token-file /tmp/token
//	go run ./examples/identity init -dir /tmp/web -name web.default.serviceaccount.identity.linkerd.cluster.local
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, err))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "init" {
		return initialize(args[1:], stdout, stderr)
	}
	return certify(ctx, args, stdout, stderr)
}

// initialize writes what a proxy needs before it starts.
func initialize(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("identity init", flag.ContinueOnError)
	dir := flags.String("dir", "", "`directory` for key.p8 and csr.der, made if it is not there (required)")
	name := flags.String("name", "", "`identity` of the proxy: DNS-like, or spiffe:// (required)")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	if *dir == "" || *name == "" {
		return cli.Misuse(errors.New("identity init: -dir and -name are needed"))
	}
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return fmt.Errorf("identity init: %w", err)
	}
	if err := identity.Generate(*dir, *name); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote key.p8 and csr.der for %s into %s\n", *name, *dir)
	return nil
}

// minLifetime leaves proxies, which wait for 10 s at least before they renew, as
// long again to do it.
const minLifetime = 20 * time.Second

// certify serves until ctx ends.
func certify(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("identity", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "`address` to serve gRPC on")
	dir := flags.String("dir", "", "`directory` of the authority: read if it has one, else made (required)")
	lifetime := flags.Duration("lifetime", 24*time.Hour, "how long a certificate is valid, 20s or more")
	domain := flags.String("trust-domain", "cluster.local", "`domain` that all names are in")
	name := flags.String("name", "", "`identity`, DNS-like, to serve by TLS with; none is in cleartext")
	tokenFile := flags.String("token-file", "", "`file` with the token that gets any name")
	tokens := flags.String("tokens", "", "`directory` with a token for each name, in a file of that name")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "What a proxy needs before it starts, \"identity init\" writes: identity init -help.")
		fmt.Fprintln(flags.Output(), "Usage of identity:")
		flags.PrintDefaults()
	}
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	switch {
	case *dir == "":
		return cli.Misuse(errors.New("identity: -dir is missing"))
	case (*tokenFile == "") == (*tokens == ""):
		return cli.Misuse(errors.New("identity: either -token-file or -tokens says who may have a name"))
	case *lifetime < minLifetime:
		return cli.Misuse(fmt.Errorf(
			"identity: a -lifetime of %v is less than %v: proxies ask for a certificate no sooner than 10s after the last",
			*lifetime, minLifetime))
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if err := checkTokens(*tokenFile, *tokens, log); err != nil {
		return cli.Misuse(fmt.Errorf("identity: %w", err))
	}
	authority, err := ca.Open(*dir, *domain)
	if err != nil {
		return err
	}
	authority.Lifetime = *lifetime
	authority.Log = log
	check := ca.TokenDir(*tokens)
	if *tokenFile != "" {
		check = ca.TokenFile(*tokenFile)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	fmt.Fprintf(stdout, "certifying names of %s on %s; trust anchors are in %s\n",
		*domain, l.Addr(), filepath.Join(*dir, ca.AnchorsFile))
	return ca.Serve(ctx, l, authority, check, *name)
}

// checkTokens looks at where the tokens are, of which one of the two says. They are
// read for each request, and so they may come later; but who mistypes the name of a
// file is told now, and not by each proxy that is refused.
func checkTokens(file, dir string, log *slog.Logger) error {
	info, err := os.Stat(cmp.Or(file, dir))
	switch {
	case err != nil:
		log.Warn("there is no token here: no name is certified until there is one", "err", err)
	case file != "" && info.IsDir():
		return fmt.Errorf("-token-file %s is a directory: -tokens is for one with a token for each name", file)
	case dir != "" && !info.IsDir():
		return fmt.Errorf("-tokens %s is no directory: -token-file is for one token that gets any name", dir)
	}
	return nil
}

func parse(flags *flag.FlagSet, args []string, help io.Writer) error {
	if err := cli.Parse(flags, args, help); err != nil {
		return fmt.Errorf("%s: %w", flags.Name(), err)
	}
	return nil
}
