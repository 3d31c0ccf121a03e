package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// resources has the API resource of each kind of a CustomResourceDefinition that the
// controller reads.
var resources = map[string]schema.GroupVersionResource{ //nolint:gochecknoglobals // constant
	"HTTPRoute":                {Group: gatewayGroup, Version: "v1", Resource: "httproutes"},
	"GRPCRoute":                {Group: gatewayGroup, Version: "v1", Resource: "grpcroutes"},
	"ServiceProfile":           {Group: profileGroup, Version: "v1alpha2", Resource: "serviceprofiles"},
	"Server":                   {Group: policyGroup, Version: "v1beta3", Resource: "servers"},
	"AuthorizationPolicy":      {Group: policyGroup, Version: "v1alpha1", Resource: "authorizationpolicies"},
	"MeshTLSAuthentication":    {Group: policyGroup, Version: "v1alpha1", Resource: "meshtlsauthentications"},
	"NetworkAuthentication":    {Group: policyGroup, Version: "v1alpha1", Resource: "networkauthentications"},
	"ServerAuthorization":      {Group: policyGroup, Version: "v1beta1", Resource: "serverauthorizations"},
	"HTTPLocalRateLimitPolicy": {Group: policyGroup, Version: "v1alpha1", Resource: "httplocalratelimitpolicies"},
}

// Watcher reads the objects of a Kubernetes cluster, and makes them the configuration of a
// controller. Make it with [New] and start it with [Watcher.Run].
type Watcher struct {
	*cluster

	controller *controller.Controller
	dynamic    dynamic.Interface
	leases     kubernetes.Interface
	informers  map[string]*informer // by kind
	statuses   *statusWriter
}

// informer watches the objects of one kind and has a copy of them.
type informer struct {
	cache.SharedIndexInformer

	missing atomic.Int32 // number of answers that the API server does not have the kind
}

// minMissing is the number of not-found answers after which a kind counts as missing. One
// answer is not enough, because an API server that has just started may not have its
// definitions yet.
const minMissing = 3

// New returns a Watcher that reads from the API server of cfg and configures the controller
// c. It watches nothing before [Watcher.Run]. Do not call Set or Load of c.
func New(cfg *rest.Config, s Settings, c *controller.Controller, log *slog.Logger) (*Watcher, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &patient{next: next, log: log} })
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	core := rest.CopyConfig(cfg)
	core.ContentType, core.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	typed, err := kubernetes.NewForConfigAndClient(core, client)
	if err != nil {
		return nil, err
	}
	d, err := dynamic.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	w := &Watcher{controller: c, dynamic: d, leases: typed, informers: make(map[string]*informer)}
	tweak := func(o *metav1.ListOptions) { o.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed" }
	informers := map[string]cache.SharedIndexInformer{
		"Service":       coreinformers.NewServiceInformer(typed, metav1.NamespaceAll, 0, indexers("Service")),
		"Pod":           coreinformers.NewFilteredPodInformer(typed, metav1.NamespaceAll, 0, indexers("Pod"), tweak),
		"EndpointSlice": discoveryinformers.NewEndpointSliceInformer(typed, metav1.NamespaceAll, 0, indexers("EndpointSlice")),
	}
	for kind, resource := range resources {
		informers[kind] = dynamicinformer.NewFilteredDynamicInformer(d, resource, metav1.NamespaceAll, 0, indexers(kind), nil).Informer()
	}
	stores := make(map[string]cache.Indexer)
	for kind, i := range informers {
		stores[kind] = i.GetIndexer()
		if w.informers[kind], err = w.informer(kind, i); err != nil {
			return nil, err
		}
	}
	w.cluster = newCluster(s, log, stores)
	w.statuses = newStatusWriter(w.cluster, d)
	return w, nil
}

// transform returns a function for the informer of the given kind. The function converts an
// object of the API server to the type that the informer stores, such as [service].
func transform(kind string) cache.TransformFunc {
	return map[string]cache.TransformFunc{
		"Service": transformService, "Pod": transformPod, "EndpointSlice": transformSlice,
		"HTTPRoute": transformResource[route], "GRPCRoute": transformResource[route],
		"ServiceProfile": transformResource[serviceProfile], "Server": transformResource[server],
		"AuthorizationPolicy":      transformResource[authorizationPolicy],
		"MeshTLSAuthentication":    transformResource[meshTLSAuthentication],
		"NetworkAuthentication":    transformResource[networkAuthentication],
		"ServerAuthorization":      transformResource[serverAuthorization],
		"HTTPLocalRateLimitPolicy": transformResource[rateLimitPolicy],
	}[kind]
}

