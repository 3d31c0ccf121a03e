package k8s

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

const settled = 10 * time.Second // source.lasting is at most this duration

// watcher watches one Service and its EndpointSlices. All streams of the Service share it.
type watcher struct {
	*state

	object  object
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// startWatcher starts the two Reflectors for the Service obj, with the backoff b. The caller must call
// stop.
func startWatcher(client kubernetes.Interface, obj object, b resolve.Backoff) *watcher {
	// The watches do not use the first stream's context, because all streams share them.
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{state: newState(), object: obj, cancel: cancel}
	// A discarding logger, because the streams yield the errors.
	ctx = klog.NewContext(ctx, klog.Logger{})
	// A Reflector is client-go's loop of list and watch. It writes what it receives to a store.
	w.reflect(ctx, services, w.serviceSource(client), &corev1.Service{}, w.serviceStore(), b)
	w.reflect(ctx, endpointSlices, w.sliceSource(client), &discoveryv1.EndpointSlice{}, w.sliceStore(), b)
	return w
}

// stop ends the watches and waits until they have ended.
func (w *watcher) stop() {
	w.cancel()
	w.running.Wait()
}

// reflect starts a Reflector, which reads the objects of kind k from src and writes them to dst.
// example is an object of that kind.
func (w *watcher) reflect(
	ctx context.Context, k kind, src *source, example any, dst cache.ReflectorStore, b resolve.Backoff,
) {
	// The source reports to the state by these two functions, from the Reflector's goroutine.
	src.failed = func(verb string, err error) { w.fail(k, failure(w.object, k, verb, err)) }
	src.works = func() { w.works(k) }
	src.running, src.lasting = &w.running, min(settled, b.Max)
	// A zero logger writes nothing.
	silent := klog.Logger{}
	r := cache.NewReflectorWithOptions(src, example, dst, cache.ReflectorOptions{Logger: &silent, Name: w.object.String()})
	w.running.Go(func() {
		follow(ctx, func(ctx context.Context) {
			// ListAndWatch returns at each end of a watch. Then follow calls it again after a backoff.
			// A panic can come from the client's transport. The source has reported other errors.
			err := panics.Contain(func() { _ = r.ListAndWatchWithContext(ctx) })
			if err != nil && ctx.Err() == nil {
				src.failed("watch", err)
			}
		}, src.lasted, b)
		// The Reflector has ended, but a list that it started may still run.
		src.settle()
	})
}

// follow calls listAndWatch until ctx ends, with a backoff between the calls. The backoff
// is reset if lasted returns true after a call. follow replaces Reflector.Run, because the
// error handler of Run logs and delays the whole process.
func follow(ctx context.Context, listAndWatch func(context.Context), lasted func() bool, b resolve.Backoff) {
	for failures := 0; ctx.Err() == nil; failures++ {
		listAndWatch(ctx)
		if lasted() {
			failures = 0 // so that the next wait is the shortest
		}
		if backoff.Sleep(ctx, b.Delay(failures)) != nil {
			return
		}
	}
}

// serviceSource returns the source of the one Service that is watched.
func (w *watcher) serviceSource(client kubernetes.Interface) *source {
	api := client.CoreV1().Services(w.object.namespace)
	return &source{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		open: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return api.Watch(ctx, o) },
		scope: metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, w.object.name).String(),
		},
	}
}

// sliceSource returns the source of the EndpointSlices that belong to the Service by their label.
func (w *watcher) sliceSource(client kubernetes.Interface) *source {
	api := client.DiscoveryV1().EndpointSlices(w.object.namespace)
	return &source{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		open: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return api.Watch(ctx, o) },
		scope: metav1.ListOptions{
			LabelSelector: labels.Set{discoveryv1.LabelServiceName: w.object.name}.String(),
		},
	}
}

