package layertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// Each layer of this file has one defect that occurs in practice. Its goroutines
// end with the context of New.

// odd is a service made of two functions. A nil function is replaced by that of
// the inner service.
type odd struct {
	service
	call  func(ctx context.Context, req *Request) (*Response, error)
	ready func(ctx context.Context) error
}

func (o odd) Call(ctx context.Context, req *Request) (*Response, error) {
	if o.call != nil {
		return o.call(ctx, req)
	}
	return o.service.Call(ctx, req)
}

func (o odd) Ready(ctx context.Context) error {
	if o.ready != nil {
		return o.ready(ctx)
	}
	return o.service.Ready(ctx)
}

type (
	callFunc  = func(next service, ctx context.Context, req *Request) (*Response, error)
	readyFunc = func(next service, ctx context.Context) error
)

func calling(call callFunc) Layer {
	return Layer{Layer: func(next service) service {
		return odd{service: next, call: func(ctx context.Context, req *Request) (*Response, error) { return call(next, ctx, req) }}
	}}
}

func asking(ready readyFunc) Layer {
	return Layer{Layer: func(next service) service {
		return odd{service: next, ready: func(ctx context.Context) error { return ready(next, ctx) }}
	}}
}

func limiting(wrong fault) Layer {
	return Layer{Layer: limits(4, layer.AtEnd[*Response](), wrong), Limit: 4}
}

func queueing(wrong fault) Layer {
	return Layer{Layer: queues(16, 3*time.Second, wrong), Queue: 16, MaxWait: 3 * time.Second}
}

// closedForNow returns ErrClosed without capacity.
func closedForNow(next service, ctx context.Context) error {
	if err := next.Ready(ctx); err != nil {
		return errors.Join(err, layer.ErrClosed)
	}
	return nil
}

// ctxFirst looks at ctx before it looks at capacity.
func ctxFirst(next service, ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return next.Ready(ctx)
}

// bareErr returns ctx.Err() instead of the cause.
func bareErr(next service, ctx context.Context) error {
	if err := next.Ready(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// remembering returns the response that arrived last, of any call.
func remembering() Layer {
	return Layer{Layer: func(next service) service {
		var last atomic.Pointer[Response]
		return odd{service: next, call: func(ctx context.Context, req *Request) (*Response, error) {
			rsp, err := next.Call(ctx, req)
			if err != nil {
				return nil, err
			}
			last.Store(rsp)
			time.Sleep(time.Nanosecond)
			return last.Load(), nil
		}}
	}}
}

// twice sends every request twice.
func twice(next service, ctx context.Context, req *Request) (*Response, error) {
	if rsp, err := next.Call(ctx, req); err == nil {
		rsp.Body.Close()
	}
	return next.Call(ctx, req)
}

// probing asks whether inner is ready by a call.
func probing(next service, ctx context.Context) error {
	if err := next.Ready(ctx); err != nil {
		return err
	}
	_, err := next.Call(ctx, &Request{})
	if errors.Is(err, errLostContext) {
		return nil
	}
	return err
}

// pretending probes by a call with a done ctx.
func pretending(next service, ctx context.Context) error {
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := next.Call(done, &Request{}); errors.Is(err, layer.ErrClosed) {
		return err
	}
	return next.Ready(ctx)
}

// deaf waits in Ready with the context of the layer.
func deaf() Layer {
	return Layer{New: func(ctx context.Context, next service) service {
		return odd{service: next, ready: func(asked context.Context) error {
			if asked.Err() != nil {
				return next.Ready(asked)
			}
			return next.Ready(ctx)
		}}
	}}
}

// sleepy polls inner and ctx.
func sleepy(next service, ctx context.Context) error {
	for layer.Poll(next) != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// leaky waits in a goroutine that it leaks when ctx ends.
func leaky() Layer {
	return Layer{New: func(ctx context.Context, next service) service {
		return odd{service: next, ready: func(asked context.Context) error {
			if asked.Err() != nil {
				return next.Ready(asked)
			}
			done := make(chan error, 1)
			go func() { done <- next.Ready(ctx) }()
			select {
			case err := <-done:
				return err
			case <-asked.Done():
				return context.Cause(asked)
			}
		}}
	}}
}

// leakyCall leaks the inner call when ctx ends.
func leakyCall() Layer {
	return Layer{New: func(ctx context.Context, next service) service {
		return odd{service: next, call: func(asked context.Context, req *Request) (*Response, error) {
			type result struct {
				rsp *Response
				err error
			}
			done := make(chan result, 1)
			own := context.WithValue(ctx, probeKey{}, asked.Value(probeKey{}))
			go func() {
				rsp, err := next.Call(own, req)
				done <- result{rsp, err}
			}()
			select {
			case r := <-done:
				return r.rsp, r.err
			case <-asked.Done():
				return nil, context.Cause(asked)
			}
		}}
	}}
}

// rejectsAsClosed returns ErrClosed for every rejection.
func rejectsAsClosed(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) {
		err = reject(layer.ErrClosed, err)
	}
	return rsp, err
}

// rejectsAtDeadline returns a rejection for a call in flight at its deadline.
func rejectsAtDeadline(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, context.DeadlineExceeded) {
		err = reject(layer.ErrNotReady, err)
	}
	return rsp, err
}

// abandoning rejects a call after the maximum wait, and leaves it in the queue.
func abandoning() Layer {
	const maxWait = 3 * time.Second
	waits := queues(16, 0, "")
	return Layer{Queue: 16, MaxWait: maxWait, Layer: func(next service) service {
		q := waits(next)
		return odd{service: q, call: func(ctx context.Context, req *Request) (rsp *Response, err error) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				rsp, err = q.Call(ctx, req)
			}()
			select {
			case <-done:
				return rsp, err
			case <-time.After(maxWait):
				return nil, &layer.Error{Layer: "mine", Kind: layer.ErrFailFast, Waited: maxWait}
			}
		}}
	}}
}

