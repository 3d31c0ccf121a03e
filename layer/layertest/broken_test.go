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

// The layers of this file are wrong, each in one way that somebody has got
// wrong before. What they would leave behind ends with the context of New, so
// that the check is over even if they are not.

// odd is a layer made of the two functions that are given; a nil one is the
// inner service's.
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

// closedForNow calls what has no capacity closed.
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

// bareErr returns ctx.Err() where the cause is wanted.
func bareErr(next service, ctx context.Context) error {
	if err := next.Ready(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// remembering answers with the response that came last to anybody.
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
	if errors.Is(err, errLost) {
		return nil
	}
	return err
}

// pretending asks by a call that nobody can serve.
func pretending(next service, ctx context.Context) error {
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := next.Call(gone, &Request{}); errors.Is(err, layer.ErrClosed) {
		return err
	}
	return next.Ready(ctx)
}

// deaf waits in Ready without its ctx.
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

// sleepy looks at ctx when it next wakes up, and then returns.
func sleepy(next service, ctx context.Context) error {
	for layer.Poll(next) != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// leaky leaves the goroutine behind that it waits with.
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

// leakyCall leaves a call behind when its caller goes.
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

// refusesForGood calls every refusal the last.
func refusesForGood(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) {
		err = refuse(layer.ErrClosed, err)
	}
	return rsp, err
}

// refusesAtDeadline calls untouched what was in flight until its deadline.
func refusesAtDeadline(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, context.DeadlineExceeded) {
		err = refuse(layer.ErrNotReady, err)
	}
	return rsp, err
}

// abandoning gives up on a queue that does not, and serves the request when its
// turn comes.
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

// readsLater reads a request that was refused, but not at once.
func readsLater(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) {
		body := req.Body
		time.AfterFunc(time.Millisecond, func() { body.Read(make([]byte, 1)) })
	}
	return rsp, err
}

// sendsFirst sends the same request for everybody.
func sendsFirst() Layer {
	return Layer{Layer: func(next service) service {
		var first atomic.Pointer[Request]
		return odd{service: next, call: func(ctx context.Context, req *Request) (*Response, error) {
			first.CompareAndSwap(nil, req)
			return next.Call(ctx, first.Load())
		}}
	}}
}

// sends hands on what it makes of a request.
func sends(change func(req *Request)) Layer {
	return calling(func(next service, ctx context.Context, req *Request) (*Response, error) {
		again := *req
		change(&again)
		return next.Call(ctx, &again)
	})
}

// answers returns what it makes of a response.
func answers(change func(rsp *Response)) Layer {
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

// sendsAgain sends what has failed once more.
func sendsAgain(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil && !errors.Is(err, layer.ErrNotReady) {
		return next.Call(ctx, req)
	}
	return rsp, err
}

// watches leaves a goroutine with each call, until ctx ends.
func watches(next service, ctx context.Context, req *Request) (*Response, error) {
	go func() { <-ctx.Done() }()
	return next.Call(ctx, req)
}

// watchesReady does so with each who asks.
func watchesReady(next service, ctx context.Context) error {
	go func() { <-ctx.Done() }()
	return next.Ready(ctx)
}

// refusesLate calls what has failed untouched, whatever it was.
func refusesLate(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil {
		err = refuse(layer.ErrNotReady, err)
	}
	return rsp, err
}

// detaches calls inner with a context that never ends.
func detaches(next service, ctx context.Context, req *Request) (*Response, error) {
	return next.Call(context.WithoutCancel(ctx), req)
}

// plainDone turns away what is done, but does not say that it is untouched.
func plainDone(next service, ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return next.Call(ctx, req)
}

// causeless turns away what is done, and does not say why.
func causeless(next service, ctx context.Context, req *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, layer.ErrNotReady
	}
	return next.Call(ctx, req)
}

// slowRefusal refuses after some time.
func slowRefusal(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrNotReady) {
		time.Sleep(10 * time.Millisecond)
	}
	return rsp, err
}

// buffering reads the request before it knows whether it is wanted.
func buffering(next service, ctx context.Context, req *Request) (*Response, error) {
	if _, err := io.ReadAll(req.Body); err != nil {
		return nil, err
	}
	return next.Call(ctx, req)
}

