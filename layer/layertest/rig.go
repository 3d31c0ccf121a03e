package layertest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

var (
	errOver   = errors.New("the check is over")
	errCancel = errors.New("the caller changed its mind")
	errWaits  = errors.New("it still waits")
	errLost   = errors.New("the inner service was called with a context that does not come from the caller's")
)

// subject makes the services that the checks look at.
type subject[Req, Rsp any] struct {
	declared
	request  func(int) Req
	response func(int) Rsp
	again    func(Rsp) // nil where the subject looks at errors alone
	rewrites bool      // messages come out as others than they went in

	apply   func(context.Context, layer.Service[Req, Rsp]) layer.Service[Req, Rsp] // of a layer
	service ServiceOf[Req, Rsp]                                                    // of anything else
}

// env is the place of one check: inside a bubble, with a context that ends
// when the check is over.
type env[Req, Rsp any] struct {
	*subject[Req, Rsp]
	ctx  context.Context
	away *away
}

// away are the rejected calls of a check. A layer may touch one of them only
// later, when there is capacity.
type away struct {
	mu    sync.Mutex
	again []func() error
	inner map[allower]bool
	fault error // of the spec, that has ended the check
}

type allower interface{ Allow(n int) }

// turnedAway has look judge a refused call again when the check is through.
func (e env[Req, Rsp]) turnedAway(look func() error, inner *far[Req, Rsp]) {
	if e.away == nil {
		return
	}
	e.away.mu.Lock()
	defer e.away.mu.Unlock()
	e.away.again = append(e.away.again, look)
	if inner != nil {
		e.away.inner[inner] = true
	}
}

// stayAway adds capacity, lets time pass, and checks all rejected calls again.
func (a *away) stayAway() error {
	if len(a.again) == 0 {
		return nil
	}
	for inner := range a.inner {
		inner.Allow(Unlimited)
	}
	time.Sleep(time.Second)
	settle()
	for _, look := range a.again {
		if err := look(); err != nil {
			return err
		}
	}
	return nil
}

// unusable ends the check with an error in its spec.
func (e env[Req, Rsp]) unusable(why string) {
	e.away.fault = errors.New(why)
	panic(e.away.fault)
}

// rig is a new service under test with all its capacity.
type rig[Req, Rsp any] struct {
	env[Req, Rsp]
	svc   layer.Service[Req, Rsp]
	far   *far[Req, Rsp] // the inner service; nil where the checks see none
	calls atomic.Int64
}

func (e env[Req, Rsp]) rig() *rig[Req, Rsp] {
	r := &rig[Req, Rsp]{env: e}
	if !e.layer {
		if r.svc = e.service.New(e.ctx); r.svc == nil {
			e.unusable("New of the spec returns no service")
		}
		return r
	}
	r.far = newFar[Req](e.response, e.atReturn)
	r.far.again = e.again
	r.far.over = e.ctx.Done()
	// Whatever waits below a layer that does not listen to ctx ends, too.
	context.AfterFunc(e.ctx, r.far.Close)
	if r.svc = e.apply(e.ctx, r.far); r.svc == nil {
		e.unusable("the layer of the spec returns no service")
	}
	return r
}

// close closes the service.
func (r *rig[Req, Rsp]) close() {
	if r.layer {
		r.far.Close()
	} else {
		r.service.Close(r.svc)
	}
}

// saturate takes all capacity. free returns enough of it for every waiting
// Ready.
func (r *rig[Req, Rsp]) saturate() (free func(), err error) {
	switch {
	case !r.layer:
		if free = r.service.Fill(r.svc); free == nil {
			return nil, errors.New("Fill of the spec returns no function that gives the capacity back")
		}
		return free, nil
	case !r.own():
		return func() { r.far.Allow(1) }, r.deny()
	}
	// The limit or the line of the layer itself.
	held, err := r.fill(r.ctx, plan{holds: true})
	if err != nil {
		return nil, err
	}
	return func() {
		// A queue may derive its readiness from its own room or from the layer
		// below. Everything is freed, so that both are ready.
		last := len(held)
		if r.queue == 0 {
			last = 1
		}
		r.far.Allow(Unlimited)
		for _, p := range held[:last] {
			p.release()
		}
	}, nil
}

