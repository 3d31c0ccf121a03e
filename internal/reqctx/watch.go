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

// Registration is the registration of a Watcher. The zero value stands for none.
type Registration struct {
	ctx  *Context
	w    Watcher
	stop func() bool // for a context of another package; nil otherwise
}

// Watch calls w.ContextDone when ctx ends, or at once if it has ended. It does not
// allocate for the first two watchers of a [Context]. w must be comparable, and may watch a
// context only once at a time.
func Watch(ctx context.Context, w Watcher) Registration {
	for {
		switch c := ctx.(type) {
		case interface{ self() *Context }:
			return c.self().watch(w)
		case interface{ base() context.Context }:
			ctx = c.base()
			continue
		}
		if ctx.Done() == nil {
			return Registration{}
		}
		return watchOther(ctx, w)
	}
}

// watchOther watches a context that is not of this package. It is a separate function,
// because its closure makes ctx escape to the heap.
func watchOther(ctx context.Context, w Watcher) Registration {
	return Registration{stop: context.AfterFunc(ctx, func() { w.ContextDone(context.Cause(ctx)) })}
}

func (c *Context) watch(w Watcher) Registration {
	c.activate()
	c.mu.Lock()
	if c.err != nil {
		why := c.why
		c.mu.Unlock()
		w.ContextDone(why)
		return Registration{}
	}
	c.below.add(w)
	c.mu.Unlock()
	return Registration{ctx: c, w: w}
}

// IsZero reports whether r is the zero Registration. Watch returns it for a context
// that has ended or never ends.
func (r Registration) IsZero() bool { return r.ctx == nil && r.stop == nil }

// Stop ends the registration. It returns false if ContextDone was or will be called,
// and for the zero Registration.
func (r Registration) Stop() bool {
	if r.stop != nil {
		return r.stop()
	}
	if r.ctx == nil {
		return false
	}
	r.ctx.mu.Lock()
	defer r.ctx.mu.Unlock()
	return r.ctx.below.remove(r.w)
}

// watchers is a set of Watchers. It does not allocate for the first ones, which for a
// request are the client of the endpoint and the response body.
type watchers struct {
	first [2]Watcher
	more  map[Watcher]struct{}
}

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

// notify calls all watchers. It first cancels the derived contexts of package context,
// as that package does, because other watchers may cancel them with another cause.
func (s *watchers) notify(cause error) {
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

func isDerived(w Watcher) bool {
	_, ok := w.(*derived)
	return ok
}

// derived is a watcher that cancels a context of package context.
type derived struct {
	cancel func()
	ready  atomic.Bool // set when the registration has returned
}

func (d *derived) ContextDone(error) {
	if d.ready.Load() {
		d.cancel()
		return
	}
	go d.cancel() // because package context holds a lock during the registration
}

// derive registers cancel, the function that package context passes to AfterFunc.
func derive(ctx context.Context, cancel func()) (stop func() bool) {
	d := &derived{cancel: cancel}
	r := Watch(ctx, d)
	d.ready.Store(true)
	return r.Stop
}

// Wrapper is embedded by contexts that only add values. With it, [Watch] and derived
// contexts need no goroutine.
type Wrapper struct{ context.Context } //nolint:containedctx // it is a context

// AfterFunc implements the method that package context looks for.
func (w Wrapper) AfterFunc(f func()) (stop func() bool) { return derive(w.Context, f) }

func (w Wrapper) base() context.Context { return w.Context }

// Detach is [context.WithoutCancel] with a result whose method Value does not allocate.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), detachedKey{}, nil)
}

type detachedKey struct{}

// WithValue is [context.WithValue] with a result that embeds Wrapper.
func WithValue(parent context.Context, key, value any) context.Context {
	return &valueContext{Wrapper{parent}, key, value}
}

type valueContext struct {
	Wrapper
	key, value any
}

func (c *valueContext) Value(key any) any {
	if key == c.key {
		return c.value
	}
	return c.Context.Value(key)
}
