package layertest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/layer"
)

// The layers of this file are correct and simple. A fault selects one defect, so
// that correct and defective layers share their code.

type (
	service    = layer.Service[*Request, *Response]
	aLayer     = layer.Layer[*Request, *Response]
	completion = layer.Completion[*Response]
	fault      string
)

func reject(kind, cause error) error {
	return &layer.Error{Layer: "right", Kind: kind, Err: cause}
}

// pass does nothing.
type pass struct{ service }

func passes(next service) service { return pass{next} }

func (p pass) Call(ctx context.Context, req *Request) (*Response, error) {
	return p.service.Call(ctx, req)
}

// limited admits n calls in flight.
type limited struct {
	service
	n        int
	complete completion
	wrong    fault

	mu    sync.Mutex
	used  int
	freed chan struct{} // closed and replaced when a slot is freed
	woken []chan struct{}
}

const (
	leaksOnPanic         fault = "leaks on panic"
	leaksOnError         fault = "leaks on error"
	leaksAbandoned       fault = "leaks abandoned bodies"
	freesTwice           fault = "frees twice"
	freesEarly           fault = "frees at return"
	admitsOneMore        fault = "admits one more"
	admitsOneLess        fault = "admits one less"
	reservesInReady      fault = "reserves in Ready"
	wakesOne             fault = "wakes one"
	looksAtOwnOnly       fault = "Ready does not look at the inner service"
	admitsDone           fault = "admits a done ctx"
	waitsWhenFull        fault = "waits when full"
	untypedRejection     fault = "rejects without the name of the layer"
	touchesBody          fault = "reads the body, then rejects"
	changesHeader        fault = "changes a header, then rejects"
	closesBody           fault = "closes the body, then rejects"
	losesWake            fault = "wakes a canceled waiter"
	noWakeAfterPanic     fault = "wakes none after a panic"
	noWakeAfterError     fault = "wakes none after an error"
	noWakeAfterBodyError fault = "wakes none after a failed body"
	checksThenCounts     fault = "counts after the check"
)

func limits(n int, complete completion, wrong fault) aLayer {
	return func(next service) service {
		switch wrong {
		case admitsOneMore:
			return &limited{service: next, n: n + 1, complete: complete}
		case admitsOneLess:
			return &limited{service: next, n: n - 1, complete: complete}
		}
		return &limited{service: next, n: n, complete: complete, wrong: wrong}
	}
}

func (l *limited) Call(ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil && l.wrong != admitsDone {
		return nil, reject(layer.ErrNotReady, context.Cause(ctx))
	}
	for !l.take() {
		switch l.wrong {
		case waitsWhenFull:
			if err := l.Ready(ctx); err == nil {
				continue
			}
		case untypedRejection:
			return nil, layer.ErrNotReady
		case touchesBody:
			req.Body.Read(make([]byte, 1))
		case changesHeader:
			req.Header["seen"] = "yes"
		case closesBody:
			req.Body.Close()
		}
		return nil, reject(layer.ErrNotReady, nil)
	}
	s := &slot{of: l}
	returned := false
	defer func() {
		if !returned && l.wrong != leaksOnPanic {
			s.end(l.wrong != noWakeAfterPanic)
		}
	}()
	rsp, err := l.service.Call(ctx, req)
	returned = true
	if err != nil {
		if l.wrong != leaksOnError {
			s.end(l.wrong != noWakeAfterError)
		}
		return nil, err
	}
	if l.wrong == freesEarly {
		return layer.AtReturn(ctx, rsp, s), nil
	}
	if l.wrong == leaksAbandoned {
		ctx = context.WithoutCancel(ctx)
	}
	return l.complete(ctx, rsp, s), nil
}

type slot struct {
	of *limited
}

func (s *slot) Data(int) {}

func (s *slot) End(err error) { s.end(err == nil || s.of.wrong != noWakeAfterBodyError) }

