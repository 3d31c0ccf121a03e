package httplayer

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// SingleEndpoint adapts e for use without a balancer. A failed connection is an
// error (502) instead of a rejection, because no other endpoint exists and a
// queue above would only wait for its timeout. Requests during the backoff fail
// with the last connection error.
//
// Admission: a request is rejected if e has no room, or if e proves that the
// server did not process it. Ready waits for room, not for a connection.
//
// Cancellation, Body and Errors are those of e, except for the kind of that
// error.
func SingleEndpoint(e *Endpoint) Service {
	if e == nil {
		panic("httplayer: nil endpoint")
	}
	return &alone{e}
}

type alone struct{ *Endpoint }

// Ready returns nil while the address is unreachable, so that callers get the
// connection error.
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
		a.await(ctx, recheck, seen)
	}
}

func (a *alone) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := a.Endpoint.Call(ctx, req)
	var at *layer.Error
	if !errors.As(err, &at) || at.Reason != noConnection || !errors.Is(at.Kind, layer.ErrNotReady) {
		return rsp, err
	}
	closeBody(req) // the error is not a rejection, so the body must be closed
	failure := *at
	failure.Kind = nil
	return nil, &failure
}
