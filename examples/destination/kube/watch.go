package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
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

// resources maps each kind that a CustomResourceDefinition defines and the controller reads to
// its API resource.
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
	"TLSRoute":                 {Group: gatewayGroup, Version: "v1alpha2", Resource: "tlsroutes"},
	"TCPRoute":                 {Group: gatewayGroup, Version: "v1alpha2", Resource: "tcproutes"},
	linkerdHTTPRoute:           {Group: policyGroup, Version: "v1beta3", Resource: "httproutes"},
	"EgressNetwork":            {Group: policyGroup, Version: "v1alpha1", Resource: "egressnetworks"},
	"ExternalWorkload":         {Group: workloadGroup, Version: "v1beta1", Resource: "externalworkloads"},
}

// Watcher follows the objects in a Kubernetes cluster and configures a controller from them.
// Create it with [New] and start it with [Watcher.Run].
type Watcher struct {
	*cluster

	controller *controller.Controller
	dynamic    dynamic.Interface
	client     kubernetes.Interface
	informers  map[string]*informer // by kind
	statuses   *statusWriter
}

// informer watches the objects of one kind and keeps a copy of each.
type informer struct {
	cache.SharedIndexInformer

	missing atomic.Int32 // how often the API server said that the kind does not exist
}

// minMissing is how many not-found answers it takes before a kind counts as missing. One is not
// enough, because an API server that has just started may not know its definitions yet.
const minMissing = 3

// New returns a Watcher that reads from cfg's API server and configures c. It watches nothing
// until [Watcher.Run] is called. Do not call c's Set or Load, because the Watcher replaces their
// configuration.
func New(cfg *rest.Config, s Settings, c *controller.Controller, log *slog.Logger) (*Watcher, error) {
	typed, dynamic, err := newClients(cfg, log)
	if err != nil {
		return nil, err
	}
	// w.cluster is set below. Its stores come from the informers, which report changes only after Run.
	w := &Watcher{controller: c, dynamic: dynamic, client: typed, informers: make(map[string]*informer)}
	stores := make(map[string]cache.Indexer)
	kinds := slices.AppendSeq([]string{"Service", "Pod", "EndpointSlice", "Node", "Namespace"}, maps.Keys(resources))
	for kind, i := range informers(typed, dynamic, kinds...) {
		stores[kind] = i.GetIndexer()
		if w.informers[kind], err = newInformer(kind, i, log, w.changed); err != nil {
			return nil, err
		}
	}
	w.cluster = newCluster(s, log, stores)
	if s.LinkedClusters {
		// Endpoints of linked clusters are looked up by the same controller.
		w.cluster.links = &links{settings: s, log: log, changed: c.Changed, byName: make(map[string]*link)}
	}
	w.statuses = newStatusWriter(w.cluster, dynamic)
	return w, nil
}

// newClients returns a typed and a dynamic client for cfg's API server. The typed one uses
// protobuf, which is cheaper to decode than JSON.
func newClients(cfg *rest.Config, log *slog.Logger) (kubernetes.Interface, dynamic.Interface, error) {
	// Copy, because the configuration belongs to the caller.
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &patient{next: next, log: log} })
	// Both clients share connections and the transport that waits for the API server.
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	core := rest.CopyConfig(cfg)
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	typed, err := kubernetes.NewForConfigAndClient(core, client)
	if err != nil {
		return nil, nil, err
	}
	// CustomResourceDefinitions have no protobuf encoding.
	d, err := dynamic.NewForConfigAndClient(cfg, client)
	return typed, d, err
}

