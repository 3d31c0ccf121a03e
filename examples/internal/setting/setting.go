// Package setting changes the settings of services while they are in use.
package setting

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// Value is a setting with its current value. It is safe for concurrent use.
type Value[T comparable] struct {
	current atomic.Pointer[version[T]] // never nil

	mu sync.Mutex // held while current is replaced
	// followers contains the functions that Follow has added. They are compared by the address of its
	// parameter, because functions cannot be compared.
	followers map[*func(T)]bool
}

// version is one value that a setting has had.
type version[T comparable] struct {
	value    T
	replaced context.Context //nolint:containedctx // ends when another value is current
	replace  context.CancelFunc
}

// New returns a setting with the value v.
func New[T comparable](v T) *Value[T] {
	s := &Value[T]{followers: make(map[*func(T)]bool)}
	s.current.Store(newVersion(v))
	return s
}

// newVersion returns the version for v, which is not replaced yet.
func newVersion[T comparable](v T) *version[T] {
	n := &version[T]{value: v}
	n.replaced, n.replace = context.WithCancel(context.Background()) //nolint:gosec // Set calls it
	return n
}

// Get returns the current value.
func (s *Value[T]) Get() T { return s.current.Load().value }

// Set changes the value to v, and calls all followers unless it is equal to the current value.
func (s *Value[T]) Set(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current.Load()
	if old.value == v {
		return
	}
	// The new value is stored before waiting requests wake up, so that they see it.
	s.current.Store(newVersion(v))
	old.replace()
	for f := range s.followers {
		(*f)(v)
	}
}

// Follow calls f with the current value, and again after each change, until ctx ends. Of s's
// methods, f may call only Get.
func (s *Value[T]) Follow(ctx context.Context, f func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.Get())
	s.followers[&f] = true
	// ctx may end long after Follow has returned.
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, &f)
	})
}

// Layer returns a layer that mk makes from the current value of s. When the value changes, new
// requests use a new layer around the same inner service, while a request that has begun or is
// waiting stays in the layer that admitted it. mk may return nil, which means no layer.
func Layer[T comparable, Req, Rsp any](s *Value[T], mk func(T) layer.Layer[Req, Rsp]) layer.Layer[Req, Rsp] {
	return func(inner layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &service[T, Req, Rsp]{setting: s, mk: mk, inner: inner}
	}
}

// service is the inner service with the current layer, which is made when it is needed.
type service[T comparable, Req, Rsp any] struct {
	setting *Value[T]
	// mk makes a layer from a value.
	mk    func(T) layer.Layer[Req, Rsp]
	inner layer.Service[Req, Rsp]

	// last is nil before the first request.
	last atomic.Pointer[layered[T, Req, Rsp]]
	mu   sync.Mutex // held while last is replaced
}

// layered is the inner service with one version's layer around it.
type layered[T comparable, Req, Rsp any] struct {
	layer.Service[Req, Rsp]

	version *version[T]
}

// current returns the inner service with the current value's layer.
func (s *service[T, Req, Rsp]) current() *layered[T, Req, Rsp] {
	// In the usual case, no lock is needed.
	if l := s.last.Load(); l != nil && l.version == s.setting.current.Load() {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.setting.current.Load()
	// Another goroutine may have stored it meanwhile, and mk must run once for each version.
	if l := s.last.Load(); l != nil && l.version == now {
		return l
	}
	// Without a layer, requests go to the inner service directly.
	l := &layered[T, Req, Rsp]{s.inner, now}
	if add := s.mk(now.value); add != nil {
		l.Service = add(s.inner)
	}
	s.last.Store(l)
	return l
}

// Ready waits until the current value's layer and the inner service are ready.
func (s *service[T, Req, Rsp]) Ready(ctx context.Context) error {
	// If the value changes while a request waits, it waits again in the new layer.
	for {
		l := s.current()
		err := layer.ReadyWhile(ctx, l.version.replaced, l.Service)
		if l.version.replaced.Err() == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (s *service[T, Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return s.current().Call(ctx, req)
}

// Classifier returns the classifier of the current layer or the inner service.
func (s *service[T, Req, Rsp]) Classifier() layer.Classifier[Rsp] {
	return layer.ClassifierOf(s.current().Service)
}

// Describe describes the current layer and the inner service.
func (s *service[T, Req, Rsp]) Describe() layer.Node { return layer.Describe(s.current().Service) }
