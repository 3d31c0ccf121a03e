package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gotower/gotower/internal/backoff"
)

// defaultSettle is how long Watch waits after a change of a pod before it yields all pods.
// Changes within this time cause only one item.
const defaultSettle = 100 * time.Millisecond

// condition selects a resource's pods. A Service's pods are those that match its selector.
type condition struct {
	Resource

	selector labels.Selector
}

// conditions returns the conditions that select the resources' pods. It returns an error for a
// resource that does not exist, and for a Service without a selector.
func (c *Cluster) conditions(ctx context.Context, resources []Resource) ([]condition, error) {
	var all []condition
	for _, r := range resources {
		// Each Service has its own selector, so all of them are looked up.
		if r.Kind == "service" && r.Name == "" {
			expanded, err := c.Expand(ctx, []Resource{r})
			if err != nil {
				return nil, err
			}
			inner, err := c.conditions(ctx, expanded)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			continue
		}
		found := condition{Resource: r}
		if r.Name != "" {
			u, err := c.get(ctx, r)
			if err != nil {
				return nil, err
			}
			// A Service's pods are those that match its selector. Other kinds are found by owner.
			if r.Kind == "service" {
				selector, _, _ := unstructured.NestedStringMap(u.Object, "spec", "selector")
				if len(selector) == 0 {
					return nil, fmt.Errorf("%s: has no selector, so that its pods are unknown", r)
				}
				found.selector = labels.SelectorFromSet(selector)
			}
		}
		all = append(all, found)
	}
	return all, nil
}

// has reports whether the pod p belongs to the resource in w.
func (w *condition) has(p *Pod) bool {
	if w.Namespace != "" && w.Namespace != p.Namespace {
		return false
	}
	switch w.Kind {
	case "namespace":
		return true
	case "pod":
		return w.Name == "" || w.Name == p.Name
	case "serviceaccount":
		return w.Name == "" || w.Name == p.account
	case "service":
		return w.selector.Matches(labels.Set(p.labels))
	}
	// All other kinds own pods.
	return slices.ContainsFunc(p.Owners, func(o Resource) bool { return o.Kind == w.Kind && (w.Name == "" || w.Name == o.Name) })
}

// Pods are the running pods in a namespace, or in all namespaces.
type Pods struct {
	Of []Pod // the pods of the watched resources, sorted by namespace and name

	byIP   map[string]*Pod // all running pods by IP address, except those with hostNetwork
	wanted []condition     // select the pods in Of
}

// OfResource returns the pods in p.Of that belong to r. It returns nil if r is not one of
// the watched resources.
func (p *Pods) OfResource(r Resource) []Pod {
	var all []Pod
	for _, w := range p.wanted {
		// The resource is compared as a whole, because it was one of those on the command line.
		if w.Resource != r {
			continue
		}
		for _, pod := range p.Of {
			if w.has(&pod) {
				all = append(all, pod)
			}
		}
	}
	return all
}

// Watch yields the resources' pods at first, and again after each change, until ctx ends. If a
// resource does not exist or the pods cannot be listed, the only item is an error. Watch also
// yields later errors about the connection to the API server, and continues. If some pods' owners
// cannot be read, an item carries both the pods and an error.
func (c *Cluster) Watch(ctx context.Context, resources []Resource) iter.Seq2[*Pods, error] {
	return func(yield func(*Pods, error) bool) {
		wanted, err := c.conditions(ctx, resources)
		if err != nil {
			yield(nil, err)
			return
		}
		namespace := common(resources)
		// A list of one pod finds out whether the user may list pods at all.
		if _, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			yield(nil, fmt.Errorf("the pods: %w", err))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		// One value is enough: it means that something has changed since the last list.
		changed := make(chan struct{}, 1)
		failed := make(chan error, 1)
		informer := c.informer(namespace, changed, failed)
		var running sync.WaitGroup
		running.Go(func() { informer.RunWithContext(klog.NewContext(ctx, klog.Logger{})) }) // errors are yielded instead
		running.Go(func() {
			if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				notify(changed) // also without any pod
			}
		})
		defer running.Wait()
		// The deferred calls run in reverse: first cancel, then wait for the goroutines.
		defer cancel()
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-failed:
				if !yield(nil, fmt.Errorf("the API server: %w", err)) {
					return
				}
				continue
			case <-changed:
			}
			// A change before the first complete list would yield only a part of the pods. Then wait until changes
			// settle.
			if !informer.HasSynced() || backoff.Sleep(ctx, c.settle) != nil {
				continue
			}
			// The pods may be incomplete together with an error, so both are yielded.
			pods, err := c.pods(ctx, informer.GetStore().List(), wanted)
			if ctx.Err() != nil || !yield(pods, err) {
				return
			}
		}
	}
}