// readsLater reads a rejected request after Call has returned.
func readsLater(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) {
		body := req.Body
		time.AfterFunc(time.Millisecond, func() { body.Read(make([]byte, 1)) })
	}
	return rsp, err
}

// sendsFirst sends the first request for all calls.
func sendsFirst() Layer {
	return Layer{Layer: func(next service) service {
		var first atomic.Pointer[Request]
		return odd{service: next, call: func(ctx context.Context, req *Request) (*Response, error) {
			first.CompareAndSwap(nil, req)
			return next.Call(ctx, first.Load())
		}}
	}}
}

// sends changes a copy of the request.
func sends(change func(req *Request)) Layer {
	return calling(func(next service, ctx context.Context, req *Request) (*Response, error) {
		again := *req
		change(&again)
		return next.Call(ctx, &again)
	})
}

// returns changes a copy of the response.
func returns(change func(rsp *Response)) Layer {
	return calling(func(next service, ctx context.Context, req *Request) (*Response, error) {
		rsp, err := next.Call(ctx, req)
		if err != nil {
			return nil, err
		}
		again := *rsp
		change(&again)
		return &again, nil
	})
}

// sendsAgain retries a failure once.
func sendsAgain(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil && !errors.Is(err, layer.ErrNotReady) {
		return next.Call(ctx, req)
	}
	return rsp, err
}

// watches starts a goroutine for each call that runs until ctx ends.
func watches(next service, ctx context.Context, req *Request) (*Response, error) {
	go func() { <-ctx.Done() }()
	return next.Call(ctx, req)
}

// watchesReady does so for each Ready.
func watchesReady(next service, ctx context.Context) error {
	go func() { <-ctx.Done() }()
	return next.Ready(ctx)
}

// rejectsLate returns a rejection for every error.
func rejectsLate(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil {
		err = reject(layer.ErrNotReady, err)
	}
	return rsp, err
}

// detaches calls inner with a context that never ends.
func detaches(next service, ctx context.Context, req *Request) (*Response, error) {
	return next.Call(context.WithoutCancel(ctx), req)
}

// plainDone returns the cause of a done ctx without ErrNotReady.
func plainDone(next service, ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return next.Call(ctx, req)
}

