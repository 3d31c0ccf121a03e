// Command inject adds the proxy to Kubernetes workloads. It is a filter for manifests, or with
// -webhook an admission webhook.
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

// command holds the program's flags.
type command struct {
	injector.Config

	anchors         string
	disableIdentity bool
	uninject        bool
	annotate        bool
	webhook         bool
	validate        bool

	// for -webhook
	listen, admin, kubeconfig string
	service, secret, hook     string        // names of the Service, the Secret and the webhook configuration
	lifetime                  time.Duration // of a certificate
}

// validatorName is the name of linkerd's Service for the validation of ServiceProfiles. Its Secret
// and its webhook configuration have it as a prefix.
const validatorName = "linkerd-sp-validator"

const (
	certOverlap  = 2 * time.Minute  // how long a new and an old certificate of the webhook are trusted together
	certInterval = 10 * time.Second // time between two reads of the certificate

	// minLifetime is the shortest -cert-lifetime. A rotation begins in the last third of the lifetime. It
	// takes two overlaps, and a third of minLifetime is twice as much.
	minLifetime = 12 * certOverlap
)

// run parses args and runs the command: as a filter, or with -webhook until ctx ends.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	c := command{Config: injector.Default()}
	f := flag.NewFlagSet("inject", flag.ContinueOnError)
	injector.AddFlags(f, &c.Config)
	f.StringVar(&c.anchors, "trust-anchors", "", "`file` with the trust anchors in PEM; required for an identity")
	f.BoolVar(&c.disableIdentity, "disable-identity", false, "proxies without an identity and without TLS")
	f.BoolVar(&c.uninject, "uninject", false, "remove the proxy instead")
	f.BoolVar(&c.annotate, "annotate", false, "only add the annotation "+injector.InjectAnnotation+", for a webhook that injects the pods")
	f.BoolVar(&c.webhook, "webhook", false, "serve as an admission webhook")
	f.StringVar(&c.listen, "listen", ":8443", "with -webhook: `address` for the API server")
	f.StringVar(&c.admin, "admin", ":9995", "with -webhook: `address` of /healthz, /readyz and /metrics")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "with -webhook: `file` with the API server; default: the cluster of the pod")
	f.StringVar(&c.service, "service", "linkerd-proxy-injector", "with -webhook: `name` of its Service")
	f.StringVar(&c.secret, "secret", "linkerd-proxy-injector-k8s-tls", "with -webhook: `name` of the Secret with the certificate")
	f.StringVar(&c.hook, "configuration", "linkerd-proxy-injector-webhook-config",
		"with -webhook: `name` of the MutatingWebhookConfiguration")
	f.BoolVar(&c.validate, "validate", false,
		"with -webhook: also validate ServiceProfiles, as the Service "+validatorName)
	f.DurationVar(&c.lifetime, "cert-lifetime", webhook.DefaultLifetime,
		"with -webhook: validity of a certificate; it is renewed after 2/3 of it")
	cli.Describe(f, "usage: inject [flags] [file ...]\n\ninject adds the proxy to the workloads in manifests. "+
		"Without a file, or with -, it reads standard input.")
	// Each case rejects flags that contradict each other.
	switch err := cli.ParseFlags(f, args, stdout); {
	case err != nil:
		return err
	case c.webhook && (c.uninject || c.annotate || f.NArg() > 0):
		return cli.Misuse(errors.New("-webhook: must be without -uninject, -annotate and files"))
	case c.uninject && c.annotate:
		return cli.Misuse(errors.New("-uninject and -annotate exclude each other"))
	case c.webhook && c.lifetime < minLifetime:
		return cli.Misuse(fmt.Errorf("-cert-lifetime %v: must be at least %v", c.lifetime, minLifetime))
	}
	// Only injection needs the configuration.
	if !c.uninject && !c.annotate {
		if err := c.check(); err != nil {
			return cli.Misuse(err)
		}
	}
	// Logs are only needed for a server. The filter reports to stderr.
	if c.webhook {
		log, lines := cli.Log(stderr, cli.TextLog)
		defer cli.Flush(lines)
		return c.serve(ctx, log)
	}
	return c.filter(f.Args(), stdin, stdout, stderr)
}

// check returns an error unless the flags give a valid configuration for injection.
func (c *command) check() error {
	// Exactly one of the two must be given, so that nobody turns off TLS by mistake.
	if c.disableIdentity != (c.anchors == "") {
		return errors.New("-trust-anchors or -disable-identity is required, but not both")
	}
	config, err := c.load()
	if err != nil {
		return err
	}
	return config.Validate()
}

// load returns the flags' configuration, with the content of the file -trust-anchors. It reads
// the file at each call, because the trust anchors may change.
func (c *command) load() (injector.Config, error) {
	// Copy, because c is the result of the flags.
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

// filter writes the files to stdout with the proxy added, or removed with -uninject, and a line
// for each workload to stderr. Without files it reads stdin.
func (c *command) filter(files []string, stdin io.Reader, stdout, stderr io.Writer) error {
	// Without other flags, the proxy is added.
	convert := injector.FilterUninject
	verb := "uninjected"
	switch {
	case c.annotate:
		convert = injector.FilterAnnotate
		verb = "annotated"
	case !c.uninject:
		config, err := c.load()
		if err != nil {
			return err
		}
		convert = config.Filter
		verb = "injected"
	}
	// Without files, read standard input, as kubectl does.
	if len(files) == 0 {
		files = []string{"-"}
	}
	// The output is only written if all files could be converted.
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

// join appends the YAML or JSON documents in b to those in a, with "---" between YAML documents.
func join(a, b []byte) []byte {
	if len(a) > 0 && a[len(a)-1] != '\n' {
		a = append(a, '\n')
	}
	// JSON documents need no separator.
	if len(a) > 0 && len(b) > 0 && b[0] != '{' && !bytes.HasPrefix(b, []byte("---")) {
		a = append(a, "---\n"...)
	}
	return append(a, b...)
}

// readFile returns the content of the named file, or of stdin if the name is "-".
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
	}
	// add serves another Service, whose certificate is kept in a Secret of its own.
	add := func(service, secret, configuration string) *webhook.Certificate {
		cert := &webhook.Certificate{
			Client: client, Namespace: c.Namespace, Secret: secret, Configuration: configuration,
			Names:    []string{fmt.Sprintf("%s.%s.svc", service, c.Namespace)},
			Lifetime: c.lifetime, Overlap: certOverlap, Interval: certInterval, Log: log,
		}
		server.Certificates = append(server.Certificates, cert)
		return cert
	}
	// Both Services are served on the same port, and the API server selects one by name.
	add(c.service, c.secret, c.hook)
	if c.validate {
		add(validatorName, validatorName+"-k8s-tls", validatorName+"-webhook-config").Validating = true
	}
	return server.Run(ctx)
}
