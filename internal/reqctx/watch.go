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

// Registration of a Watcher. The zero value is of none.
type Registration struct {
	ctx  *Context
	w    Watcher
	stop func() bool // of a context of another package
}

// Watch calls w.ContextDone when ctx ends, at once if it has ended. It does not
// allocate for the first watcher of a [Context]. A watcher must be comparable
// and may watch a context once.
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

// watchOther is separate because its closure allocates ctx.
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

// IsZero reports whether r is the zero Registration, of a context that has ended
// or never ends.
func (r Registration) IsZero() bool { return r.ctx == nil && r.stop == nil }

// Stop ends the registration. It returns false if ContextDone was called or will
// be, and for the zero Registration.
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

// watchers is a set with room for one.
type watchers struct {
	first Watcher
	more  map[Watcher]struct{}
}

func (s *watchers) add(w Watcher) {
	if s.first == nil {
		s.first = w
		return
	}
	if s.more == nil {
		s.more = make(map[Watcher]struct{})
	}
	s.more[w] = struct{}{}
}

func (s *watchers) remove(w Watcher) bool {
	if s.first == w {
		s.first = nil
		return true
	}
	_, ok := s.more[w]
	delete(s.more, w)
	return ok
}

// notify cancels the derived contexts of package context first, as that package
// does, because other watchers may cancel them for another reason.
func (s *watchers) notify(cause error) {
	for _, derived := range [...]bool{true, false} {
		if s.first != nil && isDerived(s.first) == derived {
			s.first.ContextDone(cause)
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

// derived cancels a context of package context. Its function does not block.
type derived struct {
	cancel func()
	ready  atomic.Bool // the registration has returned
}

func (d *derived) ContextDone(error) {
	if d.ready.Load() {
		d.cancel()
		return
	}
	go d.cancel() // package context holds a lock during the registration
}

// derive registers the function that package context gives to AfterFunc.
func derive(ctx context.Context, cancel func()) (stop func() bool) {
	d := &derived{cancel: cancel}
	r := Watch(ctx, d)
	d.ready.Store(true)
	return r.Stop
}

// Wrapper is embedded by contexts that only add values. It keeps [Watch] and
// contexts derived from the wrapper from needing a goroutine.
type Wrapper struct{ context.Context }

// AfterFunc is used by package context.
func (w Wrapper) AfterFunc(f func()) (stop func() bool) { return derive(w.Context, f) }

func (w Wrapper) base() context.Context { return w.Context }

// WithValue is [context.WithValue] for one key of any comparable type.
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
