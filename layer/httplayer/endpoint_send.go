package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// sending is the state of one Call of an Endpoint, over all its attempts. It sends the request again if
// the server has not processed it, as net/http and gRPC do:
//
//   - any request if no byte of it was sent, or if the server reported that it did not process it
//     (RFC 9113, section 8.7);
//   - an idempotent request if a reused connection has ended before the first byte of the
//     response (RFC 9110, section 9.2.2). This happens once.
type sending struct {
	*Endpoint
	ctx     context.Context //nolint:containedctx // of one Call
	req     *http.Request
	out     *http.Request // the request to send, with the context ctx: req, or made from it
	body    *requestBody  // the body of out; nil if it has none
	failure error         // of the last attempt; nil before
	sent    bool          // the server may have processed an attempt
	trace   message.Trace
}

// newSending returns the state of sending req. If req has a body or lacks a host, the copy that is sent
// gets them.
func (e *Endpoint) newSending(ctx context.Context, req *http.Request, trace message.Trace) sending {
	s := sending{Endpoint: e, ctx: ctx, req: req, out: req, trace: trace}
	if hasBody(req) || !hasHost(req) {
		s.out, s.body = outgoing(ctx, req, e.addr, repeatLimit)
	}
	return s
}

// engine is a connection of the HTTP/1.1 or of the HTTP/2 engine.
type engine interface {
	Call(ctx context.Context, req *http.Request) (*http.Response, error)
}

// exchange sends the request on a connection. If the result again is true, the caller must send
// the request again, or call reject. Otherwise rsp or err is the result of Call.
func (s *sending) exchange( //nolint:revive // again is about err
	conn engine, state *tls.ConnectionState,
) (rsp *http.Response, err error, again bool) {
	rsp, err = conn.Call(s.ctx, s.out)
	if err == nil {
		s.body.admit()
		rsp.Request, rsp.TLS = s.req, state
		return rsp, nil, false
	}
	s.failure = err
	switch unsent := errors.Is(err, message.ErrNotSent); {
	// The caller has given up and nothing was sent, so the request is rejected.
	case unsent && s.ctx.Err() != nil:
		return nil, s.reject(s.goneError(s.ctx)), false
	// The caller has given up after bytes were sent, so the request has failed.
	case s.ctx.Err() != nil:
	case unsent, errors.Is(err, message.ErrNotProcessed):
		again = true
	// The connection was reused and may have been closed just before, but the server may also have processed the
	// request.
	case errors.Is(err, message.ErrNoResponse) && !isTunnel(s.req) && (HTTP{}).Idempotent(s.req):
		again, s.sent = true, true
	}
	// Each attempt needs a body that begins anew. Without one, the request has failed.
	if again {
		s.out, again = s.body.again(s.out, reqctx.Pausable(s.ctx))
	}
	if !again {
		return nil, s.fail(), false
	}
	return nil, err, true
}

// fail closes the body after a failure and returns the error of Call.
func (s *sending) fail() error { return s.fault(nil, "", s.body.fail(s.ctx, s.req, s.failure)) } // no kind: not a rejection

// reject returns Call's error if the request cannot be sent, or sent again. rejection is the reason, an error that
// matches layer.ErrNotReady, after which a caller may try another endpoint. It is returned only if the server cannot
// have processed the request, and the caller can have its body again. Otherwise the result is the last attempt's
// failure.
func (s *sending) reject(rejection error) error {
	if !s.sent && s.body.handBack() {
		return rejection
	}
	return s.fail()
}

// unprocessed rejects a request that the server has not processed.
func (s *sending) unprocessed() error {
	reason := "not processed"
	if errors.Is(s.failure, message.ErrNotSent) {
		reason = "the connection was lost"
	}
	return s.reject(s.fault(layer.ErrNotReady, reason, &peerError{s.failure}))
}