// causeless rejects a done ctx without its cause.
func causeless(next service, ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, layer.ErrNotReady
	}
	return next.Call(ctx, req)
}

// slowRejection returns rejections after some time.
func slowRejection(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) {
		time.Sleep(10 * time.Millisecond)
	}
	return rsp, err
}

// buffering reads the request before it is admitted.
func buffering(next service, ctx context.Context, req *Request) (*Response, error) {
	if _, err := io.ReadAll(req.Body); err != nil {
		return nil, err
	}
	return next.Call(ctx, req)
}

// wrapping replaces the body of the request.
func wrapping(next service, ctx context.Context, req *Request) (*Response, error) {
	req.Body = io.NopCloser(req.Body)
	return next.Call(ctx, req)
}

// hiddenLimit does not declare its limit.
func hiddenLimit() Layer {
	return Layer{Layer: limits(100, layer.AtEnd[*Response](), "")}
}

// herding wakes all waiting calls for each admission.
type herding struct {
	service
	asks     bool // each waiting call polls inner
	mu       sync.Mutex
	now, end int
	moved    chan struct{}
}

func herds(next service) service { return &herding{service: next, moved: make(chan struct{})} }

func herdsAsking(next service) service {
	return &herding{service: next, asks: true, moved: make(chan struct{})}
}

func (h *herding) Call(ctx context.Context, req *Request) (*Response, error) {
	h.mu.Lock()
	mine := h.end
	h.end++
	for h.now != mine {
		moved := h.moved
		h.mu.Unlock()
		<-moved
		if h.asks {
			layer.Poll(h.service)
		}
		h.mu.Lock()
	}
	h.mu.Unlock()
	defer h.next()
	if err := h.service.Ready(ctx); err != nil {
		return nil, err
	}
	return h.service.Call(ctx, req)
}

func (h *herding) next() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now++
	close(h.moved)
	h.moved = make(chan struct{})
}

// asksBefore calls Ready twice before each call.
func asksBefore(next service, ctx context.Context, req *Request) (*Response, error) {
	for range 2 {
		if err := next.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return next.Call(ctx, req)
}

// forgetful returns ErrClosed only once.
func forgetful() Layer {
	return Layer{Layer: func(next service) service {
		var returned atomic.Bool
		return odd{service: next, ready: func(ctx context.Context) error {
			err := next.Ready(ctx)
			if errors.Is(err, layer.ErrClosed) && returned.Swap(true) {
				return nil
			}
			return err
		}}
	}}
}

// optimistic returns ErrNotReady instead of ErrClosed.
func optimistic(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrClosed) {
		err = layer.ErrNotReady
	}
	return rsp, err
}

// counting builds a layer with a wrong counter.
func counting(observe func(next service, n *atomic.Int64) callFunc) Layer {
	var n atomic.Int64
	l := calling(func(next service, ctx context.Context, req *Request) (*Response, error) {
		return observe(next, &n)(next, ctx, req)
	})
	l.Ended = func() int { return int(n.Load()) }
	return l
}

// everyEvent is a body that counts an end at each error and Close.
type everyEvent struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b everyEvent) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.n.Add(1)
	}
	return n, err
}

func (b everyEvent) Close() error {
	b.n.Add(1)
	return b.ReadCloser.Close()
}

func countsEvents(next service, n *atomic.Int64) callFunc {
	return func(_ service, ctx context.Context, req *Request) (*Response, error) {
		rsp, err := next.Call(ctx, req)
		switch {
		case err != nil:
			return nil, err
		case rsp.Body == nil:
			n.Add(1)
		default:
			rsp.Body = everyEvent{rsp.Body, n}
		}
		return rsp, nil
	}
}

func countsAtReturn(next service, n *atomic.Int64) callFunc {
	return func(_ service, ctx context.Context, req *Request) (*Response, error) {
		rsp, err := next.Call(ctx, req)
		if err == nil {
			n.Add(1)
		}
		return rsp, err
	}
}

// noClose is a body with a Close that does not reach the inner body.
type noClose struct{ io.Reader }

func (noClose) Close() error { return nil }

