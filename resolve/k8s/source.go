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

// listTimeout is the time limit for listing one Service's objects.
const listTimeout = 30 * time.Second

// tooShort is the duration of a watch below which client-go treats an end without events as a
// failure. The Reflector then waits for a backoff and lists again.
const tooShort = time.Second

// errTooShort is the error of a watch that ended within tooShort.
var errTooShort = errors.New("it ended at once without an event")

// source lists and watches one kind of object for a Reflector. It reports every error by calling
// failed, because a Reflector's error handler does not receive all of them.
type source struct {
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	open  func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	scope metav1.ListOptions // selects the objects

	failed  func(verb string, err error) // reports an error
	works   func()                       // reports that a watch was opened
	running *sync.WaitGroup              // counts the goroutines of the watches

	listing sync.Mutex // held while a list runs
	closed  bool       // whether lists are rejected; guarded by listing

	// lasting is how long a watch must last at least to reset the backoff. Only the Reflector's
	// goroutine uses this field and the following ones.
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
	// The mutex lets settle wait for a list that runs.
	s.listing.Lock()
	defer s.listing.Unlock()
	if s.closed {
		return nil, context.Canceled
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := s.list(limited, s.scoped(o))
	// After the end of ctx, the error is only the consequence of stopping.
	if err != nil && ctx.Err() == nil {
		s.failed("list", err)
	}
	return list, err
}

// settle waits until a running list has ended, and makes later lists fail. The caller calls it
// after the Reflector has ended, because a Reflector does not wait for a running list.
func (s *source) settle() {
	s.listing.Lock()
	s.closed = true
	s.listing.Unlock()
}

// WatchWithContext watches the objects that scope selects. A returned error keeps the original
// error's text, but not its type. Otherwise, after errors of some types, the Reflector would
// repeat the watch itself, with a backoff that it resets only after two minutes.
func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	// A new watch replaces the current one, which has therefore ended.
	s.recordEnd()
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

// recordEnd records that the current watch has ended. If it lasted at least s.lasting, recordEnd
// sets s.long to true, so that lasted next returns true.
func (s *source) recordEnd() {
	// A watch that lasted shows that the server works, so that the next wait may be short again.
	if !s.opened.IsZero() && time.Since(s.opened) >= s.lasting {
		s.long = true
	}
	s.opened = time.Time{}
}

// lasted reports whether a watch that ended since the previous call of lasted was long enough to
// reset the backoff.
func (s *source) lasted() bool {
	s.recordEnd()
	long := s.long
	s.long = false
	return long
}

// observe returns a watch that passes the events of w on, and reports its errors unless ctx has ended.
// It starts a goroutine that ends with w.
func (s *source) observe(ctx context.Context, w watch.Interface) *observedWatch {
	// Unbuffered: an event counts as passed on only when the Reflector has taken it.
	h := &observedWatch{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	s.running.Go(func() {
		// Runs until w ends, or until the Reflector calls Stop.
		h.run(func(err error) {
			if ctx.Err() == nil {
				s.failed("watch", err)
			}
		})
	})
	return h
}

// List is required by a Reflector's interface, which does not call it.
func (s *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch is required by a Reflector's interface, which does not call it.
func (s *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// scoped returns o with the selectors in s.scope.
func (s *source) scoped(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector, o.FieldSelector = s.scope.LabelSelector, s.scope.FieldSelector
	return o
}

// observedWatch is a watch that passes another watch's events on, and reports its errors by calling a
// function. It exists because a Reflector does not report all errors of a watch.
type observedWatch struct {
	watch.Interface
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

// run passes the events on until the watch ends or is stopped, and calls failed for its errors.
func (h *observedWatch) run(failed func(error)) {
	defer close(h.events)
	src := h.Interface.ResultChan()
	start := time.Now()
	// hasEvent is false in the first round only: then no event has arrived.
	for hasEvent := false; ; hasEvent = true {
		var e watch.Event
		ok := false
		select {
		case e, ok = <-src:
			// Too short: client-go treats it as a failure, but reports it only in a log.
			if !ok && !hasEvent && time.Since(start) < tooShort {
				failed(errTooShort)
			}
		case <-h.stopped:
		}
		// The source has closed its channel, or the watch was stopped.
		if !ok {
			return
		}
		// An error event ends most watches. It is passed on too, because the Reflector decides what
		// follows.
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

// ResultChan returns the channel of the events, which is closed when the watch has ended. It replaces that of the
// wrapped watch.
func (h *observedWatch) ResultChan() <-chan watch.Event { return h.events }

// Stop ends the wrapped watch and run. It may be called several times, and after the end.
func (h *observedWatch) Stop() {
	h.once.Do(func() { close(h.stopped) })
	h.Interface.Stop()
}
