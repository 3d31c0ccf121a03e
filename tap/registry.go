package tap

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// Registry knows who watches. Share one among all the layers and servers of a
// process. The zero Registry is ready to use; it must not be copied. It is
// safe for concurrent use, starts no goroutine, and needs no closing.
type Registry struct {
	// active is all that a request looks at: nil while nobody watches. The
	// slice is replaced and never changed.
	active atomic.Pointer[[]*watcher]

	maxTaps   int
	maxEvents int
	secrets   map[string]bool // by lower-case name, what the options said

	mu       sync.Mutex
	watchers []*watcher // all that were not closed, active or full
	nextBase uint32
	dropped  uint64 // by watchers that are gone
}

// Defaults of a Registry, as linkerd's proxy has them.
const (
	defaultMaxTaps   = 100
	defaultMaxEvents = 400
)

// RegistryOption sets what [NewRegistry] lets be set.
type RegistryOption interface{ applyRegistry(r *Registry) }

type registryOption func(*Registry)

func (f registryOption) applyRegistry(r *Registry) { f(r) }

// NewRegistry returns a Registry that nobody watches.
func NewRegistry(opts ...RegistryOption) *Registry {
	r := &Registry{secrets: map[string]bool{}}
	for _, opt := range opts {
		opt.applyRegistry(r)
	}
	return r
}

// Capacity bounds how many may watch at a time, and how many events wait for
// each. Who comes when taps are there is turned away with ResourceExhausted.
// The defaults are 100 and 400, also for what is 0 or less.
func Capacity(taps, events int) RegistryOption {
	return registryOption(func(r *Registry) { r.maxTaps, r.maxEvents = taps, events })
}

// Redact withholds the values of more header and trailer fields.
func Redact(names ...string) RegistryOption {
	return registryOption(func(r *Registry) { r.say(names, true) })
}

// Reveal shows the values of fields that are withheld by default. A later
// option overrides an earlier one.
func Reveal(names ...string) RegistryOption {
	return registryOption(func(r *Registry) { r.say(names, false) })
}

func (r *Registry) say(names []string, hide bool) {
	for _, name := range names {
		r.secrets[strings.ToLower(name)] = hide
	}
}

// watch adds a watcher. Whoever adds one must close it.
func (r *Registry) watch(match *condition, limit uint32, fields bool) (*watcher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := orDefault(r.maxTaps, defaultMaxTaps)
	if len(r.watchers) >= most {
		return nil, fmt.Errorf("too many active taps: %d of %d", len(r.watchers), most)
	}
	w := &watcher{
		reg: r, base: r.nextBase, limit: uint64(limit), match: match, fields: fields,
		filled: make(chan struct{}), done: make(chan struct{}),
	}
	w.buf.Store(newBuffer(orDefault(r.maxEvents, defaultMaxEvents)))
	r.nextBase++ // wraps
	r.watchers = append(r.watchers, w)
	r.publish()
	return w, nil
}

// refresh spares requests the look at watchers that are full. Their events
// still arrive.
func (r *Registry) refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// close drops a watcher and all that it did not read. Requests in flight go on
// and find nobody to tell.
func (r *Registry) close(w *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.buf.Store(nil)
	r.dropped += w.dropped.Load()
	r.watchers = slices.DeleteFunc(r.watchers, func(other *watcher) bool { return other == w })
	r.publish()
}

// publish is called with mu held.
func (r *Registry) publish() {
	var active []*watcher
	for _, w := range r.watchers {
		if !w.full() {
			active = append(active, w)
		}
	}
	if active == nil {
		r.active.Store(nil)
		return
	}
	r.active.Store(&active)
}

// Describe says how many watch, how many of their events were dropped since
// the start, and as children what each of them has seen.
func (r *Registry) Describe() layer.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := layer.Node{Name: "tap"}
	dropped := r.dropped
	for _, w := range r.watchers {
		lost := w.dropped.Load()
		dropped += lost
		n.Children = append(n.Children, layer.Node{Name: "watcher", State: layer.State{
			{Key: "base", Value: w.base},
			{Key: "seen", Value: min(w.seen.Load(), w.limit)},
			{Key: "limit", Value: w.limit},
			{Key: "in_flight", Value: w.inside.Load()},
			{Key: "dropped", Value: lost},
		}})
	}
	n.State = layer.State{{Key: "watching", Value: len(r.watchers)}, {Key: "dropped", Value: dropped}}
	return n
}

func orDefault(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}
