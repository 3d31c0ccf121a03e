package k8s

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster has the objects of a kube-apiserver, behind client-go's fake client. The
// tracker of the fake loses deletions between a list and the following watch, and
// ignores the selectors of a watch. This one does not.
type cluster struct {
	client *fake.Clientset

	mu       sync.Mutex
	version  int
	objects  map[string]runtime.Object // by resource, namespace and name
	history  []change
	watches  []*connection
	refuse   func(verb, resource string) error // nil lets all through
	requests map[string]int                    // by verb and resource
}

type change struct {
	version  int
	resource string
	event    watch.Event
	before   runtime.Object
}

type connection struct {
	resource, namespace string
	selects             func(runtime.Object) bool
	events              chan watch.Event
	*watch.ProxyWatcher
}

const (
	servicesResource = "services"
	slicesResource   = "endpointslices"
)

func newCluster(objects ...runtime.Object) *cluster {
	c := &cluster{
		client: fake.NewClientset(), objects: map[string]runtime.Object{}, requests: map[string]int{},
	}
	c.client.PrependReactor("list", "*", c.list)
	c.client.PrependWatchReactor("*", c.watch)
	for _, o := range objects {
		c.put(o)
	}
	return c
}

func resourceOf(o runtime.Object) string {
	if _, ok := o.(*corev1.Service); ok {
		return servicesResource
	}
	return slicesResource
}

func keyOf(o runtime.Object) string {
	m, _ := meta.Accessor(o)
	return resourceOf(o) + "/" + m.GetNamespace() + "/" + m.GetName()
}

// put creates an object or takes the place of one.
func (c *cluster) put(o runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.objects[keyOf(o)]
	kind := watch.Modified
	if before == nil {
		kind = watch.Added
	}
	c.record(kind, o, before)
}

// remove deletes an object.
func (c *cluster) remove(o runtime.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.objects[keyOf(o)]; before != nil {
		c.record(watch.Deleted, before, before)
	}
}

func (c *cluster) record(kind watch.EventType, o, before runtime.Object) {
	c.version++
	o = o.DeepCopyObject()
	m, _ := meta.Accessor(o)
	m.SetResourceVersion(strconv.Itoa(c.version))
	if kind == watch.Deleted {
		delete(c.objects, keyOf(o))
	} else {
		c.objects[keyOf(o)] = o
	}
	ch := change{c.version, resourceOf(o), watch.Event{Type: kind, Object: o}, before}
	c.history = append(c.history, ch)
	for _, w := range c.watches {
		w.send(ch)
	}
}

// send makes of a change what the selectors of a watch make of it.
func (w *connection) send(ch change) {
	if w.resource != ch.resource {
		return
	}
	now := ch.event.Type != watch.Deleted && w.selects(ch.event.Object)
	before := ch.before != nil && w.selects(ch.before)
	e := watch.Event{Object: ch.event.Object.DeepCopyObject()}
	switch {
	case now && before:
		e.Type = watch.Modified
	case now:
		e.Type = watch.Added
	case before:
		e.Type = watch.Deleted
	default:
		return
	}
	w.events <- e
}

func (c *cluster) admit(verb, resource string) error {
	c.requests[verb+" "+resource]++
	if c.refuse != nil {
		return c.refuse(verb, resource)
	}
	return nil
}

func selector(namespace string, l labels.Selector, f fields.Selector) func(runtime.Object) bool {
	return func(o runtime.Object) bool {
		m, _ := meta.Accessor(o)
		return m.GetNamespace() == namespace && l.Matches(labels.Set(m.GetLabels())) &&
			f.Matches(fields.Set{"metadata.name": m.GetName()})
	}
}

func (c *cluster) list(a clienttesting.Action) (bool, runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resource := a.GetResource().Resource
	if err := c.admit("list", resource); err != nil {
		return true, nil, err
	}
	r := a.(clienttesting.ListActionImpl).GetListRestrictions()
	selects := selector(a.GetNamespace(), r.Labels, r.Fields)
	list := metav1.ListMeta{ResourceVersion: strconv.Itoa(c.version)}
	found := &corev1.ServiceList{ListMeta: list}
	slicesFound := &discoveryv1.EndpointSliceList{ListMeta: list}
	for _, o := range c.objects {
		if resourceOf(o) != resource || !selects(o) {
			continue
		}
		switch o := o.DeepCopyObject().(type) {
		case *corev1.Service:
			found.Items = append(found.Items, *o)
		case *discoveryv1.EndpointSlice:
			slicesFound.Items = append(slicesFound.Items, *o)
		}
	}
	if resource == servicesResource {
		return true, found, nil
	}
	return true, slicesFound, nil
}

func (c *cluster) watch(a clienttesting.Action) (bool, watch.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resource := a.GetResource().Resource
	if err := c.admit("watch", resource); err != nil {
		return true, nil, err
	}
	r := a.(clienttesting.WatchActionImpl).GetWatchRestrictions()
	events := make(chan watch.Event, 1000)
	w := &connection{
		resource: resource, namespace: a.GetNamespace(), events: events,
		selects: selector(a.GetNamespace(), r.Labels, r.Fields), ProxyWatcher: watch.NewProxyWatcher(events),
	}
	since, err := strconv.Atoi(r.ResourceVersion)
	if err != nil {
		return true, nil, fmt.Errorf("watch from version %q: %w", r.ResourceVersion, err)
	}
	for _, ch := range c.history {
		if ch.version > since {
			w.send(ch)
		}
	}
	c.watches = append(c.watches, w)
	return true, w, nil
}

// cut ends the watches, with an error if it is not nil, and rejects later requests by
// refuse.
func (c *cluster) cut(with *apierrors.StatusError, refuse func(verb, resource string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
	for _, w := range c.watches {
		if with != nil {
			status := with.Status()
			w.events <- watch.Event{Type: watch.Error, Object: &status}
		}
		close(w.events)
	}
	c.watches = nil
}

// heal lets all requests through.
func (c *cluster) heal() { c.refuseAs(nil) }

// refuseAs sets which requests are rejected. Watches continue.
func (c *cluster) refuseAs(refuse func(verb, resource string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
}

// open is how many watches were not stopped.
func (c *cluster) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(c.watches), func(w *connection) bool { return w.Stopping() }))
}

// count returns how many requests there were of a verb and resource.
func (c *cluster) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requests[what]
}
