package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/gotower/gotower/examples/tapctl/cluster"
	"github.com/gotower/gotower/examples/tapctl/trust"
)

// clusterFlags has the flags that select a cluster and a namespace, which all commands accept.
type clusterFlags struct {
	cluster.Options

	controlPlane string // namespace
}

func (c *clusterFlags) flags(f *flag.FlagSet) {
	f.StringVar(&c.Namespace, "n", "", "cluster: `namespace`; default: that of the context")
	f.StringVar(&c.Namespace, "namespace", "", "the same as -n `namespace`")
	f.BoolVar(&c.AllNamespaces, "A", false, "cluster: all namespaces")
	f.BoolVar(&c.AllNamespaces, "all-namespaces", false, "the same as -A")
	f.StringVar(&c.Selector, "l", "", "cluster: only pods with these labels, as a `selector` of kubectl")
	f.StringVar(&c.Selector, "selector", "", "the same as -l `selector`")
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "cluster: `file` that specifies the API server; default: as kubectl")
	f.StringVar(&c.Context, "context", "", "cluster: `name` of a context in the kubeconfig")
	f.StringVar(&c.controlPlane, "L", "linkerd", "cluster: `namespace` of the control plane")
	f.StringVar(&c.controlPlane, "linkerd-namespace", "linkerd", "the same as -L `namespace`")
}

// given reports whether at least one of the flags is set.
func (c *clusterFlags) given() bool { return c.Options != cluster.Options{} }

// targets returns the pods that the command line selects. The slice written has its arguments,
// which are either resources, such as deploy/web, or addresses. targets returns nil for addresses
// or without arguments if no cluster flag is set. If a cluster flag is set, an empty slice selects
// all pods that match the flags, and addresses are an error.
func (c *clusterFlags) targets(written []string, secure *security, warn func(error)) (*pods, error) {
	named := len(written) > 0 && cluster.Is(written[0])
	switch {
	case !named && !c.given():
		return nil, nil //nolint:nilnil // nil means that the targets are addresses
	case !named && len(written) > 0:
		return nil, fmt.Errorf("%q is not a resource: must be KIND/NAME, such as deploy/web,"+
			" if -n, -A, -l, --kubeconfig or --context is set", written[0])
	}
	klog.SetOutput(io.Discard) // errors are returned as well
	klog.LogToStderr(false)
	all, err := cluster.Open(c.Options)
	if err != nil {
		return nil, err
	}
	resources, err := cluster.Parse(written, all.Namespace)
	switch {
	case err != nil:
		all.Close()
		return nil, err
	case len(written) > 0:
	case all.Namespace == "":
		resources = []cluster.Resource{{Kind: "pod"}}
	default:
		resources = []cluster.Resource{{Kind: "namespace", Namespace: all.Namespace, Name: all.Namespace}}
	}
	p := &pods{
		Source:  cluster.Source{Cluster: all, Resources: resources},
		written: resources, controlPlane: c.controlPlane, secure: secure, warn: warn, identities: map[string]*cluster.Identity{},
	}
	p.Dial = p.dial
	return p, nil
}

// pods are the targets of a command in a cluster: all pods of the resources on the command line.
type pods struct {
	cluster.Source

	written      []cluster.Resource // the resources on the command line
	controlPlane string             // namespace
	secure       *security
	warn         func(error)

	mu         sync.Mutex
	identities map[string]*cluster.Identity // by name; a value is nil if the identity is not available
}

// Close closes the connections to the API server and ends the renewal of certificates.
func (p *pods) Close() {
	for _, id := range p.identities {
		if id != nil {
			id.Close()
		}
	}
	p.Cluster.Close()
}

// identify returns the client identity that the tap of the given pod accepts. If the identity
// cannot be obtained, identify prints a warning once and returns nil. It does not remember a
// failure that is due to the end of ctx, because ctx may end with the pod.
func (p *pods) identify(ctx context.Context, one cluster.Pod) *cluster.Identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	id, ok := p.identities[one.TapClient]
	if !ok {
		var err error
		if id, err = p.Cluster.Identify(ctx, p.controlPlane, one); err != nil && ctx.Err() != nil {
			return nil
		} else if err != nil {
			p.warn(fmt.Errorf("no certificate of %s, without which proxies serve only their own machine: %w", one.TapClient, err))
		}
		p.identities[one.TapClient] = id
	}
	return id
}

// size returns 0, which means that the number of processes is not fixed.
func (p *pods) size() int { return 0 }

// names returns the resources on the command line with their namespaces.
func (p *pods) names() []string {
	all := make([]string, 0, len(p.written))
	for _, r := range p.written {
		name := r.String()
		if r.Kind != "namespace" && r.Namespace != "" {
			name += " -n " + r.Namespace
		}
		all = append(all, name)
	}
	return all
}

func (p *pods) dial(ctx context.Context, one cluster.Pod) (*grpc.ClientConn, error) {
	t, err := p.target(ctx, one)
	if err != nil {
		return nil, err
	}
	return dial(t)
}

// target returns the tap of a pod as a target. tapctl expects the identity of the pod,
// unless --server-identity specifies another name. If no TLS flag is set, tapctl obtains a
// certificate with the client identity that the pod accepts. If that is not possible, the
// target has no TLS.
func (p *pods) target(ctx context.Context, one cluster.Pod) (target, error) {
	t := target{name: p.Name(one), addr: one.Tap, tls: one.Identity != ""}
	if t.tls && !p.secure.given() {
		t.tls = false
		if one.TapClient != "" {
			if id := p.identify(ctx, one); id != nil {
				t.tls, t.proof = true, trust.FromIdentity(id.Identity, trust.Server{Identity: one.Identity})
			}
		}
		return t, nil
	}
	if !t.tls {
		return t, nil
	}
	server := p.secure.server(t)
	if len(p.secure.identities) == 0 {
		server.Identity = one.Identity
	}
	var err error
	t.proof, err = trust.New(p.secure.files, server)
	return t, err
}

// exist returns an error if a resource does not exist or its pods cannot be listed. It warns if
// none of the pods has a proxy.
func (p *pods) exist(ctx context.Context, warn func(error)) error {
	now, err := p.Cluster.Pods(ctx, p.Resources)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(now.Of, func(one cluster.Pod) bool { return one.Meshed() }) {
		warn(errNoPods)
	}
	return nil
}

var errNoPods = errors.New("no running pod with a proxy")

// current returns the taps of the current pods as targets. It warns of pods without a proxy.
func (p *pods) current(ctx context.Context, warn func(error)) ([]target, error) {
	now, err := p.Cluster.Pods(ctx, p.Resources)
	if now == nil {
		return nil, err
	}
	var all []target
	for _, one := range now.Of {
		if !one.Meshed() {
			warn(fmt.Errorf("%s: the pod has no proxy: inject it", p.Name(one)))
			continue
		}
		t, err := p.target(ctx, one)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, errNoPods
	}
	return all, nil
}

// from parses resource, the value of --from, and makes its pods the targets, because they
// send the requests. It returns the resource on the command line, the destination of the
// requests.
func (p *pods) from(resource string) (to cluster.Resource, err error) {
	if len(p.written) != 1 || p.written[0].Name == "" {
		return to, errors.New("--from requires one target with a name, such as deploy/web")
	}
	p.Resources, err = cluster.Parse([]string{resource}, p.Cluster.Namespace)
	if err == nil && p.Resources[0].Name == "" {
		err = fmt.Errorf("--from %q must be KIND/NAME", resource)
	}
	return p.written[0], err
}
