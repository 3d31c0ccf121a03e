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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

const (
	// settled is the most of what lasting returns.
	settled = 10 * time.Second
	// doublings are enough for any Max: a Duration has 63 bits.
	doublings = 63
)

// watcher is what is watched of one Service: the Service and its EndpointSlices.
type watcher struct {
	*board

	object  object
	streams int // guarded by the Resolver's mu
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func startWatcher(client kubernetes.Interface, of object, b resolve.Backoff) *watcher {
	// It is every stream's, so it does not end with the first one's context.
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{board: newBoard(), object: of, cancel: cancel}
	// What client-go would log is told to the streams; a Logger without a sink
	// is silent.
	ctx = klog.NewContext(ctx, klog.Logger{})
	w.reflect(ctx, services, w.serviceSource(client), &corev1.Service{}, w.serviceStore(), b)
	w.reflect(ctx, endpointSlices, w.sliceSource(client), &discoveryv1.EndpointSlice{}, w.sliceStore(), b)
	return w
}

// stop returns when nothing is held any more.
func (w *watcher) stop() {
	w.cancel()
	w.running.Wait()
}

// reflect starts a Reflector of one kind.
func (w *watcher) reflect(
	ctx context.Context, k kind, from *source, example any, to cache.ReflectorStore, b resolve.Backoff,
) {
	from.failed = func(verb string, err error) { w.fail(k, failure(w.object, k, verb, err)) }
	from.works = func() { w.works(k) }
	from.running, from.backoff = &w.running, b
	silent := klog.Logger{}
	// For a watch that ends because the API server is overloaded, which a
	// Reflector begins anew by itself.
	again := wait.Backoff{Duration: b.Min, Cap: b.Max, Factor: 2, Jitter: b.Jitter, Steps: doublings}
	r := cache.NewReflectorWithOptions(from, example, to, cache.ReflectorOptions{
		Logger: &silent, Name: w.object.String(), Backoff: &again,
	})
	w.running.Go(func() {
		follow(ctx, func(ctx context.Context) {
			// The transport of the client is the program's. The source has reported
			// errors already.
			err := panics.Contain(func() { _ = r.ListAndWatchWithContext(ctx) })
			if err != nil && ctx.Err() == nil {
				from.failed("watch", err)
			}
		}, from.lasted, b)
		from.settle()
	})
}

// follow lists and watches until ctx ends. It is the loop of Reflector.Run
// without its handler of errors, which cannot be replaced, logs and slows down
// all of the process; the source has told the streams already. The back-off
// starts anew after a watch that lasted; a list that hung does not count.
func follow(ctx context.Context, listAndWatch func(context.Context), lasted func() bool, b resolve.Backoff) {
	for failures := 0; ctx.Err() == nil; failures++ {
		listAndWatch(ctx)
		if lasted() {
			failures = 0
		}
		if backoff.Sleep(ctx, b.Delay(failures)) != nil {
			return
		}
	}
}

// lasting is how long a watch must last for a back-off to start anew.
func lasting(b resolve.Backoff) time.Duration { return min(settled, b.Max) }

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

func (w *watcher) serviceStore() cache.ReflectorStore {
	return newStore(readService, func(items map[string]*service) {
		w.tell(services, func(s *snapshot) { s.service = items[w.object.name] })
	})
}

func (w *watcher) sliceStore() cache.ReflectorStore {
	read := func(obj any) (string, *endpointSlice) { return readSlice(obj, w.object.name) }
	return newStore(read, func(items map[string]*endpointSlice) {
		w.tell(endpointSlices, func(s *snapshot) { s.slices = sorted(items) })
	})
}

// store is what a Reflector writes to: it boils each object down and lets it go.
// A list takes the place of all at once. It is for the Reflector's goroutine.
type store[T any] struct {
	read  func(obj any) (name string, item *T) // nil for what is not of interest
	items map[string]*T
	put   func(items map[string]*T) // gets the store's own map, to read before it returns
}

var _ cache.ReflectorStore = (*store[service])(nil)

func newStore[T any](read func(any) (string, *T), put func(map[string]*T)) *store[T] {
	return &store[T]{read: read, items: make(map[string]*T), put: put}
}

// Add also replaces: a watch that begins anew may say what is known.
func (s *store[T]) Add(obj any) error {
	name, item := s.read(obj)
	if item == nil {
		return s.Delete(obj) // it may have been of interest before
	}
	s.items[name] = item
	s.put(s.items)
	return nil
}

func (s *store[T]) Update(obj any) error { return s.Add(obj) }

func (s *store[T]) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	_, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	if _, known := s.items[name]; known {
		delete(s.items, name)
		s.put(s.items)
	}
	return nil
}

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

