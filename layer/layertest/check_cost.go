package layertest

import (
	"context"
	"runtime"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
)

// transparencyKept checks the properties that the fields Transparent and NoAllocs of the
// spec declare. It skips a property if its field is false.
func transparencyKept[Req, Rsp any](e env[Req, Rsp]) {
	if e.Transparent {
		e.rig().checkUnchanged()
	}
	if (e.Transparent || e.NoAllocs) && !raceEnabled {
		checkAllocs(e)
	}
}

// checkUnchanged checks that the layer passes on the context, request, response and
// response body without changes.
func (r *rig[Req, Rsp]) checkUnchanged() {
	p := r.probe(plan{keepsBody: true})
	// The value tells the inner service to which probe this call belongs.
	ctx, cancel := context.WithDeadline(context.WithValue(r.ctx, probeKey{}, p), time.Now().Add(time.Hour))
	defer cancel()
	var rsp Rsp
	w := startWaiter(func() (err error) {
		rsp, err = r.svc.Call(ctx, p.req)
		return err
	})
	synctest.Wait()
	mustf(w.result(), "the call fails")
	innerCtx, innerReq, body := p.inner()
	switch {
	case innerCtx != ctx:
		failf("the inner service got another context")
	case !equalValues(innerReq, p.req):
		failf("the inner service got another request")
	case !equalValues(rsp, p.innerRsp):
		failf("the caller got another response")
	case body != nil && r.responses.bodyOf(rsp) != body:
		failf("the response got another body")
	}
}

// equalValues reports whether a == b. It returns true if the values cannot be compared.
func equalValues[T any](a, b T) (equal bool) {
	defer func() {
		if recover() != nil {
			equal = true
		}
	}()
	return any(a) == any(b)
}

// checkAllocs checks that a call through the layer allocates nothing more than one without it.
func checkAllocs[Req, Rsp any](e env[Req, Rsp]) {
	req := e.Request(0)
	rsp := e.Response(0)
	// A body would be replaced by the layer's, which allocates.
	if !e.Transparent {
		e.responses.setBody(rsp, nil)
	}
	inner := layer.Func[Req, Rsp](func(context.Context, Req) (Rsp, error) { return rsp, nil })
	svc := e.New(e.ctx, inner)
	var layered, bare uint64
	// On another goroutine, so that a call that blocks is noticed.
	w := startWaiter(func() error {
		layered, bare = mallocs(e.ctx, svc, req), mallocs(e.ctx, inner, req)
		return nil
	})
	synctest.Wait()
	if !w.returned() {
		failf("a call with all capacity free does not return")
	}
	if layered > bare {
		failf("%d calls allocate %d times more than without the layer", allocCalls, layered-bare)
	}
}

const allocCalls = 100

// mallocs returns how many allocations one round of allocCalls calls makes: the least number in
// ten rounds, because other goroutines allocate too.
func mallocs[Req, Rsp any](ctx context.Context, svc layer.Service[Req, Rsp], req Req) uint64 {
	var before, after runtime.MemStats
	minimum := ^uint64(0)
	for range 10 {
		runtime.ReadMemStats(&before)
		for range allocCalls {
			svc.Call(ctx, req) //nolint:errcheck // only its cost matters
		}
		runtime.ReadMemStats(&after)
		minimum = min(minimum, after.Mallocs-before.Mallocs)
	}
	return minimum
}

// inert checks that applying a layer starts no goroutine and does not call the inner
// service. The goroutines of a layer with a context may run until that context ends.
func inert[Req, Rsp any](e env[Req, Rsp]) {
	baseline := goroutines()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(errCheckDone)
	e.ctx = ctx
	for range 100 { // so that goroutines of the runtime do not matter
		r := e.rig()
		synctest.Wait()
		if !r.isLayer() {
			continue
		}
		if r.inner.Calls() > 0 {
			failf("the inner service is called before there is a request")
		}
		if !r.background && r.inner.ReadyCalls() > 0 {
			failf("Ready of the inner service is called before there is a request")
		}
	}
	if e.background {
		cancel(errCheckDone)
	}
	mustf(checkLeaks(baseline, e.background), "made 100 times")
}