// informers returns new informers of the given kinds.
func informers(typed kubernetes.Interface, d dynamic.Interface, kinds ...string) map[string]cache.SharedIndexInformer {
	// Pods that have ended are not needed, and may be many.
	tweak := func(o *metav1.ListOptions) { o.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed" }
	all := make(map[string]cache.SharedIndexInformer)
	for _, kind := range kinds {
		switch kind {
		case "Service":
			// The resync period 0 means never: informers report each change once.
			all[kind] = coreinformers.NewServiceInformer(typed, metav1.NamespaceAll, 0, indexers(kind))
		case "Pod":
			all[kind] = coreinformers.NewFilteredPodInformer(typed, metav1.NamespaceAll, 0, indexers(kind), tweak)
		case "Node":
			all[kind] = coreinformers.NewNodeInformer(typed, 0, indexers(kind))
		case "Namespace":
			all[kind] = coreinformers.NewNamespaceInformer(typed, 0, indexers(kind))
		case "EndpointSlice":
			all[kind] = discoveryinformers.NewEndpointSliceInformer(typed, metav1.NamespaceAll, 0, indexers(kind))
		default:
			i := dynamicinformer.NewFilteredDynamicInformer(d, resources[kind], metav1.NamespaceAll, 0, indexers(kind), nil)
			all[kind] = i.Informer()
		}
	}
	return all
}

// transform returns the function that converts an API object of the given kind to the type that
// its informer stores, such as [service].
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
		"TLSRoute":                 transformResource[route],
		"TCPRoute":                 transformResource[route],
		linkerdHTTPRoute:           transformResource[route],
		"EgressNetwork":            transformResource[egressNetwork],
		"ExternalWorkload":         transformResource[externalWorkload],
		"Node":                     transformNode,
		"Namespace":                transformNamespace,
	}[kind]
}

// indexers returns the indexes by which objects of a kind are found in their store, such as by IP address.
func indexers(kind string) cache.Indexers {
	switch kind {
	case "Service", "Pod", "ExternalWorkload":
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
	// A route is found by its parents, and for status also by its backends.
	case "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", linkerdHTTPRoute:
		return cache.Indexers{
			byParent:    func(o any) ([]string, error) { return references(o, false), nil }, // parents only
			byReference: func(o any) ([]string, error) { return references(o, true), nil },  // and backends
		}
	case "ServiceProfile", "Node", "Namespace":
		return cache.Indexers{}
	}
	// Policies are looked up by namespace.
	return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

// addrsOf returns one [controller.Object] for each IP address of a Service, Pod or
// ExternalWorkload. When the object changes, the controller looks up these addresses again.
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
	case *resource[externalWorkload]:
		// An invalid object has no spec.
		if o.spec == nil {
			return nil
		}
		for _, w := range o.spec.WorkloadIPs {
			if addr, err := netip.ParseAddr(w.IP); err == nil {
				// IPv4 addresses may be mapped to IPv6, but clients ask for them in the short form.
				add(addr.Unmap().String())
			}
		}
	}
	return all
}

// references returns the parents of a route as "kind/namespace/name". If backends is true, it
// adds the objects that the route sends requests to.
func references(o any, backends bool) (all []string) {
	r, ok := o.(*resource[route])
	if !ok || r.spec == nil {
		return nil
	}
	// A route may refer to an object several times, for example to two of its ports.
	visited := make(map[string]bool)
	// add appends an object, unless it was added already or has no kind.
	add := func(kind string, name kubeobject.Name) {
		if key := kind + "/" + name.String(); kind != "" && !visited[key] {
			visited[key] = true
			all = append(all, key)
		}
	}
	for i := range r.spec.ParentRefs {
		kind, name := parentOf(r, &r.spec.ParentRefs[i])
		add(kind, name)
	}
	for _, rule := range r.spec.Rules {
		for _, b := range rule.BackendRefs {
			kind, name := b.Object(r.GetNamespace(), "", "Service")
			// Routes may send requests to kinds that do not exist for linkerd.
			if backends && (kind.Kind == "Service" || kind.Kind == "EgressNetwork") {
				add(kind.Kind, name)
			}
		}
	}
	return all
}

// newInformer configures shared to convert objects before it stores them and to report each
// change to changed: a new or deleted object alone, or an updated object before and after the
// update. It also counts how often the API server says that the kind does not exist.
func newInformer(kind string, shared cache.SharedIndexInformer, log *slog.Logger, changed func(objects ...any)) (*informer, error) {
	i := &informer{SharedIndexInformer: shared}
	if err := i.SetTransform(transform(kind)); err != nil {
		return nil, err
	}
	// The API server answers "not found" if the CustomResourceDefinition is not installed. Warn once, after a few
	// attempts.
	failed := func(_ *cache.Reflector, err error) {
		if !apierrors.IsNotFound(err) || i.missing.Add(1) == minMissing {
			log.Warn("kubernetes", "kind", kind, "err", err)
		}
	}
	if err := i.SetWatchErrorHandler(failed); err != nil {
		return nil, err
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changed(o) },
		UpdateFunc: func(before, after any) { changed(before, after) },
		DeleteFunc: func(o any) {
			// If the watch missed the deletion, the cache passes the last known object in a wrapper.
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			changed(o)
		},
	})
	return i, err
}

