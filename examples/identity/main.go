// Command identity is a small certificate authority. It serves linkerd's identity API, for
// mutual TLS between proxies on one machine or in a Kubernetes cluster.
//
//	go run ./examples/identity -dir /tmp/ca -token-file /tmp/token
//	go run ./examples/identity -kubernetes -dir /var/run/linkerd/identity/issuer
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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/identity/ca"
	"github.com/gotower/gotower/examples/identity/kube"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	// os.Exit skips deferred calls, so stop is called before.
	stop()
	os.Exit(cli.Status(os.Stderr, "identity", err))
}

// run writes a proxy's private key and certificate signing request if the first argument is
// "init". Otherwise it runs the certificate authority.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "init" {
		return initialize(args[1:], stdout, stderr)
	}
	return certify(ctx, args, stdout, stderr)
}

// initialize writes the key and the certificate signing request that a proxy needs for its
// identity.
func initialize(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("identity init", flag.ContinueOnError)
	dir := flags.String("dir", "", "`directory` for key.p8 and csr.der, created if missing (required)")
	name := flags.String("name", "", "`identity` of the proxy: DNS-like, or spiffe:// (required)")
	cli.Describe(flags, "identity init writes the key and the certificate signing request of a proxy.")
	if err := cli.Parse(flags, args, stderr); err != nil {
		return err
	}
	if *dir == "" || *name == "" {
		return cli.Misuse(errors.New("-dir and -name are required"))
	}
	// The key must not be readable by other users.
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return err
	}
	if err := identity.Generate(*dir, *name); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote key.p8 and csr.der for %s into %s\n", *name, *dir)
	return nil
}

// minLifetime is the lowest value for the flag -lifetime. A proxy waits at least 10 s before it
// renews its certificate. The minimum is twice this time, because the wait must not be longer
// than half of the lifetime.
const minLifetime = 20 * time.Second

// options are the authority's flags.
type options struct {
	listen, dir, domain, name string
	lifetime                  time.Duration
	tokenFile, tokens         string

	kubernetes            bool
	kubeconfig, namespace string
}