func (s *slot) end(wakes bool) {
	s.of.give(wakes)
	if s.of.wrong == freesTwice {
		s.of.give(wakes)
	}
}

func (l *limited) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used >= l.n {
		return false
	}
	if l.wrong == checksThenCounts {
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
	l.used++
	return true
}

func (l *limited) give(wakes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used--
	if l.wrong == wakesOne || l.wrong == losesWake {
		if len(l.woken) > 0 {
			close(l.woken[0])
			l.woken = l.woken[1:]
		}
		return
	}
	if l.freed != nil && wakes {
		close(l.freed)
		l.freed = nil
	}
}

func (l *limited) Ready(ctx context.Context) error {
	for {
		l.mu.Lock()
		if l.used < l.n {
			if l.wrong == reservesInReady {
				l.used++
			}
			if l.wrong == losesWake && len(l.woken) > 0 {
				// Each woken waiter wakes the next.
				close(l.woken[0])
				l.woken = l.woken[1:]
			}
			l.mu.Unlock()
			if l.wrong == looksAtOwnOnly {
				return nil
			}
			return l.service.Ready(ctx)
		}
		freed := l.freed
		switch {
		case l.wrong == wakesOne || l.wrong == losesWake:
			freed = make(chan struct{})
			l.woken = append(l.woken, freed)
		case freed == nil:
			freed = make(chan struct{})
			l.freed = freed
		}
		l.mu.Unlock()
		select {
		case <-freed:
			if l.wrong == losesWake && ctx.Err() != nil {
				return context.Cause(ctx)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// queued is a queue of calls, first in, first out. Its head waits for the inner
// service, and leaves the queue just before its call.
type queued struct {
	service
	n       int
	maxWait time.Duration
	wrong   fault

	mu    sync.Mutex
	calls []*turn
	kept  int           // places of canceled calls
	moved chan struct{} // closed and replaced when the queue gets shorter
}

type turn struct {
	head chan struct{}
	is   bool
}

const (
	lastInFirstOut   fault = "last in, first out"
	newCallsFirst    fault = "tries the inner service before it queues"
	headLosesTurn    fault = "a canceled head wakes no other"
	wakesAll         fault = "wakes all for each admission"
	allAsk           fault = "all waiting calls poll the inner service"
	waitsForever     fault = "waits without limit"
	failsEarly       fault = "fails early"
	restartsDeadline fault = "starts the deadline at the head"
	hidesWait        fault = "does not report the wait"
	holdsOneLess     fault = "holds one less"
	holdsOneMore     fault = "holds one more"
	ignoresCtx       fault = "waits when ctx is done"
	headListens      fault = "only the head looks at ctx"
	keepsPlaces      fault = "a canceled call keeps its place"
	waitsAsHead      fault = "counts the wait from the head on"
)

func queues(n int, maxWait time.Duration, wrong fault) aLayer {
	switch wrong {
	case holdsOneLess:
		n--
	case holdsOneMore:
		n++
	case waitsForever:
		maxWait = time.Hour
	case failsEarly:
		maxWait /= 2
	}
	return func(next service) service {
		return &queued{service: next, n: n, maxWait: maxWait, wrong: wrong}
	}
}

func (q *queued) Call(ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, reject(layer.ErrNotReady, context.Cause(ctx))
	}
	if (q.empty() || q.wrong == newCallsFirst) && layer.Poll(q.service) == nil {
		rsp, err := q.service.Call(ctx, req)
		if !errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrClosed) || ctx.Err() != nil {
			return rsp, err
		}
	}
	t := &turn{head: make(chan struct{})}
	if !q.join(t, false) {
		return nil, reject(layer.ErrNotReady, nil)
	}
	for {
		if err := q.wait(ctx, t); err != nil {
			return nil, err
		}
		if q.wrong == restartsDeadline {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
			defer cancel()
		}
		rsp, err := q.service.Call(ctx, req)
		if !errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrClosed) || ctx.Err() != nil {
			return rsp, err
		}
		q.join(t, true)
	}
}

// wait returns nil when t is admitted. It has left the queue then.
func (q *queued) wait(ctx context.Context, t *turn) error {
	began := time.Now()
	if q.wrong == headListens || q.wrong == waitsAsHead {
		select {
		case <-t.head:
		case <-q.seen(ctx).Done():
		}
	}
	if q.maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, q.maxWait, layer.ErrFailFast)
		defer cancel()
	}
	if q.wrong == ignoresCtx {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), time.Minute, context.Cause(ctx))
		defer cancel()
	}
	select {
	case <-q.mayAsk(t):
	case <-ctx.Done():
		q.leave(t, true)
		return q.waitFailed(ctx, began)
	}
	err := q.service.Ready(ctx)
	q.leave(t, err != nil)
	switch {
	case errors.Is(err, layer.ErrClosed):
		return reject(layer.ErrClosed, err)
	case err != nil:
		return q.waitFailed(ctx, began)
	}
	return nil
}

