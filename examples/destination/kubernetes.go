package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/destination/kube"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// kubernetes holds the flags that apply only with -kubernetes.
type kubernetes struct {
	on         bool
	kubeconfig string
	settings   kube.Settings
	inbound    string
	networks   string
	lease      string
}

// flags defines the flags in f. Their defaults are those of package kube.
func (k *kubernetes) flags(f *flag.FlagSet) {
	k.settings = kube.DefaultSettings()
	// Most flags store their values in the settings directly. The others need to be parsed first.
	s := &k.settings
	f.BoolVar(&k.on, "kubernetes", false, "read the objects of a Kubernetes cluster instead of a file")
	f.StringVar(&k.kubeconfig, "kubeconfig", "",
		"with -kubernetes: `file` with the API server; default: that of the cluster in which the program runs")
	f.StringVar(&s.ClusterDomain, "cluster-domain", s.ClusterDomain, "with -kubernetes: `domain` of the names of Services")
	f.StringVar(&s.TrustDomain, "identity-trust-domain", s.TrustDomain, "with -kubernetes: `domain` of the identities of pods")
	f.StringVar(&s.ControlPlane, "controller-namespace", s.ControlPlane, "with -kubernetes: `namespace` of the control plane")
	f.StringVar(&s.OpaquePorts, "default-opaque-ports", s.OpaquePorts,
		"with -kubernetes: `ports` that are opaque without an annotation")
	f.StringVar(&k.inbound, "default-inbound-policy", string(s.DefaultInbound),
		"with -kubernetes: access `policy` of ports without a Server")
	f.StringVar(&k.networks, "cluster-networks", "",
		"with -kubernetes: comma-separated `networks` of the cluster; default: those of linkerd's chart")
	f.StringVar(&s.EgressNamespace, "global-egress-network-namespace", s.EgressNamespace,
		"with -kubernetes: `namespace` of the EgressNetworks for all clients")
	f.StringVar(&s.ControllerName, "controller-name", s.ControllerName,
		"with -kubernetes: `name` of this controller in the status of routes")
	f.BoolVar(&s.LinkedClusters, "linked-clusters", false,
		"with -kubernetes: read the clusters that Secrets of linkerd's multicluster extension link; see kube/rbac-links.yaml")
	f.StringVar(&k.lease, "lease", "linkerd-destination",
		"with -kubernetes: `name` of the Lease of the leader election; empty: no status is written")
}

// serve watches the cluster and serves c's clients until ctx ends. It starts to listen once all
// existing objects have been read, because clients would have to wait until then anyway.
func (k *kubernetes) serve(ctx context.Context, c *controller.Controller, listen string, log *slog.Logger, stdout io.Writer) error {
	k.settings.DefaultInbound = controller.AccessPolicy(k.inbound)
	// An empty flag splits into one empty text, which means the default.
	for text := range strings.SplitSeq(k.networks, ",") {
		if text == "" {
			continue
		}
		n, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("-cluster-networks: %w", err)
		}
		k.settings.ClusterNetworks = append(k.settings.ClusterNetworks, n)
	}
	if err := k.settings.Validate(); err != nil {
		return cli.Misuse(err)
	}
	cfg, err := kubeobject.ClientConfig(k.kubeconfig)
	if err != nil {
		return err
	}
	host, err := os.Hostname() // inside a cluster, this is the pod's name
	if err != nil {
		return err
	}
	w, err := kube.New(cfg, k.settings, c, log)
	if err != nil {
		return err
	}
	// ready is closed when all existing objects have been read.
	ready := make(chan struct{})
	// If one goroutine fails, ctx ends the other.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		// The name of the pod alone would not differ between two processes on one machine.
		lease := kube.Lease{Namespace: k.settings.ControlPlane, Name: k.lease, Identity: fmt.Sprintf("%s-%d", host, os.Getpid())}
		return w.Run(ctx, lease, func() { close(ready) })
	})
	group.Go(func() error {
		select {
		case <-ready:
		case <-ctx.Done():
			return nil // the group reports the error of Run
		}
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "serving the cluster %s on %s\n", cfg.Host, lis.Addr())
		return c.Serve(ctx, lis)
	})
	return group.Wait()
}
