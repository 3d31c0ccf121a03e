package layertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gotower/gotower/layer"
)

// forwards is invariant 19 and the promise of design.md §7: Ready is the inner
// service's, a transparent layer changes nothing, and NoAllocs is true.
func forwards[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	if r.queue == 0 {
		if err := r.deny(); err != nil {
			return err
		}
		if err := r.poll(); !notReady(err) {
			return fmt.Errorf("Poll while the inner service is not ready: %v", err)
		}
		r.far.Allow(Unlimited)
		settle()
	}
	if err := r.poll(); err != nil {
		return fmt.Errorf("Poll while the inner service is ready: %w", err)
	}
	if r.transparent {
		if err := r.passesValues(); err != nil {
			return err
		}
	}
	if r.noAllocs && !raced {
		return allocates(e)
	}
	return nil
}

// passesValues calls once, and compares what went in with what came out.
func (r *rig[Req, Rsp]) passesValues() error {
	p := r.probe(plan{keep: true})
	ctx, cancel := context.WithDeadline(context.WithValue(r.ctx, probeKey{}, p), time.Now().Add(time.Hour))
	defer cancel()
	var rsp Rsp
	w := start(func() (err error) {
		rsp, err = r.svc.Call(ctx, p.req)
		return err
	})
	if !w.returned() || w.err != nil {
		return fmt.Errorf("the call fails: %w", w.result())
	}
	innerCtx, innerReq, body := p.inner()
	switch {
	case innerCtx != ctx:
		return errors.New("the inner service got another context")
	case !same(innerReq, p.req):
		return errors.New("the inner service got another request")
	case !same(rsp, p.gave):
		return errors.New("the caller got another response")
	case body != nil && bodyOf(rsp) != body:
		return errors.New("the response got another body")
	}
	return nil
}

// same reports whether two messages are one and the same; for messages that
// cannot be compared it says yes.
func same[T any](a, b T) (equal bool) {
	defer func() {
		if recover() != nil {
			equal = true
		}
	}()
	return any(a) == any(b)
}

// allocates compares a call through the layer with one without it. It takes the
// best of several rounds, because other goroutines allocate too.
func allocates[Req, Rsp any](e env[Req, Rsp]) error {
	req, rsp := e.request(0), e.response(0)
	if !e.transparent {
		setBody[Rsp](rsp, nil)
	}
	inner := layer.Func[Req, Rsp](func(context.Context, Req) (Rsp, error) { return rsp, nil })
	svc := e.apply(e.ctx, inner)
	var with, without uint64
	w := start(func() error {
		with, without = mallocs(e.ctx, svc, req), mallocs(e.ctx, inner, req)
		return nil
	})
	if !w.returned() {
		return errors.New("a call with all capacity free does not return")
	}
	if with > without {
		return fmt.Errorf("%d calls allocate %d times more than without the layer", allocCalls, with-without)
	}
	return nil
}

const allocCalls = 100

func mallocs[Req, Rsp any](ctx context.Context, svc layer.Service[Req, Rsp], req Req) uint64 {
	var before, after runtime.MemStats
	least := ^uint64(0)
	for range 10 {
		runtime.ReadMemStats(&before)
		for range allocCalls {
			svc.Call(ctx, req) //nolint:errcheck // only its cost is looked at
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}

// makingInert is invariant 20: applying a layer starts no goroutine and does
// not call the inner service. A layer made with a context may work in the
// background until that context ends.
func makingInert[Req, Rsp any](e env[Req, Rsp]) error {
	before := goroutines()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(errOver)
	e.ctx = ctx
	// A hundred, so that other goroutines do not hide the result.
	for range 100 {
		r := e.rig()
		settle()
		if r.layer && r.far.Calls() > 0 {
			return errors.New("the inner service is called before there is a request")
		}
		if r.layer && !r.background && r.far.ReadyCalls() > 0 {
			return errors.New("Ready of the inner service is called without a request")
		}
	}
	if e.background {
		cancel(errOver)
	}
	if err := e.leftSince(before); err != nil {
		return fmt.Errorf("made 100 times: %w", err)
	}
	return nil
}
