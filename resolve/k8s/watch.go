package k8s

import (
	"context"
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