func (s *store[T]) Resync() error { return nil }

// sorted returns the items in the order of their names.
func sorted[T any](items map[string]*T) []*T {
	list := make([]*T, 0, len(items))
	for _, name := range slices.Sorted(maps.Keys(items)) {
		list = append(list, items[name])
	}
	return list
}

// view is what one stream has said of its target.
type view struct {
	*options

	target target
	said   resolve.Update // its Kind is 0 before the first
	amiss  map[string]bool
}

// item is one to yield.
type item struct {
	update resolve.Update
	err    error
}

// items is what the stream has to say of n: what is amiss in a snapshot before
// what that means, and failures after it, for what is known serves whoever
// comes during an outage.
func (v *view) items(n news) []item {
	var list []item
	if n.snapshot != nil {
		u, amiss := v.answer(*n.snapshot, v.target.port)
		fresh := v.unsaid(amiss)
		for _, text := range fresh {
			list = append(list, item{err: fmt.Errorf("k8s: %v: %s", v.target.object, text)})
		}
		same := u.Kind == v.said.Kind && slices.EqualFunc(u.Endpoints, v.said.Endpoints, resolve.Endpoint.Equal)
		if !same || n.back || len(fresh) > 0 { // what follows an error says that it is over
			v.said = u
			u.Endpoints = slices.Clone(u.Endpoints) // the consumer may do with it what it likes
			list = append(list, item{update: u})
		}
	}
	for _, err := range n.errs {
		list = append(list, item{err: err})
	}
	return list
}

// unsaid returns the sentences that are new. Those that are true no more are
// forgotten, and said again when they are true again.
func (v *view) unsaid(amiss []string) []string {
	now := make(map[string]bool, len(amiss))
	for _, text := range amiss {
		now[text] = true
	}
	before := v.amiss
	v.amiss = now
	return slices.DeleteFunc(slices.Sorted(maps.Keys(now)), func(text string) bool { return before[text] })
}

// board is what is known of a Service, for any number of streams, none of which
// it waits for.
type board struct {
	mu       sync.Mutex
	changed  chan struct{} // closed when what is below is not the latest any more
	now      snapshot
	listed   [kinds]bool
	failing  [kinds]error
	answers  int // how many snapshots there were
	returns  int // how often all was well again
	failures [kinds]int
}

// kind is what a Reflector reads.
type kind int

const (
	services kind = iota
	endpointSlices
	kinds
)

func newBoard() *board { return &board{changed: make(chan struct{})} }

// tell changes the snapshot by what was read of a kind.
func (b *board) tell(k kind, change func(s *snapshot)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.now)
	b.listed[k] = true
	b.answers++
	b.wake()
}

func (b *board) fail(k kind, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing[k] = err
	b.failures[k]++
	b.wake()
}

// works says that what is known of a kind is watched.
func (b *board) works(k kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing[k] == nil {
		return
	}
	b.failing[k] = nil
	if b.failing == [kinds]error{} {
		b.returns++
		b.wake()
	}
}

// wake is called with mu held.
func (b *board) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// position is how far a stream is.
type position struct {
	answers, returns int
	failures         [kinds]int
}

// news is what a stream has not seen yet.
type news struct {
	snapshot *snapshot // nil if it is no other, or not whole yet
	back     bool      // all is well again
	errs     []error
	changed  <-chan struct{}
}

// look returns what is new since at, all of one moment, and moves at on. A
// stream is not told of a failure that is over.
func (b *board) look(at *position) news {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := news{changed: b.changed, back: b.returns > at.returns}
	// Where there is no Service, it does not matter which slices there are.
	whole := b.listed[services] && (b.now.service == nil || b.listed[endpointSlices])
	if whole && (b.answers > at.answers || n.back) {
		s := b.now
		n.snapshot = &s
	}
	for k, err := range b.failing {
		if err != nil && b.failures[k] > at.failures[k] {
			n.errs = append(n.errs, err)
		}
	}
	*at = position{b.answers, b.returns, b.failures}
	return n
}
