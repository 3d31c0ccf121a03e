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

// listTimeout is how long a list may take: it is of one Service's objects.
const listTimeout = 30 * time.Second

// tooShort is how long a watch must last that tells of nothing. A Reflector
// backs off after a shorter one, and lists anew.
const tooShort = time.Second

var errTooShort = errors.New("it ended at once, and said nothing")

// source is the API as a Reflector reads it: some objects of one kind. It hears
// every failure, which a Reflector does not: its handler of errors is not told
// of those it answers by watching again, nor of those within a watch.
type source struct {
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	open  func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	scope metav1.ListOptions // the selectors

	failed  func(verb string, err error)
	works   func()
	running *sync.WaitGroup // of the watches

	listing sync.Mutex // held during a list
	over    bool       // there is to be no list any more; of listing

	// For the Reflector's goroutine.
	backoff  resolve.Backoff
	refusals int       // since a watch that lasted
	opened   time.Time // when the last watch began; zero if one was refused since
	long     bool      // a watch lasted since it was asked last
}

// IsWatchListSemanticsUnSupported keeps the Reflector from listing by way of a
// watch: while it waits to try that again it does not look at its context. A
// list of one Service's objects is small, so nothing is lost.
func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext lists what is in scope.
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

// settle waits for the list that is under way, which a Reflector does not do
// when its context ends.
func (s *source) settle() {
	s.listing.Lock()
	s.over = true
	s.listing.Unlock()
}

// WatchWithContext watches what is in scope. Where the API server cannot be
// reached, or is overloaded, it tries again: what was read need not be read
// anew for that. A Reflector would do the same, with a back-off that starts anew
// every two minutes, in an outage too, and not when the outage is over.
func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	for {
		s.note()
		w, err := s.open(ctx, s.scoped(o))
		switch {
		case err == nil:
			s.opened = time.Now()
			s.works()
			return s.hear(ctx, w), nil
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

// note says of the last watch, which is over, whether it lasted.
func (s *source) note() {
	if !s.opened.IsZero() && time.Since(s.opened) >= lasting(s.backoff) {
		s.refusals, s.long = 0, true
	}
	s.opened = time.Time{}
}

// lasted reports whether a watch lasted since this was asked last.
func (s *source) lasted() bool {
	s.note()
	long := s.long
	s.long = false
	return long
}

func (s *source) hear(ctx context.Context, w watch.Interface) *heard {
	h := &heard{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	s.running.Go(func() {
		h.run(func(err error) {
			if ctx.Err() == nil {
				s.failed("watch", err)
			}
		})
	})
	return h
}

// List is what a Reflector does not call, but wants to see.
func (s *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch is the same.
func (s *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *source) scoped(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector, o.FieldSelector = s.scope.LabelSelector, s.scope.FieldSelector
	return o
}

// heard is a watch whose errors are heard on the way.
type heard struct {
	watch.Interface
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

func (h *heard) run(failed func(error)) {
	defer close(h.events)
	from := h.Interface.ResultChan()
	begun := time.Now()
	for said := false; ; said = true {
		var e watch.Event
		ok := false
		select {
		case e, ok = <-from:
			if !ok && !said && time.Since(begun) < tooShort {
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

func (h *heard) ResultChan() <-chan watch.Event { return h.events }

func (h *heard) Stop() {
	h.once.Do(func() { close(h.stopped) })
	h.Interface.Stop()
}
