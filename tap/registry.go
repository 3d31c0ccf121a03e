package tap

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// Registry holds a process's watchers. Usually, all tap layers and servers in the process share
// one Registry. The zero Registry is ready to use. It must not be copied, and is safe for
// concurrent use. It starts no goroutine and needs no Close.
type Registry struct {
	// active holds the watchers, and Top's counters, that see new requests. It is nil if no
	// watcher or counter sees new requests. Every change stores a new audience, because requests
	// read active without a lock.
	active atomic.Pointer[audience]

	maxWatchers int
	maxEvents   int
	// secrets maps names from WithRedacted to true and names from WithRevealed to false. The
	// names are in lower case.
	secrets map[string]bool
	maxBody int
	// redact is the function of WithBodies. nil means that bodies are not shown.
	redact func(contentType string, body []byte) []byte
	// random returns a number from 0 to 1, which is compared with the samples of watchers.
	// nil means rand.Float64.
	random func() float64

	mu       sync.Mutex
	watchers []*watcher // watchers that are not closed; some may be full
	counters []*counter
	nextBase uint32 // StreamID.Base of the next watcher's events
	dropped  uint64 // events dropped by closed watchers
}

// audience is the set of watchers and Top's counters that see new requests. It is immutable, because
// requests read it without a lock: each change makes a new one.
type audience struct {
	watchers []*watcher
	counters []*counter
	explain  bool // whether a watcher requests explanations
}

// The defaults for WithCapacity equal the limits in linkerd's proxy.
const (
	defaultMaxTaps   = 100
	defaultMaxEvents = 400
)

// RegistryOption configures [NewRegistry].
type RegistryOption func(*Registry)

// NewRegistry returns a Registry without watchers. Layers get it as an argument, and watchers see
// their requests.
func NewRegistry(opts ...RegistryOption) *Registry {
	r := &Registry{secrets: map[string]bool{}}
	option.Apply(r, opts)
	return r
}

// Watched reports whether a watcher or a call of Top sees new requests. It costs one atomic load. Use
// it to do work for a tap only while somebody watches.
func (r *Registry) Watched() bool { return r.active.Load() != nil }

// WithCapacity limits how many watchers there may be, and how many events each watcher's buffer
// holds. A further watcher is rejected with ResourceExhausted. 0 or less means the default: 100
// watchers, and 400 events.
func WithCapacity(watchers, events int) RegistryOption {
	return func(r *Registry) { r.maxWatchers, r.maxEvents = watchers, events }
}

// WithRedacted withholds the header fields' values, trailer fields and query parameters with the
// given names, in addition to those that are withheld by default.
func WithRedacted(names ...string) RegistryOption {
	return func(r *Registry) { r.hide(names, true) } // hide
}

// WithRevealed shows the values of header fields and query parameters with the given names, if
// they are withheld by default. The name "query" shows queries and fragments in URIs. Names are
// not case-sensitive. A later WithRevealed or WithRedacted overrides an earlier one.
func WithRevealed(names ...string) RegistryOption {
	return func(r *Registry) { r.hide(names, false) } // show
}

// hide withholds the values of the given names, or shows them if hide is false.
func (r *Registry) hide(names []string, hide bool) {
	for _, name := range names {
		r.secrets[strings.ToLower(name)] = hide
	}
}

// watch adds a watcher with the parameters t, or returns a rejection if there are too many. The caller
// must call close for the watcher in the end.
func (r *Registry) watch(t terms) (*watcher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(); err != nil {
		return nil, err
	}
	w := newWatcher(r, t)
	// newWatcher has used the number. It is harmless that numbers come again after 1<<32 watchers.
	r.nextBase++
	r.watchers = append(r.watchers, w)
	r.publish()
	return w, nil
}

// admit returns a rejection if the registry already holds the maximum number of watchers. The
// caller holds mu.
func (r *Registry) admit() error {
	most := orDefault(r.maxWatchers, defaultMaxTaps)
	if n := len(r.watchers) + len(r.counters); n >= most {
		return reject(codes.ResourceExhausted, fmt.Errorf("too many watchers: %d of %d", n, most))
	}
	return nil
}

// refresh is called when a watcher has reached its limit or duration. From then on it sees no new
// requests, but still gets the events of those in flight.
func (r *Registry) refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// close removes the watcher w. It gets no further events. close may be called more than once.
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

// publish makes the audience for later requests: all counters, and the watchers that have not reached
// their limit or duration. The caller holds mu.
func (r *Registry) publish() {
	a := audience{counters: slices.Clone(r.counters)}
	for _, w := range r.watchers {
		if !w.full() {
			a.watchers = append(a.watchers, w)
			a.explain = a.explain || w.explain
		}
	}
	// While nobody watches, a request only checks for nil.
	if len(a.watchers) == 0 && len(a.counters) == 0 {
		r.active.Store(nil)
		return
	}
	r.active.Store(&a)
}

// Describe returns a node that tells how many watchers there are and how many events were dropped
// since the process started, with a child for each watcher.
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

// summary returns the node of Describe for the registry itself, without the nodes of its watchers.
func (r *Registry) summary() layer.Node {
	n := r.Describe()
	n.Children = nil
	return n
}

// orDefault returns n, or otherwise if n is 0 or less.
func orDefault(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}