func keepsOpen(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err == nil && rsp.Body != nil {
		rsp.Body = noClose{rsp.Body}
	}
	return rsp, err
}

// wholeBody returns io.EOF for every error of a body.
func wholeBody(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err == nil && rsp.Body != nil {
		rsp.Body = lenient{rsp.Body}
	}
	return rsp, err
}

// cutShort returns io.EOF for a body that ctx has ended.
func cutShort(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err == nil && rsp.Body != nil {
		rsp.Body = lenientTo{rsp.Body, ctx}
	}
	return rsp, err
}

type lenientTo struct {
	io.ReadCloser
	ctx context.Context
}

func (b lenientTo) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.ctx.Err() != nil && err != nil {
		err = io.EOF
	}
	return n, err
}

type lenient struct{ io.ReadCloser }

func (b lenient) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// deferCancel is a timeout that ends before the body.
func deferCancel(next service, ctx context.Context, req *Request) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	return next.Call(ctx, req)
}

// newContext propagates cancellation only until Call returns.
func newContext(next service, ctx context.Context, req *Request) (*Response, error) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	rsp, err := next.Call(own, req)
	stop()
	return rsp, err
}

// otherCause cancels the inner context without the cause.
func otherCause(next service, ctx context.Context, req *Request) (*Response, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, cancel)
	return next.Call(own, req)
}

// background makes a second call with a context that has no values.
func background(next service, ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() == nil {
		next.Call(context.Background(), &Request{})
	}
	return next.Call(ctx, req)
}

// generous sets a later deadline than the caller.
func generous(next service, ctx context.Context, req *Request) (*Response, error) {
	if _, ok := ctx.Deadline(); !ok {
		return next.Call(ctx, req)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Hour)
	context.AfterFunc(ctx, cancel)
	return next.Call(own, req)
}

// prints drops the wrapped errors.
func prints(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil && !errors.Is(err, layer.ErrNotReady) {
		err = errors.New(err.Error())
	}
	return rsp, err
}

// halfChain keeps errPlanned, and drops other types.
func halfChain(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, errPlanned) {
		return nil, fmt.Errorf("failed: %w", errPlanned)
	}
	return prints(odd{call: func(context.Context, *Request) (*Response, error) { return rsp, err }}, ctx, req)
}

// recovers returns an error for a panic.
func recovers(next service, ctx context.Context, req *Request) (rsp *Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return next.Call(ctx, req)
}

// ownGoroutine calls on another goroutine, so that a Goexit does not reach the caller.
func ownGoroutine(next service, ctx context.Context, req *Request) (rsp *Response, err error) {
	p, _ := ctx.Value(probeKey{}).(*probe[*Request, *Response])
	if p.panics != nil {
		return next.Call(ctx, req) // a panic would end the program
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		rsp, err = next.Call(ctx, req)
	}()
	<-done
	return rsp, err
}

var sink any

// allocating allocates for each call.
func allocating(next service, ctx context.Context, req *Request) (*Response, error) {
	sink = new([64]byte)
	return next.Call(ctx, req)
}

// copies sends a copy of the request.
func copies(next service, ctx context.Context, req *Request) (*Response, error) {
	again := *req
	return next.Call(ctx, &again)
}

// marksCtx sends another context.
func marksCtx(next service, ctx context.Context, req *Request) (*Response, error) {
	type key struct{}
	return next.Call(context.WithValue(ctx, key{}, 1), req)
}

// newResponseEach returns a copy of the response.
func newResponseEach(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil {
		return nil, err
	}
	again := *rsp
	return &again, nil
}

func transparent(l Layer) Layer {
	l.Transparent = true
	return l
}

// busy starts a goroutine when it is applied.
func busy(next service) service {
	go time.Sleep(time.Minute)
	return next
}

// immortal has a goroutine that outlives its context.
func immortal(ctx context.Context, next service) service {
	go func() {
		<-ctx.Done()
		time.Sleep(time.Minute)
	}()
	return next
}

// eager calls the inner service before there is a request.
func eager(ask func(service)) Layer {
	return Layer{Layer: func(next service) service {
		ask(next)
		return next
	}}
}