// indexers returns the indexes of the store of a kind.
func indexers(kind string) cache.Indexers {
	switch kind {
	case "Service", "Pod":
		return cache.Indexers{byIP: func(o any) (ips []string, _ error) {
			for _, addr := range addrsOf(o) {
				ips = append(ips, addr.Name)
			}
			return ips, nil
		}}
	case "EndpointSlice":
		return cache.Indexers{byService: func(o any) ([]string, error) {
			s, ok := o.(*slice)
			if !ok || s.service == "" {
				return nil, nil
			}
			return []string{s.Namespace + "/" + s.service}, nil
		}}
	case "HTTPRoute", "GRPCRoute":
		return cache.Indexers{
			byParent:    func(o any) ([]string, error) { return references(o, false), nil },
			byReference: func(o any) ([]string, error) { return references(o, true), nil },
		}
	case "ServiceProfile":
		return cache.Indexers{}
	}
	return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

// addrsOf returns one [controller.Object] of the kind usesIP for each IP address of a Service or
// Pod. When this object changes, the controller looks up the IP address again.
func addrsOf(o any) (all []controller.Object) {
	add := func(ip string) { all = append(all, controller.Object{Kind: usesIP, Name: ip}) }
	switch o := o.(type) {
	case *service:
		for _, addr := range o.addrs {
			add(addr.String())
		}
	case *pod:
		for _, addr := range o.addrs {
			add(addr.String())
		}
	}
	return all
}

// references returns "kind/namespace/name" of the parents of a route. If backends is true,
// it also returns the Services to which the route sends requests.
func references(o any, backends bool) (all []string) {
	r, ok := o.(*resource[route])
	if !ok || r.spec == nil {
		return nil
	}
	seen := make(map[string]bool)
	add := func(kind string, name kubeobject.Name) {
		if key := kind + "/" + name.String(); kind != "" && !seen[key] {
			seen[key] = true
			all = append(all, key)
		}
	}
	for i := range r.spec.ParentRefs {
		kind, name := parentOf(r, &r.spec.ParentRefs[i])
		add(kind, name)
	}
	for _, rule := range r.spec.Rules {
		for _, b := range rule.BackendRefs {
			if kind, name := b.Object(r.GetNamespace(), "", "Service"); backends && kind.Kind == "Service" {
				add("Service", name)
			}
		}
	}
	return all
}

// informer configures shared, the informer of the given kind, and returns it. The informer converts
// each object before it stores the object, and passes each relevant change to [Watcher.changed]. It
// also counts how often the API server answers that the kind does not exist.
func (w *Watcher) informer(kind string, shared cache.SharedIndexInformer) (*informer, error) {
	i := &informer{SharedIndexInformer: shared}
	if err := i.SetTransform(transform(kind)); err != nil {
		return nil, err
	}
	failed := func(_ *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) || i.missing.Add(1) == minMissing {
			w.log.Warn("kubernetes", "kind", kind, "err", err)
		}
	}
	if err := i.SetWatchErrorHandler(failed); err != nil {
		return nil, err
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { w.changed(o) },
		UpdateFunc: func(before, after any) {
			if unchanged(before, after) {
				w.statuses.changed(after) // another writer may have changed it
				return
			}
			w.changed(before, after)
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			w.changed(o)
		},
	})
	return i, err
}

// changed notifies the controller and the status writer that an object has changed. For an
// update, objects has the object before and after the update.
func (w *Watcher) changed(objects ...any) {
	all := make([]controller.Object, 0, 2*len(objects))
	for _, o := range objects {
		all = append(all, affected(o)...)
		w.statuses.changed(o)
	}
	w.controller.Changed(all...)
}

// affected returns the objects of a [controller.Source] that change when o changes. The
// controller then looks up again the names and ports that depend on them.
func affected(o any) []controller.Object {
	switch o := o.(type) {
	case *service:
		return append(addrsOf(o), controller.Object{Kind: usesService, Namespace: o.Namespace, Name: o.Name})
	case *slice:
		return []controller.Object{{Kind: usesEndpoints, Namespace: o.Namespace, Name: o.service}}
	case *pod:
		return append(addrsOf(o), controller.Object{Kind: usesPod, Namespace: o.Namespace, Name: o.Name})
	case *resource[route]:
		if o.spec == nil {
			return nil
		}
		all := make([]controller.Object, 0, len(o.spec.ParentRefs))
		for i := range o.spec.ParentRefs {
			switch kind, name := parentOf(o, &o.spec.ParentRefs[i]); kind {
			case "Service":
				all = append(all, controller.Object{Kind: usesService, Namespace: name.Namespace, Name: name.Name})
			case "Server":
				all = append(all, controller.Object{Kind: usesPolicy, Namespace: name.Namespace})
			}
		}
		return all
	case *resource[serviceProfile]:
		name, _, _ := strings.Cut(o.GetName(), ".")
		return []controller.Object{{Kind: usesService, Namespace: o.GetNamespace(), Name: name}}
	case metav1.Object:
		return []controller.Object{{Kind: usesPolicy, Namespace: o.GetNamespace()}}
	}
	return nil
}

// Run watches the cluster until ctx ends. After it has read all existing objects, the
// controller serves them, and Run calls ready. While the API server is not available, the
// controller serves the last objects. If l.Name is not empty, Run also writes the status of
// routes while it holds the Lease.
func (w *Watcher) Run(ctx context.Context, l Lease, ready func()) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{})) // the Watcher logs errors
	defer cancel()
	for _, i := range w.informers {
		all.Go(func() { i.RunWithContext(ctx) })
	}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !w.complete() {
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		}
	}
	w.controller.Use(w.cluster)
	w.log.Info("objects read", "services", len(w.stores["Service"].ListKeys()), "pods", len(w.stores["Pod"].ListKeys()))
	ready()
	if l.Name == "" {
		<-ctx.Done()
		return nil
	}
	lead := func(ctx context.Context) {
		w.log.Info("the status of routes is written", "lease", l.Namespace+"/"+l.Name)
		w.statuses.run(ctx)
	}
	if err := l.run(ctx, w.leases, lead); err != nil {
		return fmt.Errorf("lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	return nil
}

// complete reports whether the existing objects of each kind have been read. It ignores a
// kind that the API server does not have.
func (w *Watcher) complete() bool {
	for _, i := range w.informers {
		if !i.HasSynced() && i.missing.Load() < minMissing {
			return false
		}
	}
	return true
}