// serviceStore returns the store that puts the Service into the snapshot, or nil if the Service does
// not exist.
func (w *watcher) serviceStore() cache.ReflectorStore {
	// items has at most the one Service that the field selector lets through.
	return newStore(readService, func(items map[string]*service) {
		w.set(services, func(s *snapshot) { s.service = items[w.object.name] })
	})
}

// sliceStore returns the store that puts the Service's EndpointSlices into the snapshot.
func (w *watcher) sliceStore() cache.ReflectorStore {
	read := func(obj any) (string, *endpointSlice) { return readSlice(obj, w.object.name) }
	return newStore(read, func(items map[string]*endpointSlice) {
		w.set(endpointSlices, func(s *snapshot) { s.slices = sorted(items) })
	})
}

// store receives objects from a Reflector. It keeps each object's converted form, and after each
// change calls put with all of them. A list replaces all objects. Only the Reflector's goroutine
// uses the store.
type store[T any] struct {
	// converts an object; item is nil if the object is not used
	read  func(obj any) (name string, item *T)
	items map[string]*T             // the converted objects by name
	put   func(items map[string]*T) // receives all items after a change; must not keep the map
}

var _ cache.ReflectorStore = (*store[service])(nil)

// newStore returns an empty store with the two functions, which the fields of store describe.
func newStore[T any](read func(any) (string, *T), put func(map[string]*T)) *store[T] {
	return &store[T]{read: read, items: make(map[string]*T), put: put}
}

// Add adds or replaces an object.
func (s *store[T]) Add(obj any) error {
	name, item := s.read(obj)
	if item == nil {
		return s.Delete(obj) // an earlier version of it may have been used
	}
	s.items[name] = item
	s.put(s.items)
	return nil
}

// Update replaces an object that has changed. The Reflector calls it with the new version, obj. As with Add, an
// error means that obj is not a Kubernetes object.
func (s *store[T]) Update(obj any) error { return s.Add(obj) }

// Delete removes an object, if it is in the store.
func (s *store[T]) Delete(obj any) error {
	// The key is "namespace/name". It is computed as by client-go, because obj may be of any type.
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	_, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	// Without the object nothing changes, and the streams must not wake up.
	if _, ok := s.items[name]; ok {
		delete(s.items, name)
		s.put(s.items)
	}
	return nil
}

// Replace replaces all objects by those in list: the Reflector has listed them again.
func (s *store[T]) Replace(list []any, _ string) error {
	clear(s.items)
	for _, obj := range list {
		if name, item := s.read(obj); item != nil {
			s.items[name] = item
		}
	}
	s.put(s.items)
	return nil
}

// Resync is required by the interface. A store has nothing to repeat.
func (s *store[T]) Resync() error { return nil }

// sorted returns the items, sorted by name.
func sorted[T any](items map[string]*T) []*T {
	list := make([]*T, 0, len(items))
	for _, name := range slices.Sorted(maps.Keys(items)) {
		list = append(list, items[name])
	}
	return list
}

// view is the state of one stream. It records what the stream has yielded last, to find out what is
// new.
type view struct {
	*options

	target   target
	last     resolve.Update  // the last update; its Kind is 0 before the first one
	problems map[string]bool // the problems of the last snapshot
}

// item is either an update or an error. A stream yields it.
type item struct {
	update resolve.Update
	err    error
}

// items returns what the stream must yield after the changes n to the state. Errors about
// problems in a snapshot precede the update. Watch errors follow the update, so that a stream
// that starts during an outage yields the endpoints first.
func (v *view) items(n changes) []item {
	var list []item
	// The snapshot is nil if it is unchanged, and until both kinds are listed as far as needed.
	if n.snapshot != nil {
		u, problems := v.answer(*n.snapshot, v.target.port)
		added := v.newProblems(problems)
		for _, text := range added {
			list = append(list, item{err: fmt.Errorf("k8s: %v: %s", v.target.object, text)})
		}
		unchanged := u.Kind == v.last.Kind && slices.EqualFunc(u.Endpoints, v.last.Endpoints, resolve.Endpoint.Equal)
		if !unchanged || n.recovered || len(added) > 0 { // an update must follow an error
			v.last = u
			u.Endpoints = slices.Clone(u.Endpoints) // the consumer owns the slice
			list = append(list, item{update: u})
		}
	}
	for _, err := range n.errs {
		list = append(list, item{err: err})
	}
	return list
}

