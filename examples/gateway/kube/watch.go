package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// ClientConfig returns the configuration of a client of the API server that kubeconfig
// specifies. If kubeconfig is nil, the client uses the API server of the cluster in which
// the process runs.
func ClientConfig(kubeconfig *config.File) (*rest.Config, error) {
	if kubeconfig == nil {
		return kubeobject.ClientConfig("")
	}
	return kubeobject.ClientConfig(kubeconfig.Path)
}

// Watcher watches the objects of a cluster and translates them to configurations of the
// gateway.
type Watcher struct {
	settings  *config.KubernetesRoutes
	log       *slog.Logger
	client    dynamic.Interface
	informers map[string]*informer // by kind
	changed   chan struct{}
	stale     atomic.Bool // whether an object has changed, apart from its status

	loaded *Result // the last result that was loaded
	// excluded is true if loaded leaves out an address at which the gateway cannot listen.
	excluded bool
}

// informer watches the objects of one kind and has a copy of them.
type informer struct {
	cache.SharedIndexInformer

	missing atomic.Bool // whether the API server does not have the kind
}

// New returns a Watcher with the settings s. The watches begin with [Watcher.Run] or
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
	failed := func(_ *cache.Reflector, err error) {
		if missing := apierrors.IsNotFound(err); !missing || !i.missing.Swap(true) {
			w.log.Warn("kubernetes", "kind", kind, "err", err)
		}
		w.notify()
	}
	changed := func(any) { w.stale.Store(true); w.notify() }
	updated := func(before, after any) {
		if sameGeneration(before, after) {
			w.notify()
		} else {
			changed(after)
		}
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed, UpdateFunc: updated})
	return i, errors.Join(err, i.SetTransform(strip), i.SetWatchErrorHandler(failed))
}

// sameGeneration reports whether an update changed neither the specification nor the
// annotations of an object. The arguments are the object before and after the update. It
// returns false for a kind of object without generations, such as Secret.
func sameGeneration(before, after any) bool {
	a, ok1 := before.(*unstructured.Unstructured)
	b, ok2 := after.(*unstructured.Unstructured)
	return ok1 && ok2 && a.GetUID() == b.GetUID() && a.GetGeneration() != 0 && a.GetGeneration() == b.GetGeneration() &&
		maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

func (w *Watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// start starts the watches, which end when ctx ends. The returned function wait blocks
// until all watches have ended.
func (w *Watcher) start(ctx context.Context) (wait func()) {
	var all sync.WaitGroup
	for _, i := range w.informers {
		all.Go(func() { i.RunWithContext(ctx) })
	}
	return all.Wait
}

// complete reports whether the existing objects of each kind have been read. It ignores a
// kind that the API server does not have.
func (w *Watcher) complete() bool {
	for _, i := range w.informers {
		if !i.HasSynced() && !i.missing.Load() {
			return false
		}
	}
	return true
}

// objects returns the objects that have been read. It logs and leaves out an object that
// cannot be decoded.
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

// delay is the time between a change and its translation. Changes during this time are
// translated together.
const delay = 50 * time.Millisecond

// retryInterval is the time after which [Watcher.Run] tries to load a configuration again.
const retryInterval = 5 * time.Second

// wait waits for a changed object, or for a value from the channel named again. It then
// waits until all existing objects have been read, and returns true. It returns false if
// ctx ends first.
func (w *Watcher) wait(ctx context.Context, again <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-again:
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
		again = time.After(delay) // the end of the first list causes no event
	}
}

// Read reads all objects once and returns the configuration for them. It returns an error
// if ctx ends first.
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

// Run watches the cluster until ctx ends. After a change, it calls load with the new
// configuration if that differs from the loaded one. It then writes the status of the
// objects, unless load returned an error.
//
// load must return a [config.AddressError] if the gateway cannot listen at an address. Run
// then calls load again, with a configuration without this address. After 5 s it tries all
// addresses again, because the address may be free then. If load returns any other error,
// or a status cannot be written, Run also tries again after 5 s.
func (w *Watcher) Run(ctx context.Context, load func(*config.Config) error) {
	ctx, cancel := context.WithCancel(ctx)
	wait := w.start(ctx)
	defer wait()
	defer cancel()
	again := time.After(0)
	w.stale.Store(true)
	for w.wait(ctx, again) {
		again = nil
		var err error
		if w.stale.Swap(false) { // before the objects are read
			err = w.apply(ctx, w.objects(), load)
		} else {
			err = w.writeStatuses(ctx, w.loaded.Statuses)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Error("kubernetes", "err", err)
		}
		if (err != nil || w.excluded) && ctx.Err() == nil {
			w.stale.Store(true)
			again = time.After(retryInterval)
		}
	}
}

// apply translates o, loads the configuration if it has changed, and writes the status of
// the objects. It leaves out addresses at which the gateway cannot listen.
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
			w.loaded = nil // load may have closed listeners
			return err
		}
		if !r.equal(w.loaded) {
			w.log.Info("configuration loaded", "services", len(r.Config.Services), "routes", len(r.Config.Routes))
			for address, reason := range unusable.Addresses { // an Ingress has no condition for it
				w.log.Warn("cannot listen", "address", address, "err", reason)
			}
		}
		w.loaded, w.excluded = r, len(unusable.Addresses) > 0
		return w.writeStatuses(ctx, r.Statuses)
	}
}

// equal reports whether r and o have the same configuration. It returns false if o is nil.
func (r *Result) equal(o *Result) bool {
	return o != nil && bytes.Equal(r.Text, o.Text) && maps.EqualFunc(r.Files, o.Files, bytes.Equal)
}

// writeStatuses writes each status that differs from the current status of its object. It
// ignores an object that has been deleted. It also ignores a conflict, because Run writes
// the statuses again after each change of an object.
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
