package tap

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

// Registry holds the watchers of a process. All layers and servers of the process share
// it. The zero Registry is ready to use. It must not be copied, is safe for concurrent
// use, starts no goroutine, and needs no Close.
type Registry struct {
	// active is nil without watchers. An audience does not change; it is replaced.
	active atomic.Pointer[audience]

	maxWatchers int
	maxEvents   int
	secrets     map[string]bool // set by options: true withholds the field of this lower-case name
	maxBody     int
	redact      func(contentType string, body []byte) []byte // nil: no bodies
	random      func() float64                               // nil means rand.Float64

	mu       sync.Mutex
	watchers []*watcher // not closed yet; some may be full
	counters []*counter
	nextBase uint32
	dropped  uint64 // events dropped by closed watchers
}

// audience is the set of watchers and counters that receive new requests.
type audience struct {
	watchers []*watcher
	counters []*counter
	explain  bool // whether a watcher requests explanations
}

// Defaults of a Registry, as linkerd's proxy has them.
const (
	defaultMaxTaps   = 100
	defaultMaxEvents = 400
)

// RegistryOption configures [NewRegistry].
type RegistryOption interface{ applyRegistry(r *Registry) }

type registryOption func(*Registry)

func (f registryOption) applyRegistry(r *Registry) { f(r) }

// NewRegistry returns a Registry without watchers.
func NewRegistry(opts ...RegistryOption) *Registry {
	r := &Registry{secrets: map[string]bool{}}
	for _, opt := range opts {
		if opt != nil {
			opt.applyRegistry(r)
		}
	}
	return r
}

// WithCapacity limits the number of watchers, and the number of events in the buffer of
// each. Further watchers are rejected with ResourceExhausted. The defaults, also for 0
// or less, are 100 watchers and 400 events.
func WithCapacity(watchers, events int) RegistryOption {
	return registryOption(func(r *Registry) { r.maxWatchers, r.maxEvents = watchers, events })
}

// WithRedacted withholds the values of these header and trailer fields, in addition to
// those that are withheld by default.
func WithRedacted(names ...string) RegistryOption {
	return registryOption(func(r *Registry) { r.hide(names, true) })
}

// WithRevealed shows the values of fields that are withheld by default, and of query
// parameters with these names. The name "query" shows the queries and fragments of
// URIs. Names are not case-sensitive. A later option overrides an earlier one.
func WithRevealed(names ...string) RegistryOption {
	return registryOption(func(r *Registry) { r.hide(names, false) })
}

func (r *Registry) hide(names []string, hide bool) {
	for _, name := range names {
		r.secrets[strings.ToLower(name)] = hide
	}
}

// watch adds a watcher. The caller must close it. The error is a rejection.
func (r *Registry) watch(t terms) (*watcher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(); err != nil {
		return nil, err
	}
	w := newWatcher(r, t)
	r.nextBase++ // overflow is harmless
	r.watchers = append(r.watchers, w)
	r.publish()
	return w, nil
}

// admit returns an error if the registry is full. The caller holds mu.
func (r *Registry) admit() error {
	most := orDefault(r.maxWatchers, defaultMaxTaps)
	if n := len(r.watchers) + len(r.counters); n >= most {
		return reject(codes.ResourceExhausted, fmt.Errorf("too many watchers: %d of %d", n, most))
	}
	return nil
}

// refresh removes full watchers from the audience. Events of their earlier requests still arrive.
func (r *Registry) refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// close removes a watcher and its buffer. Requests in flight send it no more events. It
// may be called more than once.
func (r *Registry) close(w *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.buf.Store(nil)
	if i := slices.Index(r.watchers, w); i >= 0 {
		r.dropped += w.dropped.Load()
		r.watchers = slices.Delete(r.watchers, i, i+1)
	}
	r.publish()
}

// publish replaces the audience. The caller holds mu.
func (r *Registry) publish() {
	a := audience{counters: slices.Clone(r.counters)}
	for _, w := range r.watchers {
		if !w.full() {
			a.watchers = append(a.watchers, w)
			a.explain = a.explain || w.explain
		}
	}
	if len(a.watchers) == 0 && len(a.counters) == 0 {
		r.active.Store(nil)
		return
	}
	r.active.Store(&a)
}

// Describe returns the number of watchers, the number of dropped events since the start
// of the process, and a child for each watcher.
func (r *Registry) Describe() layer.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := layer.Node{Name: "tap"}
	dropped := r.dropped
	for _, w := range r.watchers {
		dropped += w.dropped.Load()
		n.Children = append(n.Children, w.describe())
	}
	n.State = layer.State{{Key: "watching", Value: len(r.watchers) + len(r.counters)}, {Key: "dropped", Value: dropped}}
	return n
}

// summary returns the node of Describe without the children.
func (r *Registry) summary() layer.Node {
	n := r.Describe()
	n.Children = nil
	return n
}

func orDefault(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}
