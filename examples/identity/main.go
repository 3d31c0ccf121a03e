// Command identity is a small certificate authority. It serves linkerd's identity API, for
// mutual TLS between proxies on one machine.
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

// initialize writes a key and a certificate signing request for a proxy.
func initialize(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("identity init", flag.ContinueOnError)
	dir := flags.String("dir", "", "`directory` for key.p8 and csr.der, created if missing (required)")
	name := flags.String("name", "", "`identity` of the proxy: DNS-like, or spiffe:// (required)")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	if *dir == "" || *name == "" {
		return cli.Misuse(errors.New("identity init: -dir and -name are required"))
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

// minLifetime is twice the 10 s for which proxies wait before they renew a certificate.
const minLifetime = 20 * time.Second

// certify serves the identity API until ctx ends.
func certify(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("identity", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8080", "`address` to serve gRPC on")
	dir := flags.String("dir", "", "`directory` of the authority, created if missing (required)")
	lifetime := flags.Duration("lifetime", 24*time.Hour, "validity of a certificate, at least 20s")
	domain := flags.String("trust-domain", "cluster.local", "trust `domain` of all names")
	name := flags.String("name", "", "DNS-like `identity` of the TLS server; default: cleartext")
	tokenFile := flags.String("token-file", "", "`file` with the token for all names")
	tokens := flags.String("tokens", "", "`directory` with one token file per name")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "\"identity init\" writes the files that a proxy needs, see identity init -help.")
		fmt.Fprintln(flags.Output(), "Usage of identity:")
		flags.PrintDefaults()
	}
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	switch {
	case *dir == "":
		return cli.Misuse(errors.New("identity: -dir is required"))
	case (*tokenFile == "") == (*tokens == ""):
		return cli.Misuse(errors.New("identity: -token-file or -tokens is required, but not both"))
	case *lifetime < minLifetime:
		return cli.Misuse(fmt.Errorf(
			"identity: -lifetime %v: must be at least %v, because proxies renew at most every 10s",
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

// checkTokens checks the file or directory of the tokens. If it is missing, checkTokens
// only logs a warning, because tokens are read for each request.
func checkTokens(file, dir string, log *slog.Logger) error {
	info, err := os.Stat(cmp.Or(file, dir))
	switch {
	case err != nil:
		log.Warn("the tokens are missing: no name is certified before they exist", "err", err)
	case file != "" && info.IsDir():
		return fmt.Errorf("-token-file %s is a directory: must be a file; use -tokens for a directory", file)
	case dir != "" && !info.IsDir():
		return fmt.Errorf("-tokens %s: must be a directory; use -token-file for a file", dir)
	}
	return nil
}

func parse(flags *flag.FlagSet, args []string, help io.Writer) error {
	if err := cli.Parse(flags, args, help); err != nil {
		return fmt.Errorf("%s: %w", flags.Name(), err)
	}
	return nil
}
