package httplayer

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// recheck is the longest time between two checks in Ready, which is normally woken when the state
// changes.
const recheck = time.Second

// Ready waits until a request would probably be admitted, because there is room on an existing
// connection or a new one may be made. If connecting has failed, Ready connects in the background
// to find out when the address can be reached again. Otherwise it makes no connection; see
// [Endpoint].
func (e *Endpoint) Ready(ctx context.Context) error { return e.ready(ctx, true) }

// ready waits until a request would probably be admitted. probes says what to do while the address
// cannot be reached: if true, ready connects in the background and waits for success; if false, it
// returns nil, so that a request gets the error.
func (e *Endpoint) ready(ctx context.Context, probes bool) error {
	for {
		// Read before the link's state, so that await returns if an attempt ends after this look.
		seen := e.link.changes.Load()
		_, down := e.link.failure()
		switch {
		case e.life.Err() != nil:
			return e.closedError()
		// Without probes, the next request itself finds out whether the address can be reached again.
		case e.room(), !probes && down != nil && e.canProbe():
			return nil
		case ctx.Err() != nil && down != nil:
			return e.fault(context.Cause(ctx), noConnection, &peerError{down})
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		// While the link is down, look again when the next attempt is allowed.
		wait := recheck
		if down != nil && e.canProbe() {
			// If admit allows an attempt, wait is its maximum duration, and otherwise the time until the next one.
			var allowed bool
			if allowed, wait, _ = e.link.admit(); allowed {
				e.probe()
			}
		}
		e.await(ctx, wait, seen)
	}
}

// await waits until ready should look again: until d has passed, ctx or the Endpoint's context ends,
// there is room, or an attempt to connect has ended. seen is the number of ended attempts at ready's
// last look.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool {
		return e.room() || e.life.Err() != nil || e.link.changes.Load() != seen
	})
}

// room reports whether a request would probably be admitted. It is not known which protocol the next
// request will use, so if requests have used both, there must be room in both. Otherwise a Queue above
// would send its requests again and again to the full one.
func (e *Endpoint) room() bool {
	_, down := e.link.failure()
	mayConnect := down == nil
	h1, h2 := e.used[0].Load(), e.used[1].Load()
	if !h1 && !h2 {
		return mayConnect
	}
	return (!h1 || e.h1.room(mayConnect)) && (!h2 || e.h2.room(mayConnect))
}

// canProbe reports whether Ready may make another connection, to find out whether the server works
// again.
func (e *Endpoint) canProbe() bool { return e.probesH2() || e.h1.room(true) }

// probesH2 reports whether Ready should use HTTP/2 for the next attempt to connect. If requests have
// used both protocols, it should use the one that has no connection, and if both have none, the one
// that did not fail last.
func (e *Endpoint) probesH2() bool {
	if e.opts.protocol.isFixed() {
		return e.opts.protocol == http2
	}
	return e.used[1].Load() && (!e.used[0].Load() || !e.h2.serves() && !e.lostH2.Load())
}

// probe makes a connection in the background, to find out whether the address can be reached again, and
// keeps it for requests. With TLS, the server may select HTTP/1.1, as for a request.
func (e *Endpoint) probe() {
	if e.probesH2() {
		e.h2.connectOnce(true, attempt{orHTTP1: true}) // link.admit has allowed it
	} else {
		e.h1.probe()
	}
}

// tried records the result of an attempt to connect with the protocol p, and wakes those who wait in
// Ready. allowed is what link.admit returned for the attempt. If the server only speaks the other
// protocol, the address is reachable, so this counts as a success, and Ready no longer considers p.
func (e *Endpoint) tried(p protocol, allowed bool, err error) {
	if err == nil && p == http2 || err != nil && p == http1 {
		e.onlyH1.Store(false) // another server may have the address now
	}
	// A failure of the protocol itself is remembered for Ready's choice. A server that speaks only the other one is
	// up.
	switch {
	case err == nil:
	case !e.speaksOther(err):
		e.lostH2.Store(p == http2)
	case p == http1:
		err = nil
		e.used[0].Store(false)
	default:
		err = nil
		e.used[1].Store(false)
		e.onlyH1.Store(true)
	}
	e.link.report(allowed, err)
	e.wake.Wake()
}

// speaksOther reports whether err means that the server speaks only the other version of HTTP. The
// Endpoint can then use that one, unless its protocol is fixed, in which case speaksOther returns
// false.
func (e *Endpoint) speaksOther(err error) bool {
	return !e.opts.protocol.isFixed() && (errors.Is(err, errNotH1) || errors.Is(err, errNotH2))
}

// SingleEndpoint adapts e for use without a balancer. If connecting fails, Call returns an error
// (502) and not a rejection, because a queue above e would keep a rejected request until its
// timeout. Requests during the backoff fail with the last connection error.
//
// Admission: a request is rejected if e has no room, or if the server did not process the
// request. Ready waits for room, but returns nil while the address cannot be reached.
//
// Cancellation, Body, Errors and Cost: as in [Endpoint], except that a connection error is not a
// rejection.
func SingleEndpoint(e *Endpoint) Service {
	if e == nil {
		panic("httplayer: nil endpoint")
	}
	return &singleEndpoint{e}
}

// singleEndpoint is an Endpoint whose connection errors are not rejections.
type singleEndpoint struct{ *Endpoint }

// Ready waits for room, as [Endpoint.Ready] does. Unlike that, it returns nil while the address cannot be
// reached, so that Call returns the connection error to its caller.
func (s *singleEndpoint) Ready(ctx context.Context) error { return s.ready(ctx, false) }

// Call sends req. If there is no connection, the error is a failure and not a rejection, because there
// is no other endpoint that could get the request.
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
