package reqctx

import (
	"context"
	"sync/atomic"
)

// Watcher is notified when a context ends.
type Watcher interface {
	// ContextDone is called at most once, on any goroutine. It must not block.
	ContextDone(cause error)
}

// Registration is the result of [Watch]. Its method Stop ends the watch. The zero Registration
// means that no Watcher is registered.
type Registration struct {
	ctx  *Context
	w    Watcher
	stop func() bool // for a context of another package; nil otherwise
}

// Watch registers w with ctx. It calls w.ContextDone when ctx ends, or immediately if ctx has
// ended. It does not allocate for the first two watchers of a [Context]. w must be comparable, and
// may watch a context only once at a time.
func Watch(ctx context.Context, w Watcher) Registration {
	// A Context of this package keeps its watchers itself. A foreign one without Done never ends.
	nearest, foreign := find(ctx)
	switch {
	case nearest != nil:
		return nearest.watch(w)
	case foreign.Done() == nil:
		return Registration{}
	}
	return watchOther(foreign, w)
}

// watchOther registers w with a context that is not of this package. It is a separate
// function, because its closure makes ctx escape to the heap.
func watchOther(ctx context.Context, w Watcher) Registration {
	return Registration{stop: context.AfterFunc(ctx, func() { w.ContextDone(context.Cause(ctx)) })}
}

// watch registers w with c. It is Watch for a Context.
func (c *Context) watch(w Watcher) Registration {
	c.activate()
	c.mu.Lock()
	if c.ended() {
		c.mu.Unlock()
		w.ContextDone(c.Cause())
		return Registration{}
	}
	c.watchers.add(w)
	c.mu.Unlock()
	return Registration{ctx: c, w: w}
}

// unwatch removes w, and reports whether it was registered.
func (c *Context) unwatch(w Watcher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watchers.remove(w)
}

// IsZero reports whether r is the zero Registration. Watch returns it for a context that has
// ended or never ends.
func (r Registration) IsZero() bool { return r.ctx == nil && r.stop == nil }

// Stop ends the registration and returns true. It returns false if ContextDone was called
// or will be called, and also for the zero Registration.
func (r Registration) Stop() bool {
	if r.stop != nil {
		return r.stop()
	}
	if r.ctx == nil {
		return false
	}
	return r.ctx.unwatch(r.w)
}

// watchers is a set of Watchers, which does not allocate for the first two. A request usually has
// two: the endpoint's client and the response body. Done's channel is a Watcher too.
type watchers struct {
	first [2]Watcher
	more  map[Watcher]struct{}
}

// doneChan is the channel that [Context.Done] returns. It is a [Watcher]. The type watchers always
// stores it in first[0], so that done finds it without a search.
type doneChan chan struct{}

// ContextDone closes the channel.
func (d doneChan) ContextDone(error) { close(d) }

// done returns the channel that [Context.Done] returns, and makes it if necessary. old is false
// if this call has made the channel.
func (s *watchers) done() (d doneChan, old bool) {
	if d, old = s.first[0].(doneChan); old {
		return d, true
	}
	d = make(doneChan)
	// The channel takes the first place, and a watcher there moves to another one.
	watcher := s.first[0]
	s.first[0] = d
	if watcher != nil {
		s.add(watcher)
	}
	return d, false
}

// end removes all watchers from s, and returns a copy of s that still holds them. The caller calls
// notify on the copy. [Context.Done]'s channel also stays in s, because later calls return it.
func (s *watchers) end() watchers {
	old := *s
	*s = watchers{}
	if d, ok := old.first[0].(doneChan); ok {
		s.first[0] = d
	}
	return old
}

// add adds w. The caller holds the mutex of the context, as for all methods but notify.
func (s *watchers) add(w Watcher) {
	for i := range s.first {
		if s.first[i] == nil {
			s.first[i] = w
			return
		}
	}
	if s.more == nil {
		s.more = make(map[Watcher]struct{})
	}
	s.more[w] = struct{}{}
}

// remove removes w, and reports whether it was in the set.
func (s *watchers) remove(w Watcher) bool {
	for i := range s.first {
		if s.first[i] == w {
			s.first[i] = nil
			return true
		}
	}
	_, ok := s.more[w]
	delete(s.more, w)
	return ok
}

// notify calls ContextDone of all watchers. It first closes [Context.Done]'s channel and cancels
// the derived contexts, as package context does, so that no other watcher can cancel a derived
// context with a different cause.
func (s *watchers) notify(cause error) {
	// Two rounds: first the channel and the derived contexts, then all others.
	for _, derived := range [...]bool{true, false} {
		for _, w := range s.first {
			if w != nil && isDerived(w) == derived {
				w.ContextDone(cause)
			}
		}
		for w := range s.more {
			if isDerived(w) == derived {
				w.ContextDone(cause)
			}
		}
	}
}

// isDerived reports whether w is the channel or belongs to a derived context, which are notified first.
func isDerived(w Watcher) bool {
	switch w.(type) {
	case doneChan, *derived:
		return true
	}
	return false
}

// derived is a Watcher for a child context that package context made. It cancels the child
// when the watched context ends.
type derived struct {
	cancel func()
	ready  atomic.Bool // set when the registration has returned
}

// ContextDone cancels the child.
func (d *derived) ContextDone(error) {
	if d.ready.Load() {
		d.cancel()
		return
	}
	go d.cancel() // because package context holds a lock during the registration
}

// derive arranges that cancel is called when ctx ends. Package context passes cancel to the method
// AfterFunc of ctx.
func derive(ctx context.Context, cancel func()) (stop func() bool) {
	d := &derived{cancel: cancel}
	r := Watch(ctx, d)
	d.ready.Store(true)
	return r.Stop
}

// Wrapper is embedded by contexts that only add values to their parent. With Wrapper,
// [Watch] and derived contexts need no goroutine.
type Wrapper struct{ context.Context } //nolint:containedctx // it is a context

// AfterFunc calls f when the context ends. Package context calls AfterFunc for contexts derived
// from w.
func (w Wrapper) AfterFunc(f func()) (stop func() bool) { return derive(w.Context, f) }

// link implements linked. A Wrapper only has a parent.
func (w Wrapper) link() (reqCtx *Context, parent context.Context) { return nil, w.Context } //nolint:unparam // see linked

// WithValue returns the same as [context.WithValue], but the result embeds [Wrapper].
func WithValue(parent context.Context, key, value any) context.Context {
	return &valueContext{Wrapper{parent}, key, value}
}

// valueContext is a context with one more value.
type valueContext struct {
	Wrapper
	key, value any
}

// Value returns the value for c.key, and the parent's value for other keys.
func (c *valueContext) Value(key any) any {
	if key == c.key {
		return c.value
	}
	return c.Context.Value(key)
}

// PickInfoKey is the context key for a *layer.PickInfo. It is in this package, so that the contexts of
// servers can have one without an allocation of its own.
type PickInfoKey struct{}
