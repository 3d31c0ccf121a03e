// Command install prints the Kubernetes objects of the control plane. Its subcommand check
// verifies a cluster before and after the installation.
//
//	go run ./examples/install | kubectl apply -f -
//	go run ./examples/install check
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/install/manifest"
	"github.com/gotower/gotower/examples/internal/cli"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	// os.Exit skips deferred calls, so stop is called before.
	stop()
	os.Exit(cli.Status(os.Stderr, "install", err))
}

// run prints the objects, or checks the cluster if the first argument is "check".
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "check" {
		return runCheck(ctx, args[1:], stdout, stderr)
	}
	o := manifest.Options{Config: injector.Default(), CRDs: true}
	var anchors, issuer, key string
	f := flag.NewFlagSet("install", flag.ContinueOnError)
	injector.AddFlags(f, &o.Config)
	f.BoolVar(&o.HA, "ha", false, "three replicas on different nodes, and -failure-policy Fail by default")
	f.StringVar(&o.FailurePolicy, "failure-policy", "", "`policy` of the webhooks: Ignore or Fail (default Ignore, with -ha Fail)")
	f.BoolVar(&o.CRDs, "crds", true, "print the CustomResourceDefinitions; false in a cluster that has those of linkerd")
	f.BoolVar(&o.KeepIdentity, "keep-identity", false, "do not print trust anchors and issuer; for an upgrade")
	f.StringVar(&anchors, "trust-anchors", "", "`file` with the trust anchors in PEM; default: a generated root")
	f.StringVar(&issuer, "issuer", "", "`file` with the certificate of the issuer in PEM")
	f.StringVar(&key, "issuer-key", "", "`file` with the key of the issuer in PEM")
	cli.Describe(f, "usage: install [flags]         prints the Kubernetes objects of the control plane\n"+
		"       install check [flags]   verifies a cluster")
	if err := cli.Parse(f, args, stdout); err != nil {
		return err
	}
	// With several replicas, the webhook is always there, so pods without a proxy need not be accepted.
	if o.FailurePolicy == "" {
		o.FailurePolicy = "Ignore"
		if o.HA {
			o.FailurePolicy = "Fail"
		}
	}
	var err error
	if o.Identity, err = readIdentity(o, anchors, issuer, key); err != nil {
		return err
	}
	text, err := o.Render()
	if err != nil {
		return cli.Misuse(err)
	}
	_, err = stdout.Write(text)
	return err
}

// readIdentity reads the identity from three files: the trust anchors, the issuer and its
// key. It generates an identity if none of the three paths is given. It returns an error
// if only some are given, or if KeepIdentity is also set.
func readIdentity(o manifest.Options, anchors, issuer, key string) (i manifest.Identity, err error) {
	// count is the number of flags that are given.
	count := 0
	for dst, path := range map[*[]byte]string{&i.Anchors: anchors, &i.Issuer: issuer, &i.Key: key} {
		if path != "" {
			count++
			if *dst, err = os.ReadFile(path); err != nil {
				return i, err
			}
		}
	}
	// All three files belong together.
	switch {
	case count == 0:
		return manifest.NewIdentity(o.TrustDomain)
	case count < 3 || o.KeepIdentity:
		return i, cli.Misuse(errors.New("-trust-anchors, -issuer and -issuer-key: must be given together, and without -keep-identity"))
	}
	return i, nil
}
