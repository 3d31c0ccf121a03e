package httplayer

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// SingleEndpoint is e where no other endpoint can take its requests: below a queue, not
// below a balancer. That its address cannot be reached is a failure then, and no
// refusal, so that it is answered at once, with 502: who waited would only hear
// of it later, as a time that ran out. While e is in a back-off, requests fail
// with the last reason.
//
// Admission: what e refuses for want of room is refused, and so is what was on
// its way to the address and was not processed there. Ready waits for room; it
// does not wait for a connection.
//
// Cancellation, Body and Errors are those of e, but for the kind of that error.
func SingleEndpoint(e *Endpoint) Service {
	if e == nil {
		panic("httplayer: nil endpoint")
	}
	return &alone{e}
}

type alone struct{ *Endpoint }

// Ready does not wait for an address that is not reached yet, or not any more,
// and who waits for room hears of it.
func (a *alone) Ready(ctx context.Context) error {
	for {
		seen := a.link.changes.Load()
		switch {
		case a.life.Err() != nil:
			return a.closedError()
		case a.room(), a.link.down() && a.canProbe():
			return nil
		case ctx.Err() != nil:
			return a.notReady(ctx)
		}
		a.h2.refresh()
		a.await(ctx, recheck, seen)
	}
}

func (a *alone) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := a.Endpoint.Call(ctx, req)
	var at *layer.Error
	if !errors.As(err, &at) || at.Reason != noConnection || !errors.Is(at.Kind, layer.ErrNotReady) {
		return rsp, err
	}
	closeBody(req) // it is no refusal any more
	failure := *at
	failure.Kind = nil
	return nil, &failure
}