// newProblems returns the problems that were not among those of the previous call.
func (v *view) newProblems(problems []string) []string {
	now := make(map[string]bool, len(problems))
	for _, text := range problems {
		now[text] = true
	}
	// A problem that disappears and comes back is reported again.
	previous := v.problems
	v.problems = now
	return slices.DeleteFunc(slices.Sorted(maps.Keys(now)), func(text string) bool { return previous[text] })
}

// state holds a Service's current snapshot, and its watches' errors. Any number of streams read
// it, and changing it does not wait for them.
type state struct {
	mu       sync.Mutex
	changed  chan struct{} // closed at the next change
	now      snapshot      // the current snapshot
	listed   [kinds]bool   // whether the objects of a kind were listed
	failing  [kinds]error  // the current error of each kind, or nil
	answers  int           // number of snapshots so far
	returns  int           // number of recoveries so far
	failures [kinds]int    // number of errors of a kind so far
}

// kind identifies the objects that a Reflector watches: Services or EndpointSlices.
type kind int

// kinds is the number of kinds.
const (
	services kind = iota
	endpointSlices
	kinds
)

// newState returns the state before the first list: nothing is listed, and nothing has failed.
func newState() *state { return &state{changed: make(chan struct{})} }

// set is called after an object of kind k has changed. It applies change to the current snapshot
// and wakes the streams.
func (b *state) set(k kind, change func(s *snapshot)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.now)
	// Even an empty list is an answer: then the Service does not exist or has no slices.
	b.listed[k] = true
	b.answers++
	b.wake()
}

// fail records err as the current error of kind k, and wakes the streams, which yield it.
func (b *state) fail(k kind, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing[k] = err
	b.failures[k]++
	b.wake()
}

// works records that a watch of kind k was opened, and clears that kind's error. If this was the
// last error, works counts a recovery and wakes the streams. They then yield the known endpoints
// again, because an update ends the error.
func (b *state) works(k kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Usually there was no error, and opening a watch must not wake the streams.
	if b.failing[k] == nil {
		return
	}
	// The other kind may still be failing. The error has ended only if both work.
	b.failing[k] = nil
	if b.failing == [kinds]error{} {
		b.returns++
		b.wake()
	}
}

// wake wakes the Service's streams. The caller must hold mu.
func (b *state) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// position specifies which part of the state a stream has seen: how many snapshots, recoveries and
// errors there were when it last called changesSince. The zero position has seen nothing.
type position struct {
	answers, returns int
	failures         [kinds]int
}

// changes holds what one stream has not seen yet.
type changes struct {
	snapshot  *snapshot       // nil if unchanged or incomplete
	recovered bool            // whether the state became free of errors since the last call
	errs      []error         // the errors that have not ended
	changed   <-chan struct{} // closed at the next change
}

// changesSince returns how the state has changed since pos, and moves pos to now. It leaves out
// errors that a later success has ended.
func (b *state) changesSince(pos *position) changes {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := changes{changed: b.changed, recovered: b.returns > pos.returns}
	// Without a Service, the slices are not needed.
	whole := b.listed[services] && (b.now.service == nil || b.listed[endpointSlices])
	// After a recovery, the same snapshot is handed out again, because an update ends the error.
	if whole && (b.answers > pos.answers || n.recovered) {
		s := b.now
		n.snapshot = &s
	}
	// An error that was already reported to this stream is left out.
	for k, err := range b.failing {
		if err != nil && b.failures[k] > pos.failures[k] {
			n.errs = append(n.errs, err)
		}
	}
	*pos = position{b.answers, b.returns, b.failures}
	return n
}
