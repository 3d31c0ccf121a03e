package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// Options selects a cluster and a namespace. The zero value selects those that kubectl would
// use.
type Options struct {
	Kubeconfig    string // file; default: KUBECONFIG, or ~/.kube/config, or the service account of the pod
	Context       string // a context's name in the file
	Namespace     string // default: the namespace of the context
	AllNamespaces bool
	Selector      string // label selector of pods

	MinRefresh time.Duration // least time between two renewals of a certificate; default: as in identity.Config
}

// Cluster is a client of an API server. Close it after use.
type Cluster struct {
	Server    string // address of the API server
	Namespace string // namespace of the options; "" means all namespaces

	selector labels.Selector
	refresh  time.Duration
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	close    func()
	settle   time.Duration // defaultSettle, or less in tests

	mu     sync.Mutex
	owners map[types.UID]owner // the owner of each ReplicaSet and Job
}

// Open returns a client of the cluster that o selects. It does not connect.
func Open(o Options) (*Cluster, error) {
	cfg, namespace, err := kubeobject.UserConfig(o.Kubeconfig, o.Context)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if o.Namespace != "" {
		namespace = o.Namespace
	}
	// --all-namespaces has precedence.
	if o.AllNamespaces {
		namespace = metav1.NamespaceAll
	}
	selector, err := labels.Parse(o.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", o.Selector, err)
	}
	// -1 disables client-go's limit of requests, because a user waits for the answers.
	cfg.QPS = -1
	cfg.UserAgent = "tapctl"
	// Warnings about old API versions would disturb the output.
	cfg.WarningHandler = rest.NoWarnings{}
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfigAndClient(cfg, transport)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	objects, err := dynamic.NewForConfigAndClient(cfg, transport)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &Cluster{
		Server: cfg.Host, Namespace: namespace, selector: selector, refresh: o.MinRefresh, close: transport.CloseIdleConnections,
		client: client, dynamic: objects, owners: map[types.UID]owner{}, settle: defaultSettle,
	}, nil
}

// Close closes the connections to the API server.
func (c *Cluster) Close() { c.close() }

// Expand returns the given resources, each with a name. It replaces a resource without a name by
// all resources of its kind in its namespace, or in all namespaces if it has none. It returns an
// error if a named resource does not exist.
func (c *Cluster) Expand(ctx context.Context, resources []Resource) ([]Resource, error) {
	var all []Resource
	for _, r := range resources {
		// A named resource is only looked up to see whether it exists.
		if r.Name != "" {
			if _, err := c.get(ctx, r); err != nil {
				return nil, err
			}
			all = append(all, r)
			continue
		}
		list, err := c.dynamic.Resource(kindOf(r.Kind).GroupVersionResource).Namespace(r.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r, err)
		}
		for _, item := range list.Items {
			all = append(all, kindOf(r.Kind).resource(item.GetNamespace(), item.GetName()))
		}
	}
	return all, nil
}

// get returns the object that r names. r must include a name, and also a namespace, unless r is a
// namespace itself.
func (c *Cluster) get(ctx context.Context, r Resource) (*unstructured.Unstructured, error) {
	namespace := r.Namespace
	switch {
	// Namespaces themselves are in no namespace.
	case r.Kind == "namespace":
		namespace = metav1.NamespaceNone
	case namespace == metav1.NamespaceAll:
		return nil, fmt.Errorf("%s: a name requires a namespace (-n)", r)
	}
	u, err := c.dynamic.Resource(kindOf(r.Kind).GroupVersionResource).Namespace(namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	return u, nil
}
