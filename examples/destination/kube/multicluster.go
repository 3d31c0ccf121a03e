package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gotower/gotower/examples/destination/controller"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// The names that linkerd's multicluster extension uses to link clusters. The service mirror sets
// those on Services, and "linkerd multicluster link" those on Secrets.
const (
	// A federated Service combines the endpoints of Services in its namespace. The annotation
	// remoteDiscovery lists those in linked clusters, as name@cluster,..., and localDiscovery the
	// one in this cluster. A mirror Service carries labels instead: remoteDiscovery is its
	// cluster, and remoteService the Service's name there.
	remoteDiscovery = "multicluster.linkerd.io/remote-discovery"
	localDiscovery  = "multicluster.linkerd.io/local-discovery"
	remoteService   = "multicluster.linkerd.io/remote-service"

	linkSecretType = "mirror.linkerd.io/remote-kubeconfig"
	linkName       = "multicluster.linkerd.io/cluster-name"
	linkDomain     = "multicluster.linkerd.io/cluster-domain"
	linkTrust      = "multicluster.linkerd.io/trust-domain"
	linkKey        = "kubeconfig"
)

// usesLink is the [controller.Object] kind that stands for a whole linked cluster. Objects inside
// one use this cluster's kinds, followed by "@" and the link's name.
const usesLink = "Link"

// discover returns the endpoints for a port of s. A federated Service, or one that mirrors a
// Service in a linked cluster, takes them from other Services. Topology hints apply only to this
// cluster's endpoints.
func (l *lookup) discover(s *service, port uint16, hostname, zone string) []controller.Endpoint {
	remote, isFederated := s.Annotations[remoteDiscovery]
	local, hasLocal := s.Annotations[localDiscovery]
	var endpoints []controller.Endpoint
	// Hints name zones of this cluster, so they cannot select endpoints in another one.
	switch {
	// A federated Service has its own endpoints too, if it names a local Service.
	case isFederated || hasLocal:
		if localService := l.service(kubeobject.Name{Namespace: s.Namespace, Name: local}); local != "" && localService != nil {
			endpoints = near(l.endpoints(localService, port, hostname), zone)
		}
		for target := range strings.SplitSeq(remote, ",") {
			name, link, ok := strings.Cut(strings.TrimSpace(target), "@")
			// Items without "@" are invalid, and skipped.
			if ok {
				endpoints = append(endpoints, l.linked(link, kubeobject.Name{Namespace: s.Namespace, Name: name}, port, hostname)...)
			}
		}
	case s.link != "":
		endpoints = l.linked(s.link, kubeobject.Name{Namespace: s.Namespace, Name: s.linkedName}, port, hostname)
	default:
		return near(l.endpoints(s, port, hostname), zone)
	}
	// Several Services may share endpoints, for example through the same gateway.
	visited := make(map[netip.AddrPort]bool)
	// unique reuses the memory of endpoints, which is safe because it is never longer.
	unique := endpoints[:0]
	for _, e := range endpoints {
		if !visited[e.Addr] {
			visited[e.Addr] = true
			unique = append(unique, e)
		}
	}
	return unique
}

// linked returns the endpoints of the Service n in a linked cluster. There are none until that
// cluster's objects have been read.
func (l *lookup) linked(link string, n kubeobject.Name, port uint16, hostname string) []controller.Endpoint {
	l.use(usesLink, "", link)
	c := l.links.get(link)
	if c == nil {
		return nil
	}
	// Compute the answer in the other cluster, and record its objects as this answer's own, marked with the link's
	// name.
	remote := c.look()
	s := remote.service(n)
	var endpoints []controller.Endpoint
	if s != nil {
		endpoints = near(remote.endpoints(s, port, hostname), "")
	}
	for o := range remote.used {
		l.use(o.Kind+"@"+link, o.Namespace, o.Name)
	}
	return endpoints
}

// links are the clusters that are linked to this one by Secrets in linkerd's namespace. A nil
// *links is empty.
type links struct {
	settings Settings
	log      *slog.Logger
	changed  func(...controller.Object)

	mu      sync.Mutex
	byName  map[string]*link
	running sync.WaitGroup
}

// link is another cluster that this controller watches, because secret, a Secret of linkerd's multicluster
// extension, contains access to it. cancel ends the watch.
type link struct {
	*cluster

	secret    *corev1.Secret
	informers map[string]*informer
	cancel    context.CancelFunc
}

// get returns a linked cluster by name, or nil if there is no such link or its objects have not
// been read yet.
func (l *links) get(name string) *cluster {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// A cluster whose objects are read only in part would seem to have lost endpoints.
	if linked := l.byName[name]; linked != nil && complete(linked.informers) {
		return linked.cluster
	}
	return nil
}

