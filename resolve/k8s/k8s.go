package k8s

import (
	"context"
	"iter"
	"sync"

	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/resolve"
)

// Resolver watches the EndpointSlices of Services. It is made by [New], safe for
// concurrent use, holds nothing that has to be closed, and must not be copied.
// Without a stream it has no watch, no goroutine and no memory of any Service.
type Resolver struct {
	client  kubernetes.Interface
	options options

	mu       sync.Mutex
	watchers map[object]*watcher
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver that asks the API server of client, which stays the
// caller's. See the package's documentation for what client must be allowed to
// do, and for the limit on its requests. New panics if client is nil.
func New(client kubernetes.Interface, opts ...Option) *Resolver {
	if client == nil {
		panic("k8s: New: the client is nil")
	}
	return &Resolver{client: client, options: newOptions(opts), watchers: make(map[object]*watcher)}
}

// Resolve yields the endpoints of target, whole, and again after each change,
// until ctx ends or the consumer breaks. For the forms of target, and for what
// is an error, see the package's documentation.
//
// All streams of a Service share its watches, whichever port they are for: the
// first one begins them, they end with the last one, and one that comes later
// gets the last answer at once. A consumer that is slower than the changes is
// not told of those that are over.
func (r *Resolver) Resolve(ctx context.Context, name string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		if ctx.Err() != nil {
			return
		}
		t, err := parseTarget(name, r.options.namespace, r.options.domain)
		if err != nil {
			yield(resolve.Update{}, err)
			return
		}
		w := r.enter(t.object)
		defer r.leave(w)
		v := view{options: &r.options, target: t}
		var at position
		for ctx.Err() == nil {
			n := w.look(&at)
			for _, i := range v.items(n) {
				if ctx.Err() != nil || !yield(i.update, i.err) {
					return
				}
			}
			select {
			case <-n.changed:
			case <-ctx.Done():
			}
		}
	}
}

// enter joins the watches of a Service, and starts them for the first stream.
func (r *Resolver) enter(of object) *watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.watchers[of]
	if w == nil {
		w = startWatcher(r.client, of, r.options.backoff)
		r.watchers[of] = w
	}
	w.streams++
	return w
}

// leave ends the watches with their last stream, and returns when what they
// held is released.
func (r *Resolver) leave(w *watcher) {
	r.mu.Lock()
	w.streams--
	last := w.streams == 0
	if last {
		delete(r.watchers, w.object)
	}
	r.mu.Unlock()
	if last {
		w.stop()
	}
}
