package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/internal/kubeobject"
)

// ClientConfig returns a client configuration for kubeconfig's API server, or for the cluster
// that the process runs in if kubeconfig is nil.
func ClientConfig(kubeconfig *config.File) (*rest.Config, error) {
	if kubeconfig == nil {
		return kubeobject.ClientConfig("")
	}
	return kubeobject.ClientConfig(kubeconfig.Path)
}

// Watcher watches a cluster and translates its objects to configurations for the gateway.
type Watcher struct {
	settings  *config.KubernetesRoutes
	log       *slog.Logger
	client    dynamic.Interface
	informers map[string]*informer // by kind
	changed   chan struct{}
	stale     atomic.Bool // whether an object has changed beyond its status

	loaded *Result // what was loaded last
	// excluded is true if loaded leaves out an address because the gateway cannot listen there.
	excluded bool
}

// informer watches the objects of one kind and keeps a copy of each.
type informer struct {
	cache.SharedIndexInformer

	refused atomic.Bool // whether the API server lacks the kind, or does not let the gateway read it
}

// New returns a Watcher with the settings s. It starts to watch with [Watcher.Run] or
// [Watcher.Read].
func New(s *config.KubernetesRoutes, log *slog.Logger) (*Watcher, error) {
	cfg, err := ClientConfig(s.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	w := &Watcher{settings: s, log: log, client: client, informers: make(map[string]*informer), changed: make(chan struct{}, 1)}
	for kind := range kinds {
		if w.informers[kind], err = w.informer(kind); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *Watcher) informer(kind string) (*informer, error) {
	tweak := func(o *metav1.ListOptions) {
		if kind == "Secret" {
			o.FieldSelector = "type=kubernetes.io/tls"
		}
	}
	i := &informer{SharedIndexInformer: dynamicinformer.NewFilteredDynamicInformer(
		w.client, kinds[kind], metav1.NamespaceAll, 0, cache.Indexers{}, tweak).Informer()}
	strip := func(o any) (any, error) {
		if u, ok := o.(*unstructured.Unstructured); ok {
			u.SetManagedFields(nil)
		}
		return o, nil
	}
	onError := func(_ *cache.Reflector, err error) {
		remedy := remedyOf(kind, err)
		switch {
		case remedy == "":
			w.log.Warn("kubernetes", "kind", kind, "err", err)
		case !i.refused.Swap(true):
			w.log.Warn("kubernetes: the kind cannot be read, and the others are served", "kind", kind, "remedy", remedy, "err", err)
		}
		w.notify()
	}
	readable := func() {
		if i.refused.Swap(false) {
			w.log.Info("kubernetes: the kind can be read now", "kind", kind)
		}
	}
	changed := func(any) { w.stale.Store(true); w.notify() }
	updated := func(oldObject, newObject any) {
		readable()
		if sameGeneration(oldObject, newObject) {
			w.notify()
		} else {
			changed(newObject)
		}
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { readable(); changed(o) }, DeleteFunc: changed, UpdateFunc: updated,
	})
	return i, errors.Join(err, i.SetTransform(strip), i.SetWatchErrorHandler(onError))
}

// isOptional reports whether the gateway serves the other kinds if the API server lacks the kind, or does not
// let the gateway read it, for example because its ClusterRole is older than the gateway. It is true except
// for the core group, to whose Services, Secrets and Namespaces the objects of all other kinds refer.
func isOptional(kind string) bool { return kinds[kind].Group != "" }

// remedyOf returns what an operator can do if the API server refuses an optional kind with err. For all other
// kinds and errors, it returns "".
func remedyOf(kind string, err error) string {
	switch resource := kinds[kind]; {
	case !isOptional(kind):
		return ""
	case apierrors.IsForbidden(err):
		return "apply the ClusterRole in the kubernetes.yaml of this version of the gateway"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("install the CustomResourceDefinition of %s in version %s", resource.GroupResource(), resource.Version)
	}
	return ""
}

// sameGeneration reports whether an update left the object's spec and annotations unchanged. It
// returns false for kinds that do not count generations, such as Secret.
func sameGeneration(oldObject, newObject any) bool {
	a, ok1 := oldObject.(*unstructured.Unstructured)
	b, ok2 := newObject.(*unstructured.Unstructured)
	return ok1 && ok2 && a.GetUID() == b.GetUID() && a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() &&
		maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

func (w *Watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// start starts the watches, which end with ctx. wait blocks until they have all ended. Optional kinds follow the
// others, because before a ClusterRole is bound all kinds are refused, which does not mean that some are missing in it.
func (w *Watcher) start(ctx context.Context) (wait func()) {
	var all sync.WaitGroup
	required := make([]cache.DoneChecker, 0, len(w.informers))
	for kind, i := range w.informers {
		if !isOptional(kind) {
			required = append(required, i.HasSyncedChecker())
			all.Go(func() { i.RunWithContext(ctx) })
		}
	}
	for kind, i := range w.informers {
		if isOptional(kind) {
			all.Go(func() {
				if cache.WaitFor(ctx, "", required...) {
					i.RunWithContext(ctx)
				}
			})
		}
	}
	return all.Wait
}

// complete reports whether all existing objects have been read. Optional kinds that the API server
// refuses do not count.
func (w *Watcher) complete() bool {
	for _, i := range w.informers {
		if !i.HasSynced() && !i.refused.Load() {
			return false
		}
	}
	return true
}

// objects returns what has been read so far. An object that cannot be decoded is logged and left
// out.
func (w *Watcher) objects() *Objects {
	o := new(Objects)
	for _, i := range w.informers {
		for _, item := range i.GetStore().List() {
			u, ok := item.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			if err := o.Add(u); err != nil {
				w.log.Warn("kubernetes object ignored", "err", err)
			}
		}
	}
	return o
}

// delay is the time between a change and its translation, so that changes in quick succession are
// translated together.
const delay = 50 * time.Millisecond

// retryInterval is how long [Watcher.Run] waits before it tries to load a configuration again.
const retryInterval = 5 * time.Second

// wait waits until an object changes or timer fires, and then for delay. If some kind has not been
// read completely by then, wait checks this again after each further delay. It returns false if ctx
// ends first. A nil timer never fires.
func (w *Watcher) wait(ctx context.Context, timer <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer:
		case <-w.changed:
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(delay):
		}
		if w.complete() {
			return true
		}
		timer = time.After(delay) // the informers do not notify when their initial list is complete
	}
}

// Read reads all objects once and returns their configuration. It returns an error if ctx ends
// first.
func (w *Watcher) Read(ctx context.Context) (*config.Config, error) {
	ctx, cancel := context.WithCancel(ctx)
	wait := w.start(ctx)
	defer wait()
	defer cancel()
	if !w.wait(ctx, time.After(0)) {
		return nil, fmt.Errorf("kubernetes: %w", context.Cause(ctx))
	}
	r, err := Translate(w.objects(), w.settings, Unusable{})
	if err != nil {
		return nil, err
	}
	return r.Config, nil
}

// Run watches the cluster until ctx ends. After a change, it calls load if the configuration is a
// new one, and then writes the objects' status, unless load failed.
//
// If the gateway cannot listen at an address, load must return a [config.AddressError]. Run then
// calls load again without this address. It tries all addresses again after 5 s, because the
// address may be free by then. It also tries again after 5 s if load returns another error, or a
// status cannot be written.
func (w *Watcher) Run(ctx context.Context, load func(*config.Config) error) {
	ctx, cancel := context.WithCancel(ctx)
	wait := w.start(ctx)
	defer wait()
	defer cancel()
	timer := time.After(0)
	w.stale.Store(true)
	for w.wait(ctx, timer) {
		timer = nil
		var err error
		if w.stale.Swap(false) { // before reading the objects, so that no change is missed
			err = w.apply(ctx, w.objects(), load)
		} else {
			err = w.writeStatuses(ctx, w.loaded.Statuses)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Error("kubernetes", "err", err)
		}
		if (err != nil || w.excluded) && ctx.Err() == nil {
			w.stale.Store(true)
			timer = time.After(retryInterval)
		}
	}
}

// apply translates o, loads the configuration if it is a new one, and writes the objects' status.
// Addresses at which the gateway cannot listen are left out.
func (w *Watcher) apply(ctx context.Context, o *Objects, load func(*config.Config) error) error {
	unusable := Unusable{Addresses: make(map[string]string)}
	for {
		r, err := Translate(o, w.settings, unusable)
		if err != nil {
			return err
		}
		if !r.equal(w.loaded) {
			err = load(r.Config)
		}
		var address *config.AddressError
		if errors.As(err, &address) && unusable.Addresses[address.Address] == "" {
			unusable.Addresses[address.Address] = address.Err.Error()
			continue
		}
		if err != nil {
			w.loaded = nil // load may have closed some listeners
			return err
		}
		if !r.equal(w.loaded) {
			w.log.Info("configuration loaded", "services", len(r.Config.Services), "routes", len(r.Config.Routes)+len(r.Config.TCPRoutes))
			for address, reason := range unusable.Addresses { // an Ingress has no condition to report this
				w.log.Warn("cannot listen", "address", address, "err", reason)
			}
		}
		w.loaded = r
		w.excluded = len(unusable.Addresses) > 0
		return w.writeStatuses(ctx, r.Statuses)
	}
}

// equal reports whether two results have the same configuration. It returns false if o is nil.
func (r *Result) equal(o *Result) bool {
	return o != nil && reflect.DeepEqual(r.Fields, o.Fields) && maps.EqualFunc(r.Files, o.Files, bytes.Equal)
}

// writeStatuses writes each status that differs from the stored one. An object that has been
// deleted is skipped. So is a conflict, because Run writes statuses again after each change.
func (w *Watcher) writeStatuses(ctx context.Context, statuses []Status) error {
	var errs []error
	for _, s := range statuses {
		key := s.Object.Name
		if s.Object.Namespace != "" {
			key = s.Object.String()
		}
		item, ok, err := w.informers[s.Kind].GetStore().GetByKey(key)
		u, isObject := item.(*unstructured.Unstructured)
		if err != nil || !ok || !isObject {
			continue
		}
		status, err := s.Merge(u, w.settings.ControllerName, time.Now().UTC().Format(time.RFC3339))
		if err == nil && status != nil {
			u = u.DeepCopy()
			u.Object["status"] = status
			_, err = w.client.Resource(kinds[s.Kind]).Namespace(s.Object.Namespace).UpdateStatus(ctx, u, metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("status of %s %s: %w", s.Kind, s.Object, err))
		}
	}
	return errors.Join(errs...)
}