// changed notifies the controller and the status writer. objects are a new or deleted object, or
// the versions before and after an update.
func (w *Watcher) changed(objects ...any) {
	if len(objects) == 2 && unchanged(objects[0], objects[1]) {
		w.statuses.changed(objects[1]) // another writer may have changed the status
		return
	}
	// An object affects about two entries: itself and its address.
	all := make([]controller.Object, 0, 2*len(objects))
	for _, o := range objects {
		all = append(all, affected(o)...)
		w.statuses.changed(o)
	}
	w.controller.Changed(all...)
}

// affected returns the [controller.Source] objects that change together with o, so that the
// controller repeats the lookups that depend on them.
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
			// A change of a route changes the answers about its parents.
			switch kind, name := parentOf(o, &o.spec.ParentRefs[i]); kind {
			case "Service":
				all = append(all, controller.Object{Kind: usesService, Namespace: name.Namespace, Name: name.Name})
			case "Server":
				all = append(all, controller.Object{Kind: usesPolicy, Namespace: name.Namespace})
			case "EgressNetwork":
				all = append(all, controller.Object{Kind: usesEgress, Namespace: name.Namespace})
			}
		}
		return all
	case *resource[serviceProfile]:
		// A ServiceProfile is named SERVICE.NAMESPACE.svc.DOMAIN.
		name, _, _ := strings.Cut(o.GetName(), ".")
		return []controller.Object{{Kind: usesService, Namespace: o.GetNamespace(), Name: name}}
	case *resource[externalWorkload]:
		return append(addrsOf(o), controller.Object{Kind: usesExternal, Namespace: o.GetNamespace(), Name: o.GetName()})
	case *node:
		return []controller.Object{{Kind: usesNode, Name: o.Name}}
	case *namespace:
		return []controller.Object{{Kind: usesNamespace, Name: o.Name}}
	case *resource[egressNetwork]:
		return []controller.Object{{Kind: usesEgress, Namespace: o.GetNamespace()}}
	// All remaining kinds are policies, which are used together.
	case metav1.Object:
		return []controller.Object{{Kind: usesPolicy, Namespace: o.GetNamespace()}}
	}
	return nil
}

// Run watches the cluster until ctx ends. Once all existing objects have been read, the
// controller starts to serve them and Run calls ready. While the API server is down, the
// controller keeps serving what it read last. If l.Name is not empty, Run also writes route
// statuses whenever it holds the Lease.
func (w *Watcher) Run(ctx context.Context, l Lease, ready func()) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{})) // silences klog; the Watcher logs errors itself
	defer cancel()
	for _, i := range w.informers {
		all.Go(func() { i.RunWithContext(ctx) })
	}
	if w.links != nil {
		all.Go(func() { w.links.run(ctx, w.client) })
	}
	// Informers only tell by HasSynced that they have read everything, so ask them repeatedly.
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !complete(w.informers) {
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		}
	}
	// From here on, streams receive answers.
	w.controller.Use(w.cluster)
	w.log.Info("objects read", "services", len(w.stores["Service"].ListKeys()), "pods", len(w.stores["Pod"].ListKeys()))
	ready()
	kinds, err := unservedKinds(ctx, w.client.Discovery().RESTClient())
	if err != nil && ctx.Err() == nil {
		w.log.Warn("kubernetes", "err", err)
	}
	for _, kind := range kinds {
		w.log.Warn("objects of this kind have no effect", "kind", kind)
	}
	// Without a Lease, no status is written, and nothing is left to do here.
	if l.Name == "" {
		<-ctx.Done()
		return nil
	}
	lead := func(ctx context.Context) {
		w.log.Info("the status of routes is written", "lease", l.Namespace+"/"+l.Name)
		w.statuses.run(ctx)
	}
	if err := l.run(ctx, w.client, lead); err != nil {
		return fmt.Errorf("lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	return nil
}

// complete reports whether all existing objects have been read. A kind that the API server does
// not know does not count.
func complete(informers map[string]*informer) bool {
	for _, i := range informers {
		if !i.HasSynced() && i.missing.Load() < minMissing {
			return false
		}
	}
	return true
}