// seen is the ctx of a call that is not the head.
func (q *queued) seen(ctx context.Context) context.Context {
	if q.wrong == headListens {
		return context.Background()
	}
	return ctx
}

func (q *queued) waitFailed(ctx context.Context, began time.Time) error {
	e := &layer.Error{Layer: "right", Kind: layer.ErrNotReady, Err: context.Cause(ctx)}
	if q.wrong != hidesWait {
		e.Waited = time.Since(began)
	}
	return e
}

func (q *queued) mayAsk(t *turn) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.wrong == allAsk {
		now := make(chan struct{})
		close(now)
		return now
	}
	return t.head
}

func (q *queued) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.calls) == 0
}

func (q *queued) join(t *turn, front bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case front:
		q.calls = slices.Insert(q.calls, 0, t)
	case len(q.calls)+q.kept >= q.n:
		return false
	case q.wrong == lastInFirstOut && len(q.calls) > 0:
		q.calls = slices.Insert(q.calls, 1, t)
	default:
		q.calls = append(q.calls, t)
	}
	q.toHead()
	return true
}

// toHead makes the first call in the queue the head.
func (q *queued) toHead() {
	if len(q.calls) > 0 && !q.calls[0].is {
		q.calls[0].is = true
		close(q.calls[0].head)
	}
}

func (q *queued) leave(t *turn, canceled bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := len(q.calls) > 0 && q.calls[0] == t
	if q.wrong == keepsPlaces && !was {
		q.kept++
	}
	q.calls = slices.DeleteFunc(q.calls, func(u *turn) bool { return u == t })
	if q.wrong != headLosesTurn || !canceled || !was {
		q.toHead()
	}
	if q.moved != nil {
		close(q.moved)
		q.moved = nil
	}
}

// Ready waits for room in the queue.
func (q *queued) Ready(ctx context.Context) error {
	for {
		if err := layer.Poll(q.service); errors.Is(err, layer.ErrClosed) {
			return err
		}
		q.mu.Lock()
		if len(q.calls)+q.kept < q.n {
			q.mu.Unlock()
			return nil
		}
		if q.moved == nil {
			q.moved = make(chan struct{})
		}
		moved := q.moved
		q.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// timed is a timeout.
type timed struct {
	service
	after time.Duration
}

func times(after time.Duration) aLayer {
	return func(next service) service { return timed{next, after} }
}

func (t timed) Call(ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, reject(layer.ErrNotReady, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, t.after, layer.ErrTimeout)
	returned := false
	defer func() {
		if !returned {
			cancel()
		}
	}()
	rsp, err := t.service.Call(ctx, req)
	if err != nil {
		return nil, err
	}
	returned = true
	return layer.AtEnd[*Response]()(ctx, rsp, canceler(cancel)), nil
}

type canceler context.CancelFunc

func (canceler) Data(int)    {}
func (c canceler) End(error) { c() }
