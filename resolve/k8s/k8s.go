package k8s

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/internal/share"
	"github.com/gotower/gotower/resolve"
)

// Resolver watches Services' EndpointSlices. Create it with [New]. It is safe for concurrent use,
// need not be closed, and must not be copied. It runs watches and goroutines only while there are
// streams.
type Resolver struct {
	client  kubernetes.Interface
	options options

	watchers share.Group[object, *watcher] // one for each Service that has a stream
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver that uses client. The package documentation describes the
// permissions and the rate limit that client needs. New panics if client is nil.
func New(client kubernetes.Interface, opts ...Option) *Resolver {
	if client == nil {
		panic("k8s: New: the client is nil")
	}
	return &Resolver{client: client, options: newOptions(opts)}
}

// Resolve yields all endpoints of target, and again after each change, until ctx ends or the
// consumer breaks. The package documentation describes which targets you can use, and the errors.
//
// All streams for a Service share its watches, which start with the first stream and end with the
// last.
//
// A later stream yields the last answer immediately. A slow consumer gets only the latest answer.
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
		// Use starts the watcher for the first stream of this Service, and leave stops it after the last one.
		w, leave := r.watchers.Use(t.object, func() (*watcher, func()) {
			w := startWatcher(r.client, t.object, r.options.backoff)
			return w, w.stop
		})
		defer leave()
		// v remembers what this stream has yielded, and pos how much of the shared state it has seen.
		v := view{options: &r.options, target: t}
		var pos position
		for ctx.Err() == nil {
			n := w.changesSince(&pos)
			for _, i := range v.items(n) {
				// The consumer may end ctx while it handles an item.
				if ctx.Err() != nil || !yield(i.update, i.err) {
					return
				}
			}
			// n.changed is from before the items were read, so that no change in between is missed.
			select {
			case <-n.changed:
			case <-ctx.Done():
			}
		}
	}
}

// Option configures [New].
type Option func(*options)

// options holds the settings of a Resolver.
type options struct {
	namespace string
	domain    string
	zone      string
	backoff   resolve.Backoff
}

// newOptions returns the settings in opts, and the defaults for all others.
func newOptions(opts []Option) options {
	var o options
	option.Apply(&o, opts)
	if o.domain == "" {
		o.domain = "cluster.local"
	}
	if o.backoff == (resolve.Backoff{}) {
		o.backoff = resolve.Backoff{Min: 800 * time.Millisecond, Max: 30 * time.Second, Jitter: 1}
	}
	o.backoff = o.backoff.OrDefault()
	return o
}

// WithNamespace sets the namespace of targets without one, such as "web:80". With "",
// the default, such targets are rejected. It panics if name cannot be a namespace.
func WithNamespace(name string) Option {
	if reason := notLabel(name); name != "" && reason != "" {
		panic(fmt.Sprintf("k8s: WithNamespace: %q %s", name, reason))
	}
	return func(o *options) { o.namespace = name }
}

// WithClusterDomain sets the domain that may follow "name.namespace.svc". "", the
// default, means "cluster.local".
func WithClusterDomain(domain string) Option {
	return func(o *options) { o.domain = strings.ToLower(strings.Trim(domain, ".")) }
}

// WithZone sets the caller's zone, as in the node label topology.kubernetes.io/zone. The resolver
// then follows the hints for topology aware routing: endpoints for other zones get Priority 1,
// see the package documentation. With "", the default, hints are ignored.
func WithZone(zone string) Option {
	return func(o *options) { o.zone = zone }
}

// WithBackoff sets the wait before a failed list or watch is repeated. The default is
// client-go's: 800 ms, doubled up to 30 s, plus a random part of up to the same length. The zero
// value means this default. If b is not zero, a Min or Max of 0 means the default in
// [resolve.Backoff], and a Jitter of 0 means no jitter. It panics if a field is out of range.
func WithBackoff(b resolve.Backoff) Option {
	if err := backoff.Check(b); err != nil {
		panic("k8s: " + err.Error())
	}
	return func(o *options) { o.backoff = b }
}