// run reads the Secrets and follows the linked clusters until ctx ends.
func (l *links) run(ctx context.Context, client kubernetes.Interface) {
	// Informers of the linked clusters must end before run returns.
	defer l.running.Wait()
	tweak := func(o *metav1.ListOptions) { o.FieldSelector = "type=" + linkSecretType }
	secrets := coreinformers.NewFilteredSecretInformer(client, l.settings.ControlPlane, 0, cache.Indexers{}, tweak)
	failed := func(_ *cache.Reflector, err error) { l.log.Warn("linked clusters", "err", err) }
	_, err := secrets.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.set(ctx, o) },
		UpdateFunc: func(_, o any) { l.set(ctx, o) },
		DeleteFunc: func(o any) {
			// If the watch missed the deletion, the cache passes the last known object in a wrapper.
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if secret, ok := o.(*corev1.Secret); ok {
				l.remove(secret.Labels[linkName])
			}
		},
	})
	if err = errors.Join(err, secrets.SetWatchErrorHandler(failed)); err != nil {
		l.log.Error("linked clusters", "err", err)
		return
	}
	secrets.RunWithContext(ctx)
}

// set links the cluster that the Secret o describes, replacing any link with the same name. An
// invalid Secret is logged and links nothing.
func (l *links) set(ctx context.Context, o any) {
	secret, ok := o.(*corev1.Secret)
	name := ""
	if ok {
		name = secret.Labels[linkName]
	}
	if name == "" {
		return
	}
	l.mu.Lock()
	current := l.byName[name]
	l.mu.Unlock()
	// The informer repeats objects, and a link must not be restarted without a change.
	if current != nil && current.secret.ResourceVersion == secret.ResourceVersion {
		return
	}
	l.remove(name)
	replacement, err := l.link(secret)
	if err != nil {
		l.log.Warn("the cluster is not linked", "cluster", name, "secret", secret.Namespace+"/"+secret.Name, "err", err)
		return
	}
	// remove cancels this context, which ends the link's informers.
	ctx, replacement.cancel = context.WithCancel(ctx)
	l.mu.Lock()
	l.byName[name] = replacement
	l.mu.Unlock()
	for _, i := range replacement.informers {
		l.running.Go(func() { i.RunWithContext(ctx) })
	}
	// Endpoints from a half-read cluster would look like a scale-down, so announce the link only when
	// all objects have been read.
	l.running.Go(func() {
		for !complete(replacement.informers) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		l.log.Info("the cluster is linked", "cluster", name, "server", replacement.settings.ClusterDomain)
		l.changed(controller.Object{Kind: usesLink, Name: name})
	})
}

// remove ends the link with the given name.
func (l *links) remove(name string) {
	l.mu.Lock()
	removed := l.byName[name]
	delete(l.byName, name)
	l.mu.Unlock()
	// Endpoints of this link must be looked up again.
	if removed != nil {
		removed.cancel()
		l.changed(controller.Object{Kind: usesLink, Name: name})
	}
}

// link builds a link from a Secret. It does not start the informers.
func (l *links) link(secret *corev1.Secret) (*link, error) {
	name := secret.Labels[linkName]
	// Settings that the Secret does not set are those of this cluster.
	settings := l.settings
	settings.ClusterDomain = secret.Annotations[linkDomain]
	settings.TrustDomain = secret.Annotations[linkTrust]
	if settings.ClusterDomain == "" || settings.TrustDomain == "" {
		return nil, fmt.Errorf("the annotations %s and %s are required", linkDomain, linkTrust)
	}
	cfg, err := linkConfig(secret.Data[linkKey])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", linkKey, err)
	}
	log := l.log.With("cluster", name)
	typed, dynamic, err := newClients(cfg, log)
	if err != nil {
		return nil, err
	}
	added := &link{secret: secret, informers: make(map[string]*informer)}
	stores := make(map[string]cache.Indexer)
	// changed translates a change in the other cluster to objects of this cluster's answers.
	changed := func(objects ...any) {
		var changes []controller.Object
		for _, o := range objects {
			for _, a := range affected(o) {
				a.Kind += "@" + name
				changes = append(changes, a)
			}
		}
		l.changed(changes...)
	}
	// These four kinds suffice for endpoints. Policies are those of this cluster.
	for kind, shared := range informers(typed, dynamic, "Service", "Pod", "EndpointSlice", "Server") {
		stores[kind] = shared.GetIndexer()
		if added.informers[kind], err = newInformer(kind, shared, log, changed); err != nil {
			return nil, err
		}
	}
	added.cluster = newCluster(settings, log, stores)
	return added, nil
}

// linkConfig parses kubeconfig, which must embed its credentials: a Secret must not be able to
// make the controller run programs or read files.
func linkConfig(kubeconfig []byte) (*rest.Config, error) {
	cfg, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	// Inline credentials are allowed. Everything that refers to something outside of the Secret is not.
	for name, c := range cfg.Clusters {
		if c.CertificateAuthority != "" {
			return nil, fmt.Errorf("the cluster %q must not name a file", name)
		}
	}
	for name, u := range cfg.AuthInfos {
		if u.Exec != nil || u.AuthProvider != nil || u.TokenFile != "" || u.ClientCertificate != "" || u.ClientKey != "" {
			return nil, fmt.Errorf("the user %q must not name a file, a program or a provider", name)
		}
	}
	return clientcmd.NewDefaultClientConfig(*cfg, nil).ClientConfig()
}
