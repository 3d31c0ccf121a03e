package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/examples/install/check"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// errChecks says that a check failed. The report has already been printed.
var errChecks = errors.New("some checks failed")

// runCheck checks the cluster and prints a report. It returns errChecks if a check failed.
func runCheck(ctx context.Context, args []string, stdout, _ io.Writer) error {
	o := check.Options{Now: time.Now()}
	var kubeconfig, output string
	f := flag.NewFlagSet("install check", flag.ContinueOnError)
	f.StringVar(&kubeconfig, "kubeconfig", "", "`file` with the API server; default: that of kubectl")
	f.StringVar(&o.Namespace, "namespace", "linkerd", "`namespace` of the control plane")
	f.BoolVar(&o.Pre, "pre", false, "check whether the control plane can be installed")
	f.BoolVar(&o.Proxy, "proxy", false, "also check the proxies")
	f.StringVar(&o.ProxyNamespace, "n", "", "with -proxy: `namespace` of the proxies; default: all")
	f.DurationVar(&o.Wait, "wait", 0, "how long to wait for pods of the control plane that are not ready")
	f.StringVar(&output, "o", "text", "`format`: text or json")
	cli.Describe(f, "install check verifies a cluster before the installation (-pre) and after it.")
	// The flags are checked before the cluster is asked.
	switch err := cli.Parse(f, args, stdout); {
	case err != nil:
		return err
	case output != "text" && output != "json":
		return cli.Misuse(fmt.Errorf("-o %q: must be text or json", output))
	case o.Pre && o.Proxy:
		return cli.Misuse(errors.New("-pre: must be without -proxy"))
	}
	config, _, err := kubeobject.UserConfig(kubeconfig, "")
	if err != nil {
		return err
	}
	// A cluster that does not answer must not hang the command.
	config.Timeout = requestTimeout
	if o.Client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	report := check.Run(ctx, o)
	write := report.Text
	if output == "json" {
		write = report.JSON
	}
	if err := write(stdout); err != nil {
		return err
	}
	// The report has been printed, so the error only sets the exit status.
	if !report.Success {
		return errChecks
	}
	return nil
}

// requestTimeout limits each request to the API server.
const requestTimeout = 10 * time.Second
