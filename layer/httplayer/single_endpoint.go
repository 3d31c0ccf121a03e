package httplayer

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// SingleEndpoint adapts e for use without a balancer. If connecting fails, Call returns an
// error (502) and not a rejection, because a queue above e would keep a rejected request
// until its timeout. Requests during the backoff fail with the last connection error.
//
// Admission: a request is rejected if e has no room, or if the server did not process the
// request. Ready waits for room, but returns nil while the address cannot be reached.
//
// Cancellation, Body, Errors and Cost: as in [Endpoint], except that a connection error is
// not a rejection.
func SingleEndpoint(e *Endpoint) Service {
	if e == nil {
		panic("httplayer: nil endpoint")
	}
	return &singleEndpoint{e}
}

type singleEndpoint struct{ *Endpoint }

// Ready returns nil while the address cannot be reached, so that Call returns the
// connection error to its caller.
func (s *singleEndpoint) Ready(ctx context.Context) error { return s.ready(ctx, false) }

func (s *singleEndpoint) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := s.Endpoint.Call(ctx, req)
	var at *layer.Error
	if !errors.As(err, &at) || at.Reason != noConnection || !errors.Is(at.Kind, layer.ErrNotReady) {
		return rsp, err
	}
	message.CloseBody(req) // the error is not a rejection, so the body must be closed
	failure := *at
	failure.Kind = nil
	return nil, &failure
}
