package layertest

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// innerService is the inner service of a layer under test. It is a [Mock] that serves each call
// as the call's plan specifies.
type innerService[Req, Rsp any] struct {
	*Mock[Req, Rsp]
	subject *subject[Req, Rsp]
	done    <-chan struct{} // closed at the end of the check; ends calls with hold in their plan

	mu          sync.Mutex
	live, peak  int // number of calls that have not reached their declared end, and its maximum
	lostContext int // calls with a context that has no probe
}

// newInner returns the inner service for a check of s. It admits every call. done must be closed at the
// end of the check.
func newInner[Req, Rsp any](s *subject[Req, Rsp], done <-chan struct{}) *innerService[Req, Rsp] {
	in := &innerService[Req, Rsp]{Mock: NewMock[Req, Rsp](), subject: s, done: done}
	in.Serve(in.serve)
	in.Allow(Unlimited)
	return in
}

// serve serves one attempt, as the plan of its probe specifies. It returns errLostContext if the layer
// has not passed on the context, because then the probe is unknown.
//
// The call counts in live until its response body or its context ends. If the subject declares AtReturn,
// or the response carries no body, it counts only until serve returns.
func (in *innerService[Req, Rsp]) serve(ctx context.Context, req Req) (rsp Rsp, err error) {
	p, ok := ctx.Value(probeKey{}).(*probe[Req, Rsp])
	in.enter(ok)
	end := sync.OnceFunc(in.leave)
	open := false // whether the end of the body or of ctx calls end, instead of the return
	defer func() {
		if !open {
			end()
		}
	}()
	if !ok {
		return rsp, errLostContext
	}
	pl, a := p.arrive(ctx, req)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		a.returned = true
	}()
	if err := p.work(ctx, in.done, pl, req); err != nil {
		return rsp, err
	}
	rsp = in.subject.Response(p.id)
	in.subject.responses.setBody(rsp, nil)
	if pl.retryable && in.subject.Retryable != nil {
		in.subject.Retryable(rsp)
	}
	// The layer may drop the response, so the end of ctx also counts as the end of the body.
	var body *responseBody
	if in.subject.bodies && !pl.noBody {
		body = &responseBody{ctx: ctx, data: responseData(p.id), err: pl.bodyErr, onEnd: end}
		in.subject.responses.setBody(rsp, body)
		if open = !in.subject.AtReturn; open {
			context.AfterFunc(ctx, end)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.body, p.body, p.innerRsp = body, body, rsp
	return rsp, nil
}

// arrive records that the call p has reached the inner service once more, as with a retry. It returns
// the plan that tells what the inner service does.
func (p *probe[Req, Rsp]) arrive(ctx context.Context, req Req) (*plan, *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx, p.innerReq = ctx, req
	a := &attempt{}
	p.records = append(p.records, a)
	if p.planOf != nil {
		pl := p.planOf(len(p.records))
		return &pl, a
	}
	return &p.plan, a
}

// work performs the plan pl up to the response: it waits, reads the request, and may panic. It
// returns the plan's error, or the cause of ctx if ctx has ended.
func (p *probe[Req, Rsp]) work(ctx context.Context, done <-chan struct{}, pl *plan, req Req) error {
	// Sleep is used because timers that fire while others are stopped crash
	// the race detector in a bubble (golang/go#78156).
	time.Sleep(pl.delay)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !pl.hold || pl.readFirst {
		p.inspect(ctx, req)
	}
	if pl.hold {
		select {
		case <-p.released:
		case <-done:
			return errCheckDone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !pl.readFirst {
			p.inspect(ctx, req)
		}
	}
	if pl.beforeEnd != nil {
		pl.beforeEnd()
	}
	if pl.panics != nil {
		panic(pl.panics)
	}
	if pl.exit {
		runtime.Goexit()
	}
	return pl.err
}

// enter counts a call as live. hasProbe is false if the call's context has no probe.
func (in *innerService[Req, Rsp]) enter(hasProbe bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.live++
	in.peak = max(in.peak, in.live)
	if !hasProbe {
		in.lostContext++
	}
}

// leave counts a live call as ended.
func (in *innerService[Req, Rsp]) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.live--
}

// takePeak returns the largest number of live calls since it was last called.
func (in *innerService[Req, Rsp]) takePeak() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	peak := in.peak
	in.peak = in.live
	return peak
}

// contextsLost returns the number of calls for which the layer did not pass on the context.
func (in *innerService[Req, Rsp]) contextsLost() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.lostContext
}
