package layertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/internal/conformance"
	"github.com/gotower/gotower/layer"
)

// maxCallers and shortCallers are how many callers run concurrently in the full and in the short
// checks.
const (
	maxCallers   = 1000
	shortCallers = 120
)

// defaultCallers returns the number of concurrent callers. It is maxCallers under the race
// detector, because rare races need many callers.
func defaultCallers() int {
	if conformance.Short() && !raceEnabled {
		return shortCallers
	}
	return maxCallers
}

// storm makes calls of Ready and Call from many goroutines at once, and cancels some. It
// checks that every call is served at most once, and gets the response to its own
// request.
func storm[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	calls := make([]*probe[Req, Rsp], 0, e.Callers)
	var waiters []*waiter
	for i := range e.Callers {
		ctx, cancel := context.WithCancelCause(r.ctx)
		defer cancel(nil) //nolint:gocritic // after the storm
		calls = append(calls, r.start(ctx, plan{delay: time.Microsecond}))
		// A quarter of the calls run undisturbed, one is canceled at once, one when Ready returns, and one runs
		// beside a Poll.
		switch i % 4 {
		case 1:
			go cancel(errCancel)
		case 2:
			waiters = append(waiters, startWaiter(func() error {
				defer cancel(errCancel)
				return r.svc.Ready(ctx)
			}))
		case 3:
			waiters = append(waiters, startWaiter(func() error { return layer.Poll(r.svc) }))
		}
	}
	// Time is virtual in the bubble, so a sleep costs none.
	time.Sleep(time.Second)
	synctest.Wait()
	for _, w := range waiters {
		if p, ok := errors.AsType[*panicError](w.result()); ok {
			failf("Ready: %w", p)
		}
	}
	for i, p := range calls {
		r.checkStormCall(p, i%4 == 1 || i%4 == 2)
	}
}

// checkStormCall checks the call p of storm. The check fails if the call has not returned or was
// served more than once. If canceled is true, storm canceled the call, and the call may fail. If
// canceled is false, a layer may reject the call only if it sets a limit or a queue.
func (r *rig[Req, Rsp]) checkStormCall(p *probe[Req, Rsp], canceled bool) {
	switch {
	case !p.returned():
		failf("a call has not returned a second after the storm")
	case p.served() > 1:
		failf("call %d was served %d times", p.id, p.served())
	case errors.Is(p.err, layer.ErrNotReady):
		if !canceled && r.isLayer() && !r.admits() {
			failf("a call was rejected by a layer without a limit: %w", p.err)
		}
		var cause error
		if canceled && errors.Is(p.err, layer.ErrClosed) {
			cause = layer.ErrClosed // one of several inner services may be closed
		}
		must(r.checkRejected(p, cause))
		return
	case canceled && (p.err != nil || p.readErr != nil):
		return // a canceled call may fail
	}
	must(p.checkSuccess(r.bodies && r.isLayer()))
	if r.isLayer() && p.served() == 0 {
		failf("call %d has a response, but was never served", p.id)
	}
}

// outcomes are the plans of the calls that capacityKept makes. They differ in the way in which the
// call ends. If a plan's keepsBody is true, the check itself reads or closes the response body.
var outcomes = []plan{
	{}, {}, {noBody: true}, {hold: true}, {keepsBody: true}, {keepsBody: true}, {keepsBody: true, bodyErr: errPlanned},
	{err: errPlanned}, {panics: errPlanned}, {exit: true},
}

// capacityKept checks a layer with calls that end in every possible way. The calls in
// flight must never exceed the limit, and all capacity must be free afterwards.
func capacityKept[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	n := 8
	rounds := 10
	if r.isLayer() {
		unlimitedCalls(e)
		n = min(max(2*(r.Limit+r.Queue), 100), e.Callers)
	}
	// A constant seed, so that a failure can be repeated.
	rng := rand.New(rand.NewPCG(9, 9))
	for round := range rounds {
		r.randomCalls(n, rng, round%2 == 0)
	}
	// Canceled calls may still be in their plans' delays, or in a service.
	time.Sleep(time.Minute)
	mustf(r.checkServes(), "after the calls had ended")
	if r.isLayer() {
		mustf(r.checkCapacity(), "after the calls had ended")
	}
}

// unlimitedCalls checks that a layer without a limit admits many calls at once.
func unlimitedCalls[Req, Rsp any](e env[Req, Rsp]) {
	if e.Limit > 0 {
		return
	}
	r := e.rig()
	for range e.Callers {
		r.start(r.ctx, plan{hold: true})
	}
	synctest.Wait()
	if n := r.inner.InFlight(); n < e.Callers {
		failf("%d of %d calls are admitted by a layer without a limit", n, e.Callers)
	}
}

// randomCalls makes n concurrent calls with random outcomes, and then cancels them. If
// cancelEarly is true, it cancels them before their bodies are read.
func (r *rig[Req, Rsp]) randomCalls(n int, rng *rand.Rand, cancelEarly bool) {
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(errCancel)
	calls := make([]*probe[Req, Rsp], n)
	for i := range calls {
		pl := outcomes[rng.IntN(len(outcomes))]
		pl.wait, pl.delay = micros(rng.IntN(50)), micros(rng.IntN(20))
		calls[i] = r.start(ctx, pl)
	}
	wait := micros(100) // until all calls wait for their end
	if cancelEarly {
		wait = micros(rng.IntN(100))
	}
	time.Sleep(wait)
	r.checkPeak()
	if cancelEarly {
		cancel(errCancel)
	}
	synctest.Wait()
	for _, p := range calls {
		if !p.returned() || !p.keepsBody {
			continue
		}
		switch rng.IntN(4) {
		case 0:
			p.readAll()
		case 1:
			p.drain()
		case 2:
			p.readSome()
			p.close()
		}
	}
	synctest.Wait()
	if !cancelEarly {
		r.checkPeak()
	}
	cancel(errCancel)
	synctest.Wait()
	if r.isLayer() {
		// Canceled bodies end for the layer and for the inner service in an
		// unknown order, so that this peak may exceed the limit.
		r.inner.takePeak()
	}
}

func micros(n int) time.Duration { return time.Duration(n) * time.Microsecond }

// checkPeak fails the check if more calls than the limit were in flight at once.
func (r *rig[Req, Rsp]) checkPeak() {
	if r.Limit == 0 {
		return
	}
	if n := r.inner.takePeak(); n > r.Limit {
		failf("%d in flight, the limit is %d", n, r.Limit)
	}
}
