package k8s

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/internal/backoff"
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

// Option changes what New returns.
type Option interface{ apply(to *options) }

type options struct {
	namespace string
	domain    string
	prefer    corev1.IPFamily // "" means the Service's first
	zone      string
	backoff   resolve.Backoff
}

type option func(*options)

func (o option) apply(to *options) { o(to) }

func newOptions(opts []Option) options {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.domain == "" {
		o.domain = "cluster.local"
	}
	if o.backoff == (resolve.Backoff{}) {
		o.backoff = resolve.Backoff{Min: 800 * time.Millisecond, Max: 30 * time.Second, Jitter: 1}
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithNamespace sets the namespace of targets that name none, such as "web:80". The
// default, and "", is to reject those. A name that cannot be a namespace panics.
func WithNamespace(name string) Option {
	if why := notLabel(name); name != "" && why != "" {
		panic(fmt.Sprintf("k8s: WithNamespace: %q %s", name, why))
	}
	return option(func(o *options) { o.namespace = name })
}

// WithClusterDomain sets what may stand after "name.namespace.svc". The default, and
// "", is "cluster.local".
func WithClusterDomain(domain string) Option {
	return option(func(o *options) { o.domain = strings.ToLower(strings.Trim(domain, ".")) })
}

// WithPreferIPv4 takes the IPv4 addresses of a Service that has both, whichever its
// first family is. The last of WithPreferIPv4 and [WithPreferIPv6] counts.
func WithPreferIPv4() Option {
	return option(func(o *options) { o.prefer = corev1.IPv4Protocol })
}

// WithPreferIPv6 takes the IPv6 addresses of a Service that has both, whichever its
// first family is.
func WithPreferIPv6() Option {
	return option(func(o *options) { o.prefer = corev1.IPv6Protocol })
}

// WithZone names the zone that the caller is in, as the nodes' label
// topology.kubernetes.io/zone has it, and makes the resolver follow the hints of
// topology aware routing; see the package's documentation. The default, and "",
// is to pass the hints over.
func WithZone(own string) Option {
	return option(func(o *options) { o.zone = own })
}

// WithBackoff sets how long to wait before a list or a watch that failed is tried
// again. The zero value, the default, means what client-go has: 800 ms, doubled
// each time up to 30 s, and up to as much again at random. Otherwise a field that is
// 0 has the default of [resolve.Backoff], and one that is out of range panics. After
// a watch that the API server ends because it is overloaded, Jitter is added to Max.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("k8s: " + err.Error())
	}
	return option(func(o *options) { o.backoff = b })
}
