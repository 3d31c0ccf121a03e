package static

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/gotower/gotower/resolve"
)

// Resolver answers from a table of targets. The zero value has an empty table
// and is ready to use. It is safe for concurrent use, holds nothing that has to
// be closed, and must not be copied.
type Resolver struct {
	mu      sync.Mutex
	targets map[string]*entry
}

// entry is what is known of a target, or a place to wait for it.
type entry struct {
	update  resolve.Update
	changed chan struct{} // closed when update is no longer what is known
	readers int           // streams that wait here; without any, an unset target is forgotten
}

var _ resolve.Resolver = (*Resolver)(nil)

// New returns a Resolver that knows the given targets: a fixed one, unless Set
// or Delete is called. The slices are copied; the labels in them are not, and
// must not be changed. A target without endpoints exists and is empty. An endpoint
// without a valid address panics.
func New(targets map[string][]resolve.Endpoint) *Resolver {
	r := &Resolver{}
	for target, endpoints := range targets {
		r.Set(target, endpoints...)
	}
	return r
}

// Set makes endpoints all that a target has. With none, the target exists and
// is empty. Streams of the target yield it; Set does not wait for them. An endpoint
// without a valid address panics: see [Endpoints] for addresses that a user wrote.
func (r *Resolver) Set(target string, endpoints ...resolve.Endpoint) {
	for i, e := range endpoints {
		if !e.Addr.IsValid() {
			panic(fmt.Sprintf("static: target %q: endpoint %d of %d has no valid address", target, i+1, len(endpoints)))
		}
	}
	u := resolve.Update{Kind: resolve.Replace, Endpoints: slices.Clone(endpoints)}
	if len(endpoints) == 0 {
		u = resolve.Update{Kind: resolve.Empty}
	}
	r.change(target, u)
}

// Delete makes a target one that does not exist. Whoever resolves it is told,
// and is told again should it be set later.
func (r *Resolver) Delete(target string) {
	r.change(target, resolve.Update{Kind: resolve.DoesNotExist})
}

func (r *Resolver) change(target string, u resolve.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(target)
	e.update = u
	close(e.changed)
	e.changed = make(chan struct{})
	r.forget(target, e)
}

// Resolve yields what is known of target, whole, and again after each change,
// until ctx ends or the consumer breaks. It never yields an error. A consumer
// that is slower than the changes is not told of those that are over: it always
// gets to the latest one. A target that was never set does not exist, and may
// come to.
func (r *Resolver) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		e := r.enter(target)
		defer r.leave(target, e)
		for ctx.Err() == nil {
			u, changed := r.look(e)
			if !yield(u, nil) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

func (r *Resolver) enter(target string) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entry(target)
	e.readers++
	return e
}

// look returns what is known and the channel that closes when that is over.
// Both are of one moment, so no change falls between them.
func (r *Resolver) look(e *entry) (resolve.Update, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := e.update
	u.Endpoints = slices.Clone(u.Endpoints) // the consumer may do with it what it likes
	return u, e.changed
}

func (r *Resolver) leave(target string, e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.readers--
	r.forget(target, e)
}

// entry returns the entry of target, with mu held.
func (r *Resolver) entry(target string) *entry {
	e := r.targets[target]
	if e == nil {
		if r.targets == nil {
			r.targets = make(map[string]*entry)
		}
		e = &entry{update: resolve.Update{Kind: resolve.DoesNotExist}, changed: make(chan struct{})}
		r.targets[target] = e
	}
	return e
}

// forget drops an entry that says nothing and has no reader, with mu held:
// names that were only asked for must not pile up.
func (r *Resolver) forget(target string, e *entry) {
	if e.readers == 0 && e.update.Kind == resolve.DoesNotExist {
		delete(r.targets, target)
	}
}
