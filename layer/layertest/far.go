package layertest

import (
	"context"
	"sync"
	"time"
)

// far is the inner service under a layer: a Mock whose calls do what the
// probes that reach it have planned.
type far[Req, Rsp any] struct {
	*Mock[Req, Rsp]
	response func(int) Rsp
	again    func(Rsp) // may be nil
	atReturn bool
	over     <-chan struct{} // the check is over: nothing is held any more

	mu    sync.Mutex
	turns int
	live  int // calls that are not over, by the declared end
	most  int // the highest that live ever was
	lost  int // calls that came without their probe
}

func newFar[Req, Rsp any](response func(int) Rsp, atReturn bool) *far[Req, Rsp] {
	f := &far[Req, Rsp]{Mock: NewMock[Req, Rsp](), response: response, atReturn: atReturn}
	f.Serve(f.serve)
	f.Allow(Unlimited)
	return f
}

// serve does what the probe has planned. A call is live from here to the end
// that the layer has declared: its slot must be held for just as long.
func (f *far[Req, Rsp]) serve(ctx context.Context, req Req) (rsp Rsp, err error) {
	p, ok := ctx.Value(probeKey{}).(*probe[Req, Rsp])
	f.enter(ok)
	over := sync.OnceFunc(f.leave)
	open := false // the body is, and it will say when it is over
	defer func() {
		if !open {
			over()
		}
	}()
	if !ok {
		// A context that lost its values has lost the deadline and the
		// cancellation of the caller, too.
		return rsp, errLost
	}
	pl, try := p.arrive(ctx, f.turn(), req)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		try.returned = true
	}()
	if err := p.work(ctx, f.over, pl, req); err != nil {
		return rsp, err
	}
	// The factory may give a body of its own; only the one below is watched.
	rsp = f.response(p.id)
	setBody[Rsp](rsp, nil)
	if pl.again && f.again != nil {
		f.again(rsp)
	}
	var body *responseBody
	if hasBody[Rsp]() && !pl.bare {
		body = &responseBody{ctx: ctx, data: responseData(p.id), breaks: pl.breaks, over: over}
		setBody[Rsp](rsp, body)
		open = !f.atReturn
	}
	p.mu.Lock()
	try.body, p.body, p.gave = body, body, rsp
	p.mu.Unlock()
	return rsp, nil
}

// arrive notes one try of a call, and says what it is to meet.
func (p *probe[Req, Rsp]) arrive(ctx context.Context, turn int, req Req) (plan, *tried) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	p.turn, p.ctx, p.got = turn, ctx, req
	try := &tried{}
	p.all = append(p.all, try)
	if p.each != nil {
		return p.each(p.seen), try
	}
	return p.plan, try
}

// work is what the inner service does before it has a response.
func (p *probe[Req, Rsp]) work(ctx context.Context, over <-chan struct{}, pl plan, req Req) error {
	// Sleep, and no timer: timers that fire while others are stopped crash the
	// race detector in a bubble (golang/go#78156).
	time.Sleep(pl.takes)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if pl.holds {
		if pl.early {
			p.inspect(ctx, req)
		}
		select {
		case <-p.released:
		case <-over:
			return errOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if !pl.holds || !pl.early {
		p.inspect(ctx, req)
	}
	if pl.before != nil {
		pl.before()
	}
	switch {
	case pl.panics != nil:
		panic(pl.panics)
	case pl.exits:
		exit()
	}
	return pl.fails
}

func (f *far[Req, Rsp]) enter(known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live++
	f.most = max(f.most, f.live)
	if !known {
		f.lost++
	}
}

func (f *far[Req, Rsp]) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live--
}

func (f *far[Req, Rsp]) turn() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turns++
	return f.turns
}

func (f *far[Req, Rsp]) highest() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

func (f *far[Req, Rsp]) strays() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}
