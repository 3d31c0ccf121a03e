package httplayer

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// recheck is the longest time between two checks in Ready.
const recheck = time.Second

// Ready waits until a request would probably be admitted, because an existing connection has room
// or a new one may be made. If connecting has failed, Ready connects in the background to find out
// when the address can be reached again. Otherwise it makes no connection; see [Endpoint].
func (e *Endpoint) Ready(ctx context.Context) error { return e.ready(ctx, true) }

// ready waits until a request would probably be admitted. The argument probes specifies the
// behavior while the address cannot be reached. If it is true, ready connects in the background and
// waits. If it is false, ready returns nil.
func (e *Endpoint) ready(ctx context.Context, probes bool) error {
	for {
		seen := e.link.changes.Load()
		_, down := e.link.failure()
		switch {
		case e.life.Err() != nil:
			return e.closedError()
		case e.room(), !probes && down != nil && e.canProbe():
			return nil
		case ctx.Err() != nil && down != nil:
			return e.fault(context.Cause(ctx), noConnection, &peerError{down})
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		wait := recheck
		if down != nil && e.canProbe() {
			var allowed bool
			if allowed, wait, _ = e.link.admit(); allowed {
				e.probe()
			}
		}
		e.await(ctx, wait, seen)
	}
}

// await waits until d has passed, ctx ends, the Endpoint has room, or the context of the Endpoint
// ends. It also returns when another attempt to connect has ended. The link counts these attempts,
// and the argument seen is the count that the caller has read before.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool {
		return e.room() || e.life.Err() != nil || e.link.changes.Load() != seen
	})
}

// room reports whether a request would probably be admitted. If requests have used both protocols,
// both must have room. Otherwise a Queue above would repeat requests for the protocol without room,
// and each would be rejected again.
func (e *Endpoint) room() bool {
	_, down := e.link.failure()
	mayConnect := down == nil
	h1, h2 := e.used[0].Load(), e.used[1].Load()
	if !h1 && !h2 {
		return mayConnect
	}
	return (!h1 || e.h1.room(mayConnect)) && (!h2 || e.h2.room(mayConnect))
}

func (e *Endpoint) canProbe() bool { return e.probesH2() || e.h1.room(true) }

// probesH2 reports whether the next connection that Ready makes uses HTTP/2. If requests have used
// both protocols, this is the protocol without a usable connection, or else the one that did not
// fail last, because it may still work.
func (e *Endpoint) probesH2() bool {
	if e.opts.protocol.isFixed() {
		return e.opts.protocol == http2
	}
	return e.used[1].Load() && (!e.used[0].Load() || !e.h2.serves() && !e.lostH2.Load())
}

// probe makes a connection in the background, which the link has allowed, and keeps it for requests.
// The method probesH2 selects the protocol.
func (e *Endpoint) probe() {
	if e.probesH2() {
		e.h2.connectOnce(true)
	} else {
		e.h1.probe()
	}
}

// tried records the result err of an attempt to connect by the protocol p. The argument allowed is
// the result of admit for this attempt. If the server supports only the other protocol, tried records
// a success, because the address is reachable.
func (e *Endpoint) tried(p protocol, allowed bool, err error) {
	if err == nil && p == http2 || err != nil && p == http1 {
		e.onlyH1.Store(false) // another server may have the address now
	}
	switch {
	case err == nil:
	case !e.speaksOther(err):
		e.lostH2.Store(p == http2)
	default:
		err = nil
		if p == http1 {
			e.used[0].Store(false) // else Ready would wait for HTTP/1.1
		}
	}
	e.link.report(allowed, err)
	e.wake.Wake()
}

// speaksOther reports whether connecting failed with err because the attempt used HTTP/1.1 and the
// server supports only HTTP/2, or the reverse. It returns false if the Endpoint uses a fixed
// protocol.
func (e *Endpoint) speaksOther(err error) bool {
	return !e.opts.protocol.isFixed() && (errors.Is(err, errNotH1) || errors.Is(err, errNotH2))
}

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
	at, ok := errors.AsType[*layer.Error](err)
	if !ok || at.Reason != noConnection || !errors.Is(at.Kind, layer.ErrNotReady) {
		return rsp, err
	}
	message.CloseBody(req) // the error is not a rejection, so the body must be closed
	failure := *at
	failure.Kind = nil
	return nil, &failure
}
