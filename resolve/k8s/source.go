package k8s

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/resolve"
)

// listTimeout is the time limit of a list of the objects of one Service.
const listTimeout = 30 * time.Second

// tooShort is the duration below which a watch without events has failed. After that a
// Reflector waits for a backoff and lists again.
const tooShort = time.Second

var errTooShort = errors.New("it ended at once without an event")

// source provides the objects of one kind to a Reflector. It reports every error,
// because the error handler of a Reflector does not receive all of them.
type source struct {
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	open  func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	scope metav1.ListOptions // the selectors of the objects

	failed  func(verb string, err error) // reports an error
	works   func()                       // reports that a watch was opened
	running *sync.WaitGroup              // counts the watches

	listing sync.Mutex // held during a list
	over    bool       // whether further lists are rejected; guarded by listing

	// Only the Reflector's goroutine uses these.
	backoff  resolve.Backoff
	refusals int       // failed attempts since a watch that lasted
	opened   time.Time // when the current watch was opened; zero if that failed
	long     bool      // whether a watch lasted since the last call of lasted
}

// IsWatchListSemanticsUnSupported returns true, so that the Reflector does not list by
// a watch. While it waits to repeat such a watch, it ignores its context.
func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext lists the objects in scope.
func (s *source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.listing.Lock()
	defer s.listing.Unlock()
	if s.over {
		return nil, context.Canceled
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := s.list(limited, s.scoped(o))
	if err != nil && ctx.Err() == nil {
		s.failed("list", err)
	}
	return list, err
}

// settle waits for a running list and rejects further ones. A Reflector does not wait
// when its context ends.
func (s *source) settle() {
	s.listing.Lock()
	s.over = true
	s.listing.Unlock()
}

// WatchWithContext watches the objects in scope. While the API server refuses
// connections or is overloaded, it repeats the watch without a new list. A Reflector
// does the same, but resets its backoff every two minutes.
func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	for {
		s.note()
		w, err := s.open(ctx, s.scoped(o))
		switch {
		case err == nil:
			s.opened = time.Now()
			s.works()
			return s.observe(ctx, w), nil
		case ctx.Err() != nil:
			return nil, err
		}
		s.failed("watch", err)
		if !utilnet.IsConnectionRefused(err) && !apierrors.IsTooManyRequests(err) {
			return nil, err
		}
		if backoff.Sleep(ctx, s.backoff.Delay(s.refusals)) != nil {
			return nil, err
		}
		s.refusals++
	}
}

// note records whether the last watch, which has ended, lasted.
func (s *source) note() {
	if !s.opened.IsZero() && time.Since(s.opened) >= lasting(s.backoff) {
		s.refusals, s.long = 0, true
	}
	s.opened = time.Time{}
}

// lasted reports whether a watch has lasted since the previous call of lasted.
func (s *source) lasted() bool {
	s.note()
	long := s.long
	s.long = false
	return long
}

func (s *source) observe(ctx context.Context, w watch.Interface) *observedWatch {
	h := &observedWatch{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	s.running.Go(func() {
		h.run(func(err error) {
			if ctx.Err() == nil {
				s.failed("watch", err)
			}
		})
	})
	return h
}

// List is required by the interface of a Reflector, which does not call it.
func (s *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch is required by the interface of a Reflector, which does not call it.
func (s *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *source) scoped(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector, o.FieldSelector = s.scope.LabelSelector, s.scope.FieldSelector
	return o
}

// observedWatch is a watch that reports its errors.
type observedWatch struct {
	watch.Interface
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

func (h *observedWatch) run(failed func(error)) {
	defer close(h.events)
	from := h.Interface.ResultChan()
	begun := time.Now()
	for hasEvent := false; ; hasEvent = true {
		var e watch.Event
		ok := false
		select {
		case e, ok = <-from:
			if !ok && !hasEvent && time.Since(begun) < tooShort {
				failed(errTooShort)
			}
		case <-h.stopped:
		}
		if !ok {
			return
		}
		if e.Type == watch.Error {
			failed(apierrors.FromObject(e.Object))
		}
		select {
		case h.events <- e:
		case <-h.stopped:
			return
		}
	}
}

func (h *observedWatch) ResultChan() <-chan watch.Event { return h.events }

func (h *observedWatch) Stop() {
	h.once.Do(func() { close(h.stopped) })
	h.Interface.Stop()
}