// wrapping replaces the body of the request for good.
func wrapping(next service, ctx context.Context, req *Request) (*Response, error) {
	req.Body = io.NopCloser(req.Body)
	return next.Call(ctx, req)
}

// hiddenLimit has a limit that it does not declare.
func hiddenLimit() Layer {
	return Layer{Layer: limits(100, layer.AtEnd[*Response](), "")}
}

// herding wakes everybody in the queue for each turn; the inner service does
// not notice.
type herding struct {
	service
	asks     bool // and it does
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

// asksBefore asks inner twice before each call.
func asksBefore(next service, ctx context.Context, req *Request) (*Response, error) {
	for range 2 {
		if err := next.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return next.Call(ctx, req)
}

// forgetful is closed only for the first who asks.
func forgetful() Layer {
	return Layer{Layer: func(next service) service {
		var told atomic.Bool
		return odd{service: next, ready: func(ctx context.Context) error {
			err := next.Ready(ctx)
			if errors.Is(err, layer.ErrClosed) && told.Swap(true) {
				return nil
			}
			return err
		}}
	}}
}

// optimistic calls what is closed not ready, as if that would pass.
func optimistic(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, layer.ErrClosed) {
		err = layer.ErrNotReady
	}
	return rsp, err
}

// counting builds a counter whose observer is wrong.
func counting(observe func(next service, n *atomic.Int64) callFunc) Layer {
	var n atomic.Int64
	l := calling(func(next service, ctx context.Context, req *Request) (*Response, error) {
		return observe(next, &n)(next, ctx, req)
	})
	l.Ended = func() int { return int(n.Load()) }
	return l
}

// everyEvent is a body that counts an end at each event that could be one.
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

// noClose is a body whose Close stops where it is.
type noClose struct{ io.Reader }

func (noClose) Close() error { return nil }

func keepsOpen(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err == nil && rsp.Body != nil {
		rsp.Body = noClose{rsp.Body}
	}
	return rsp, err
}

// wholeBody makes every broken body a complete one.
func wholeBody(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err == nil && rsp.Body != nil {
		rsp.Body = lenient{rsp.Body}
	}
	return rsp, err
}

// cutShort makes a whole body of one that ctx has cut off.
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

// deferCancel is the best known wrong timeout of all.
func deferCancel(next service, ctx context.Context, req *Request) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	return next.Call(ctx, req)
}

// newContext keeps the values of a context and nothing else.
func newContext(next service, ctx context.Context, req *Request) (*Response, error) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	rsp, err := next.Call(own, req)
	stop()
	return rsp, err
}

// generous gives inner more time than the caller has.
func generous(next service, ctx context.Context, req *Request) (*Response, error) {
	if _, ok := ctx.Deadline(); !ok {
		return next.Call(ctx, req)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Hour)
	context.AfterFunc(ctx, cancel)
	return next.Call(own, req)
}

// prints drops the chain of an error.
func prints(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if err != nil && !errors.Is(err, layer.ErrNotReady) {
		err = errors.New(err.Error())
	}
	return rsp, err
}

// halfChain keeps what it knows, and drops the type.
func halfChain(next service, ctx context.Context, req *Request) (*Response, error) {
	rsp, err := next.Call(ctx, req)
	if errors.Is(err, errPlanned) {
		return nil, fmt.Errorf("failed: %w", errPlanned)
	}
	return prints(odd{call: func(context.Context, *Request) (*Response, error) { return rsp, err }}, ctx, req)
}

// recovers makes an error of a panic.
func recovers(next service, ctx context.Context, req *Request) (rsp *Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return next.Call(ctx, req)
}

// ownGoroutine calls in another goroutine; what ends that is lost.
func ownGoroutine(next service, ctx context.Context, req *Request) (rsp *Response, err error) {
	p, _ := ctx.Value(probeKey{}).(*probe[*Request, *Response])
	if p.panics != nil {
		return next.Call(ctx, req) // or the program would end
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

// allocating makes something for each call.
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

// newResponseEach answers with a copy.
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

// immortal has a goroutine that outlives its context by a while.
func immortal(ctx context.Context, next service) service {
	go func() {
		<-ctx.Done()
		time.Sleep(time.Minute)
	}()
	return next
}

// eager calls or asks the inner service before anybody wants it.
func eager(ask func(service)) Layer {
	return Layer{Layer: func(next service) service {
		ask(next)
		return next
	}}
}