// notify sends a value to changed. It does nothing if a value is already waiting there.
func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// informer returns an informer that keeps a list of a namespace's pods. After each change to a
// pod, the informer sends a value to the channel changed, and connection errors to failed. It
// drops an error if the previous one has not been received.
func (c *Cluster) informer(namespace string, changed chan<- struct{}, failed chan error) cache.SharedInformer {
	pods := c.client.CoreV1().Pods(namespace)
	// report passes an error on, or drops it if the last one has not been read.
	report := func(err error) {
		if err == nil {
			return
		}
		select {
		case failed <- err:
		default: // the error before is not read yet
		}
	}
	informer := cache.NewSharedInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := pods.List(ctx, o)
			report(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := pods.Watch(ctx, o)
			report(err)
			return w, err
		},
	}, c.client), &corev1.Pod{}, 0)
	// strip drops parts of pods that are large and not needed.
	strip := func(o any) (any, error) {
		if p, ok := o.(*corev1.Pod); ok {
			p.ManagedFields = nil
			p.Annotations = nil
		}
		return o, nil
	}
	// tell ignores which pod has changed, because the whole list is read.
	tell := func(any) { notify(changed) }
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(_, now any) { tell(now) },
	})
	report(errors.Join(err, informer.SetTransform(strip))) // not possible before the informer runs
	return informer
}

// pods converts objects, which are pods from the API server, to Pods, and skips those that do not run.
// Pods.Of contains only the pods that match c.selector, the user's label selector, and at least one
// condition in wanted. Pods.byIP contains the others, too, because any of them may be a peer. If the
// owners of some pods cannot be read, it returns the first such error together with the Pods.
func (c *Cluster) pods(ctx context.Context, objects []any, wanted []condition) (*Pods, error) {
	all := &Pods{wanted: wanted, byIP: make(map[string]*Pod)}
	var errs []error
	for _, item := range objects {
		o, ok := item.(*corev1.Pod)
		if !ok {
			continue
		}
		p := newPod(o)
		if p == nil {
			continue // it does not run
		}
		var err error
		if p.Owners, err = c.ownersOf(ctx, o); err != nil {
			errs = append(errs, err)
		}
		if c.selector.Matches(labels.Set(p.labels)) && slices.ContainsFunc(wanted, func(w condition) bool { return w.has(p) }) {
			all.Of = append(all.Of, *p)
		}
		if !o.Spec.HostNetwork { // otherwise the address is that of the node
			all.byIP[p.IP] = p
		}
	}
	slices.SortFunc(all.Of, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	// One error stands for all, because they are usually the same.
	if len(errs) > 0 {
		return all, fmt.Errorf("the owners of pods: %w", errs[0])
	}
	return all, nil
}

// Pods returns the current pods of the resources.
func (c *Cluster) Pods(ctx context.Context, resources []Resource) (*Pods, error) {
	// The first item is the current list.
	for pods, err := range c.Watch(ctx, resources) {
		return pods, err
	}
	return nil, fmt.Errorf("the pods: %w", context.Cause(ctx))
}

// common returns the resources' namespace. It returns "" if their namespaces differ.
func common(resources []Resource) string {
	namespace := ""
	for i, r := range resources {
		if i > 0 && r.Namespace != namespace {
			return metav1.NamespaceAll
		}
		namespace = r.Namespace
	}
	return namespace
}