// deny removes all capacity of the inner service. A layer that caches readiness
// learns it from rejections.
func (r *rig[Req, Rsp]) deny() error {
	r.far.Deny()
	if !r.background {
		return nil
	}
	for range 16 {
		if err := r.refused(r.do(r.ctx, plan{}), nil); err != nil {
			return fmt.Errorf("the inner service is not ready: %w", err)
		}
	}
	return nil
}

// fill starts as many calls as the layer has declared to take. Those within
// its limit are held by the inner service; without a limit, that is denied,
// and all of them wait in the queue. pl says what becomes of them when they are
// released.
func (r *rig[Req, Rsp]) fill(ctx context.Context, pl plan) ([]*probe[Req, Rsp], error) {
	if r.limit == 0 {
		r.far.Deny()
	}
	held := make([]*probe[Req, Rsp], r.limit+r.queue)
	for i := range held {
		held[i] = r.do(ctx, pl)
		if held[i].returned() {
			return nil, fmt.Errorf("with %v, call %d was not taken: %v", r.declared, i+1, held[i].err)
		}
	}
	return held, nil
}

// exact returns an error unless the layer takes just the calls that it has
// declared, no more and no fewer. It leaves nothing in flight.
func (r *rig[Req, Rsp]) exact() error {
	if !r.own() {
		return r.serves()
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer func() {
		cancel(errOver)
		settle()
		r.far.Allow(Unlimited)
	}()
	if _, err := r.fill(ctx, plan{holds: true}); err != nil {
		return err
	}
	if p := r.do(ctx, plan{holds: true}); !r.judged(p) {
		return fmt.Errorf("with %v, a call more than that is taken", r.declared)
	}
	return nil
}

// serves returns an error unless the service is ready and answers a call.
func (r *rig[Req, Rsp]) serves() error {
	if err := r.poll(); err != nil {
		return fmt.Errorf("is not ready: %w", err)
	}
	return r.answer(r.ctx, plan{}).well(r.bodies && r.layer)
}

// answer makes a call that will be answered. A layer adds no time to it; what
// is below a service may take some.
func (r *rig[Req, Rsp]) answer(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.do(ctx, pl)
	if r.layer {
		return p
	}
	select {
	case <-p.done:
	case <-time.After(time.Minute):
	}
	settle()
	return p
}

// judged waits until the subject has done with p, where that takes more than
// one try: nothing else may take time.
func (r *rig[Req, Rsp]) judged(p *probe[Req, Rsp]) bool {
	if !p.returned() && r.tries > 1 {
		time.Sleep(r.patience())
		settle()
	}
	return p.returned()
}

// poll asks whether the service is ready now.
func (r *rig[Req, Rsp]) poll() error {
	w := start(func() error { return layer.Poll(r.svc) })
	if !w.returned() {
		return errWaits
	}
	return w.err
}

// waiter is a goroutine in Ready.
type waiter struct {
	done  chan struct{}
	err   error
	after time.Duration
}

// wait waits for readiness in a goroutine of its own.
func (r *rig[Req, Rsp]) wait(ctx context.Context) *waiter {
	return start(func() error { return r.svc.Ready(ctx) })
}

func (r *rig[Req, Rsp]) waiters(ctx context.Context, n int) []*waiter {
	all := make([]*waiter, n)
	for i := range all {
		all[i] = r.wait(ctx)
	}
	settle()
	return all
}

func start(ready func() error) *waiter {
	w := &waiter{done: make(chan struct{}), err: errExited} // unless it returns
	began := time.Now()
	go func() {
		defer close(w.done)
		w.err = guarded(ready)
		w.after = time.Since(began)
	}()
	return w
}

// panicked is what a function ended with that should have returned.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("it panicked: %v\n%s", p.value, p.stack) }

var errExited = errors.New("it ended its goroutine")

// guarded makes an error of a panic, which must not end the program.
func guarded(ready func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicked{v, debug.Stack()}
		}
	}()
	return ready()
}

func (w *waiter) returned() bool {
	settle()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}
