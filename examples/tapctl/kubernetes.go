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

// clusterFlags holds the flags that select a cluster and a namespace, which all commands accept.
type clusterFlags struct {
	cluster.Options

	controlPlane string // namespace
}

// flags defines the flags in f. Most of them have a short and a long name, as in kubectl and linkerd.
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

// targets returns the pods that the command line selects. written holds its arguments, which are
// either resources, such as deploy/web, or addresses. targets returns nil for addresses or without
// arguments if no cluster flag is set. If a cluster flag is set, an empty slice selects all pods
// that match the flags, and addresses are an error.
func (c *clusterFlags) targets(written []string, secure *security, warn func(error)) (*pods, error) {
	// The first argument decides, because Parse rejects a mix of resources and addresses.
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
	opened, err := cluster.Open(c.Options)
	if err != nil {
		return nil, err
	}
	// Without arguments, Parse returns no resources, and they are chosen below.
	resources, err := cluster.Parse(written, opened.Namespace)
	switch {
	case err != nil:
		// The cluster is only kept open if it is used.
		opened.Close()
		return nil, err
	// The cases after this one choose all pods, of all namespaces or of one.
	case len(written) > 0:
	case opened.Namespace == "":
		resources = []cluster.Resource{{Kind: "pod"}}
	default:
		resources = []cluster.Resource{{Kind: "namespace", Namespace: opened.Namespace, Name: opened.Namespace}}
	}
	p := &pods{
		Source:  cluster.Source{Cluster: opened, Resources: resources},
		written: resources, controlPlane: c.controlPlane, secure: secure, warn: warn, identities: map[string]*cluster.Identity{},
	}
	// The source dials pods itself when they appear.
	p.Dial = p.dial
	return p, nil
}

// pods are a command's targets in a cluster: all pods of the resources on the command line.
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

// identify returns the client identity that the pod's tap accepts. If it cannot be obtained,
// identify warns once and returns nil. A failure because ctx ended is not remembered, because ctx
// may belong to the pod.
func (p *pods) identify(ctx context.Context, pod cluster.Pod) *cluster.Identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A nil identity in the map is one that could not be obtained, so that the warning appears once.
	id, ok := p.identities[pod.TapClient]
	if !ok {
		var err error
		// If ctx has ended, the pod may be gone. Another pod tries again.
		if id, err = p.Cluster.Identify(ctx, p.controlPlane, pod); err != nil && ctx.Err() != nil {
			return nil
		} else if err != nil {
			p.warn(fmt.Errorf("no certificate of %s, without which proxies serve only their own machine: %w", pod.TapClient, err))
		}
		p.identities[pod.TapClient] = id
	}
	return id
}

// size returns 0, which means that the number of processes is not fixed.
func (p *pods) size() int { return 0 }

// names returns the resources on the command line with their namespaces.
func (p *pods) names() []string {
	names := make([]string, 0, len(p.written))
	for _, r := range p.written {
		name := r.String()
		// A namespace has no namespace, and all namespaces need none.
		if r.Kind != "namespace" && r.Namespace != "" {
			name += " -n " + r.Namespace
		}
		names = append(names, name)
	}
	return names
}

// dial returns a connection to the pod's tap.
func (p *pods) dial(ctx context.Context, pod cluster.Pod) (*grpc.ClientConn, error) {
	t, err := p.target(ctx, pod)
	if err != nil {
		return nil, err
	}
	return dial(t)
}

// target returns a pod's tap as a target. tapctl expects the pod's own identity, unless
// --server-identity says otherwise. If no TLS flag is set, tapctl obtains a certificate for the
// client identity that the pod accepts. If it cannot, it connects without TLS.
func (p *pods) target(ctx context.Context, pod cluster.Pod) (target, error) {
	t := target{name: p.Name(pod), addr: pod.Tap, tls: pod.Identity != ""}
	if t.tls && !p.secure.given() {
		t.tls = false
		if pod.TapClient != "" {
			if id := p.identify(ctx, pod); id != nil {
				t.tls = true
				t.proof = trust.FromIdentity(id.Identity, trust.Server{Identity: pod.Identity})
			}
		}
		return t, nil
	}
	if !t.tls {
		return t, nil
	}
	// The flags for TLS describe the certificate and what to expect.
	server := p.secure.server(t)
	if len(p.secure.identities) == 0 {
		server.Identity = pod.Identity
	}
	var err error
	t.proof, err = trust.New(p.secure.files, server)
	return t, err
}

// exist returns an error if a resource does not exist or its pods cannot be listed. It warns if
// there is no proxy in any of the pods.
func (p *pods) exist(ctx context.Context, warn func(error)) error {
	now, err := p.Cluster.Pods(ctx, p.Resources)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(now.Of, func(pod cluster.Pod) bool { return pod.Meshed() }) {
		warn(errNoPods)
	}
	return nil
}

// errNoPods is the error of a command that needs at least one proxy.
var errNoPods = errors.New("no running pod with a proxy")

// current returns the current pods' taps as targets. It warns of pods without a proxy.
func (p *pods) current(ctx context.Context, warn func(error)) ([]target, error) {
	now, err := p.Cluster.Pods(ctx, p.Resources)
	// now is nil if no resource could be listed. err may also be about some of them.
	if now == nil {
		return nil, err
	}
	var targets []target
	for _, pod := range now.Of {
		if !pod.Meshed() {
			warn(fmt.Errorf("%s: the pod has no proxy: inject it", p.Name(pod)))
			continue
		}
		t, err := p.target(ctx, pod)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	if len(targets) == 0 {
		return nil, errNoPods
	}
	return targets, nil
}

// from parses --from, whose pods become the targets, because they send the requests. It returns
// the resource on the command line, which receives them.
func (p *pods) from(resource string) (destination cluster.Resource, err error) {
	// Requests are selected by their destination, so there must be exactly one.
	if len(p.written) != 1 || p.written[0].Name == "" {
		return destination, errors.New("--from requires one target with a name, such as deploy/web")
	}
	p.Resources, err = cluster.Parse([]string{resource}, p.Cluster.Namespace)
	if err == nil && p.Resources[0].Name == "" {
		err = fmt.Errorf("--from %q must be KIND/NAME", resource)
	}
	return p.written[0], err
}