func (o *options) register(flags *flag.FlagSet) {
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` to serve gRPC on")
	flags.StringVar(&o.dir, "dir", "", "`directory` of the authority, created if missing (required); "+
		"with -kubernetes: the mounted Secret with tls.crt and tls.key")
	flags.DurationVar(&o.lifetime, "lifetime", 24*time.Hour, "validity of a certificate, at least 20s")
	flags.StringVar(&o.domain, "trust-domain", "cluster.local", "trust `domain` of all names")
	flags.StringVar(&o.name, "name", "", "DNS-like `identity` of the TLS server; default: cleartext")
	flags.StringVar(&o.tokenFile, "token-file", "", "`file` with the token for all names")
	flags.StringVar(&o.tokens, "tokens", "", "`directory` with one token file per name")
	flags.BoolVar(&o.kubernetes, "kubernetes", false, "validate tokens of ServiceAccounts by the API server of the cluster")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "with -kubernetes: `file` that specifies the API server; default: the one of this pod")
	flags.StringVar(&o.namespace, "namespace", kube.Namespace, "with -kubernetes: `namespace` of the control plane, a part of all names")
}

// check returns an error for flags that are missing or contradict each other.
func (o *options) check() error {
	switch {
	case o.dir == "":
		return errors.New("-dir is required")
	case o.kubernetes && (o.tokenFile != "" || o.tokens != ""):
		return errors.New("-kubernetes does not use -token-file and -tokens")
	// Both tests are equal if both flags are set, or none is.
	case !o.kubernetes && (o.tokenFile == "") == (o.tokens == ""):
		return errors.New("-token-file or -tokens is required, but not both")
	case o.domain != "" && ca.CheckTrustDomain(o.domain) != nil:
		return fmt.Errorf("-trust-domain: %w", ca.CheckTrustDomain(o.domain))
	case o.lifetime < minLifetime:
		return fmt.Errorf("-lifetime %v: must be at least %v, because proxies renew at most every 10s", o.lifetime, minLifetime)
	}
	return nil
}

// certify serves the identity API until ctx ends.
func certify(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("identity", flag.ContinueOnError)
	var o options
	o.register(flags)
	cli.Describe(flags, "usage: identity [flags]        serves linkerd's identity API\n"+
		"       identity init [flags]   writes the files that a proxy needs")
	if err := cli.Parse(flags, args, stderr); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return cli.Misuse(err)
	}
	log, lines := cli.Log(stderr, func(w io.Writer) slog.Handler { return lograte.New(cli.TextLog(w)) })
	defer cli.Flush(lines)
	if o.kubernetes {
		// In a cluster, the API server validates tokens.
		return o.serveCluster(ctx, stdout, log)
	}
	if err := checkTokens(o.tokenFile, o.tokens, log); err != nil {
		return cli.Misuse(err)
	}
	authority, err := ca.Open(o.dir, o.domain)
	if err != nil {
		return err
	}
	// The directory of -tokens is only used without -token-file.
	check := ca.TokenDir(o.tokens)
	if o.tokenFile != "" {
		check = ca.TokenFile(o.tokenFile)
	}
	return o.serve(ctx, authority, check, "in "+filepath.Join(o.dir, ca.AnchorsFile), stdout, log)
}

// serve serves the identity API of the authority until ctx ends. It first prints its address and
// the parameter anchors, a text that describes where the trust anchors are.
func (o *options) serve(
	ctx context.Context, authority *ca.Authority, check ca.Check, anchors string, stdout io.Writer, log *slog.Logger,
) error {
	authority.Lifetime = o.lifetime
	authority.Log = log
	// The authority certifies its own server, whose name must be in its domain.
	if o.name != "" {
		if err := authority.CheckServerName(o.name); err != nil {
			return fmt.Errorf("-name: %w", err)
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("-listen %s: %w", o.listen, err)
	}
	fmt.Fprintf(stdout, "certifying names of %s on %s; trust anchors are %s\n", o.domain, l.Addr(), anchors)
	return ca.Serve(ctx, l, authority, check, o.name)
}

// serveCluster serves the identity API for the ServiceAccounts of a cluster until ctx ends.
// It accepts no connection before the trust anchors and the issuer are loaded.
func (o *options) serveCluster(ctx context.Context, stdout io.Writer, log *slog.Logger) error {
	client, err := kube.Client(o.kubeconfig)
	// With the flag, the error should name the file.
	if err != nil && o.kubeconfig != "" {
		return fmt.Errorf("-kubeconfig %s: %w", o.kubeconfig, err)
	}
	if err != nil {
		return err
	}
	authority := ca.Empty(o.domain)
	// loaded is closed when the first anchors and issuer have been read.
	loaded := make(chan struct{})
	first := sync.OnceFunc(func() { close(loaded) })
	// Replace is called for each new version of the files. The first valid one closes loaded.
	source := kube.Source{Client: client, Namespace: o.namespace, Dir: o.dir, Log: log, Replace: func(anchors, cert, key []byte) error {
		err := authority.Replace(anchors, cert, key)
		if err == nil {
			first()
		}
		return err
	}}
	// If one of them fails, ctx ends the other one.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { source.Run(ctx); return nil })
	group.Go(func() error {
		select {
		case <-loaded:
		case <-ctx.Done():
			return nil
		}
		check := kube.NewReviewer(client, o.namespace, o.domain, log).Check
		return o.serve(ctx, authority, check, "of the ConfigMap "+kube.AnchorsConfigMap, stdout, log)
	})
	return group.Wait()
}

// checkTokens checks the path in -token-file or -tokens. It returns an error if file is a
// directory or dir is a file. A path that does not exist only causes a warning, because the
// authority reads tokens at each request.
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
