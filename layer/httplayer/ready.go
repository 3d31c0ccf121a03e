package httplayer

import (
	"context"
	"time"

	"github.com/gotower/gotower/layer"
)

// recheck is the longest interval between two checks in Ready.
const recheck = time.Second

// Ready waits until a connection has room, or until there is room for a new
// one. It connects only while the address cannot be reached; see [Endpoint].
func (e *Endpoint) Ready(ctx context.Context) error {
	for {
		seen := e.link.changes.Load()
		switch {
		case e.life.Err() != nil:
			return e.closedError()
		case e.room():
			return nil
		case ctx.Err() != nil:
			return e.notReady(ctx)
		}
		wait := recheck
		if e.link.down() && e.canProbe() {
			var mine attempt
			if mine, wait = e.link.claim(); mine != 0 {
				e.probe(mine)
			}
		}
		e.await(ctx, wait, seen)
	}
}

// notReady returns the error at the end of a wait.
func (e *Endpoint) notReady(ctx context.Context) error {
	cause := context.Cause(ctx)
	if err := e.link.lastError(); err != nil {
		return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: cause, Reason: noConnection, Err: err}
	}
	return cause
}

// await waits until d has passed, ctx ends, or the state changes.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool {
		return e.room() || e.life.Err() != nil || e.link.changes.Load() != seen
	})
}

// room reports whether a request would probably be admitted. If both protocols
// are in use, both must have room, because otherwise a Queue above would repeat
// rejected requests.
func (e *Endpoint) room() bool {
	mayConnect := !e.link.down()
	h1, h2 := e.used[0].Load(), e.used[1].Load()
	if !h1 && !h2 {
		return mayConnect
	}
	return (!h1 || e.h1.room(mayConnect)) && (!h2 || e.h2.room(mayConnect))
}

func (e *Endpoint) canProbe() bool { return e.probesH2() || e.h1.mayDial() }

// probesH2 reports whether a probe uses HTTP/2. It does not while HTTP/2 has a
// connection.
func (e *Endpoint) probesH2() bool {
	return e.lastH2.Load() && (!e.used[0].Load() || !e.h2.serves())
}

// probe connects in the background and keeps the connection. It uses the last
// requested protocol, or the one of turn.
func (e *Endpoint) probe(mine attempt) {
	if e.probesH2() {
		e.h2.probe(mine)
	} else {
		e.h1.probe(mine)
	}
}

// turn makes the next probe use the protocol other than p, if requests use
// both, because the failure of p may not affect it.
func (e *Endpoint) turn(p protocol) {
	if !e.opts.protocol.isFixed() && e.used[0].Load() && e.used[1].Load() {
		e.lastH2.Store(p != http2)
	}
}
