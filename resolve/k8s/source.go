package k8s

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// listTimeout is how long a list may take: it is of one Service's objects.
const listTimeout = 30 * time.Second

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
}

// IsWatchListSemanticsUnSupported keeps the Reflector from listing by way of a
// watch: while it waits to try that again it does not look at its context. A
// list of one Service's objects is small, so nothing is lost.
func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext lists what is in scope.
func (s *source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := s.list(limited, s.scoped(o))
	if err != nil && ctx.Err() == nil {
		s.failed("list", err)
	}
	return list, err
}

// WatchWithContext watches what is in scope.
func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := s.open(ctx, s.scoped(o))
	if err != nil {
		if ctx.Err() == nil {
			s.failed("watch", err)
		}
		return nil, err
	}
	s.works()
	h := &heard{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	s.running.Go(func() {
		h.run(func(err error) {
			if ctx.Err() == nil {
				s.failed("watch", err)
			}
		})
	})
	return h, nil
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
	for {
		var e watch.Event
		ok := false
		select {
		case e, ok = <-from:
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
