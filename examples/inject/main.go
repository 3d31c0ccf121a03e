// Command inject adds the proxy to the pods of Kubernetes workloads. It is a filter of
// manifests, or with -webhook an admission webhook.
//
//	go run ./examples/inject -trust-anchors anchors.pem < deployment.yaml | kubectl apply -f -
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/inject/injector"
	"github.com/gotower/gotower/examples/inject/webhook"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

func main() {
	ctx, stop := cli.Interrupted()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.Status(os.Stderr, "inject", err))
}

// command has the flags of the program.
type command struct {
	injector.Config

	anchors         string
	disableIdentity bool
	uninject        bool
	webhook         bool

	listen, admin, kubeconfig string
	service, secret, hook     string
	lifetime                  time.Duration
}

const (
	certOverlap  = 2 * time.Minute  // how long a new and an old certificate of the webhook are trusted together
	certInterval = 10 * time.Second // time between two reads of the certificate
)

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	c := command{Config: injector.Default()}
	f := flag.NewFlagSet("inject", flag.ContinueOnError)
	injector.AddFlags(f, &c.Config)
	f.StringVar(&c.anchors, "trust-anchors", "", "`file` with the trust anchors in PEM; required for an identity")
	f.BoolVar(&c.disableIdentity, "disable-identity", false, "proxies without an identity and without TLS")
	f.BoolVar(&c.uninject, "uninject", false, "remove the proxy instead")
	f.BoolVar(&c.webhook, "webhook", false, "serve as an admission webhook")
	f.StringVar(&c.listen, "listen", ":8443", "with -webhook: `address` for the API server")
	f.StringVar(&c.admin, "admin", ":9995", "with -webhook: `address` of /healthz, /readyz and /metrics")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "with -webhook: `file` with the API server; default: the cluster of the pod")
	f.StringVar(&c.service, "service", "linkerd-proxy-injector", "with -webhook: `name` of its Service")
	f.StringVar(&c.secret, "secret", "linkerd-proxy-injector-k8s-tls", "with -webhook: `name` of the Secret with the certificate")
	f.StringVar(&c.hook, "configuration", "linkerd-proxy-injector-webhook-config",
		"with -webhook: `name` of the MutatingWebhookConfiguration")
	f.DurationVar(&c.lifetime, "cert-lifetime", 30*24*time.Hour, "with -webhook: validity of a certificate; it is renewed after 2/3 of it")
	cli.Describe(f, "usage: inject [flags] [file ...]\n\ninject adds the proxy to the workloads in manifests. "+
		"Without a file, or with -, it reads standard input.")
	switch err := cli.ParseFlags(f, args, stdout); {
	case err != nil:
		return err
	case c.webhook && (c.uninject || f.NArg() > 0):
		return cli.Misuse(errors.New("-webhook: must be without -uninject and files"))
	case c.webhook && c.lifetime < 12*certOverlap:
		return cli.Misuse(fmt.Errorf("-cert-lifetime %v: must be at least %v", c.lifetime, 12*certOverlap))
	}
	if !c.uninject {
		if err := c.check(); err != nil {
			return cli.Misuse(err)
		}
	}
	if c.webhook {
		return c.serve(ctx, slog.New(slog.NewTextHandler(stderr, nil)))
	}
	return c.filter(f.Args(), stdin, stdout, stderr)
}

// check returns an error unless the flags give a valid configuration for injection.
func (c *command) check() error {
	if c.disableIdentity != (c.anchors == "") {
		return errors.New("-trust-anchors or -disable-identity is required, but not both")
	}
	config, err := c.load()
	if err != nil {
		return err
	}
	return config.Validate()
}

// load returns the configuration of the flags, with the content of the file -trust-anchors.
// It reads the file at each call, because the trust anchors may change.
func (c *command) load() (injector.Config, error) {
	config := c.Config
	if c.anchors == "" {
		return config, nil
	}
	text, err := os.ReadFile(c.anchors)
	config.TrustAnchors = string(text)
	if err == nil && strings.TrimSpace(config.TrustAnchors) == "" {
		err = fmt.Errorf("-trust-anchors %s: is empty", c.anchors)
	}
	return config, err
}

// filter writes the files to stdout with the proxy added. With -uninject, it removes the
// proxy instead. It writes a line for each workload to stderr. Without files it reads
// stdin.
func (c *command) filter(files []string, stdin io.Reader, stdout, stderr io.Writer) error {
	convert := injector.FilterUninject
	verb := "uninjected"
	if !c.uninject {
		config, err := c.load()
		if err != nil {
			return err
		}
		convert, verb = config.Filter, "injected"
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	var out []byte
	for _, name := range files {
		in, err := readFile(name, stdin)
		if err != nil {
			return err
		}
		converted, reports, err := convert(in)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, r := range reports {
			result := verb
			if r.Skipped != "" {
				result = "skipped: " + r.Skipped
			}
			fmt.Fprintf(stderr, "%s %q %s\n", strings.ToLower(r.Kind), r.Name, result)
			for _, warning := range r.Warnings {
				fmt.Fprintf(stderr, "%s %q warning: %s\n", strings.ToLower(r.Kind), r.Name, warning)
			}
		}
		out = join(out, converted)
	}
	_, err := stdout.Write(out)
	return err
}

// join appends the YAML or JSON documents b to the documents a, and separates YAML
// documents by "---".
func join(a, b []byte) []byte {
	if len(a) > 0 && a[len(a)-1] != '\n' {
		a = append(a, '\n')
	}
	if len(a) > 0 && len(b) > 0 && b[0] != '{' && !bytes.HasPrefix(b, []byte("---")) {
		a = append(a, "---\n"...)
	}
	return append(a, b...)
}

func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

// serve runs the admission webhook until ctx ends.
func (c *command) serve(ctx context.Context, log *slog.Logger) error {
	config, err := kubeobject.ClientConfig(c.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	server := webhook.Server{
		Client: client, Config: c.load, Listen: c.listen, Admin: c.admin, Log: log,
		Certificate: &webhook.Certificate{
			Client: client, Namespace: c.Namespace, Secret: c.secret, Configuration: c.hook,
			Names:    []string{fmt.Sprintf("%s.%s.svc", c.service, c.Namespace)},
			Lifetime: c.lifetime, Overlap: certOverlap, Interval: certInterval, Log: log,
		},
	}
	return server.Run(ctx)
}
