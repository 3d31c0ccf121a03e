package k8s

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// listTimeout is the time limit for listing the objects of one Service.
const listTimeout = 30 * time.Second

// tooShort is the duration of a watch below which client-go treats an end without events as a
// failure. The Reflector then waits for a backoff and lists again.
const tooShort = time.Second

var errTooShort = errors.New("it ended at once without an event")

// source lists and watches the objects of one kind for a Reflector. It reports every error by
// calling the function failed, because the error handler of a Reflector does not receive all of
// them.
type source struct {
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	open  func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	scope metav1.ListOptions // selects the objects

	failed  func(verb string, err error) // reports an error
	works   func()                       // reports that a watch was opened
	running *sync.WaitGroup              // counts the goroutines of the watches

	listing sync.Mutex // held while a list runs
	over    bool       // whether lists are rejected; guarded by listing

	// lasting is the smallest duration of a watch that resets the backoff. Only the
	// goroutine of the Reflector uses this field and the following ones.
	lasting time.Duration
	opened  time.Time // when the current watch was opened; zero if that failed
	long    bool      // whether a watch lasted at least lasting since the last call of lasted
}

// IsWatchListSemanticsUnSupported returns true, so that the Reflector lists objects by list
// requests. Otherwise the Reflector would open a watch for the list. While the Reflector waits to
// repeat that watch, it ignores the end of its context.
func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext lists the objects that the label and field selectors in s.scope match. It reports
// an error by calling s.failed.
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

// settle waits until a running list has ended, and makes later lists fail. The caller calls it
// after the Reflector has ended, because a Reflector does not wait for a running list.
func (s *source) settle() {
	s.listing.Lock()
	s.over = true
	s.listing.Unlock()
}

// WatchWithContext watches the objects that scope selects. A returned error has the text of the
// original error, but not its type. Otherwise, after errors of some types, the Reflector would
// repeat the watch itself, with a backoff that it resets only after two minutes.
func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.note()
	w, err := s.open(ctx, s.scoped(o))
	if err != nil {
		if ctx.Err() == nil {
			s.failed("watch", err)
		}
		return nil, errors.New(err.Error())
	}
	s.opened = time.Now()
	s.works()
	return s.observe(ctx, w), nil
}

// note records the end of the current watch. If that watch lasted at least s.lasting, note sets
// s.long to true, so that the next call of lasted returns true.
func (s *source) note() {
	if !s.opened.IsZero() && time.Since(s.opened) >= s.lasting {
		s.long = true
	}
	s.opened = time.Time{}
}

// lasted reports whether a watch that ended since the previous call of lasted was long enough to
// reset the backoff.
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

// observedWatch is a watch that passes its events on, and reports its errors by calling a
// function.
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
