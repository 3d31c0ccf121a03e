package httplayer

import (
	"context"
	"time"

	"github.com/gotower/gotower/layer"
)

// recheck is the longest time between two checks in Ready.
const recheck = time.Second

// Ready waits until a request would probably be admitted. This is so if an existing
// connection has room, or if a new one may be made. Ready connects only while the address
// cannot be reached; see [Endpoint].
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

// notReady returns the error of Ready when ctx has ended. It wraps the last connection
// error, if there is one.
func (e *Endpoint) notReady(ctx context.Context) error {
	cause := context.Cause(ctx)
	if err := e.link.lastError(); err != nil {
		return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: cause, Reason: noConnection, Err: err}
	}
	return cause
}

// await waits until d has passed, ctx ends, or the Endpoint has room or is closed. It also
// returns when the change counter of the link differs from seen.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool {
		return e.room() || e.life.Err() != nil || e.link.changes.Load() != seen
	})
}

// room reports whether a request would probably be admitted. If requests have used both
// protocols, both must have room, because a Queue above would otherwise send rejected
// requests again and again.
func (e *Endpoint) room() bool {
	mayConnect := !e.link.down()
	h1, h2 := e.used[0].Load(), e.used[1].Load()
	if !h1 && !h2 {
		return mayConnect
	}
	return (!h1 || e.h1.room(mayConnect)) && (!h2 || e.h2.room(mayConnect))
}

func (e *Endpoint) canProbe() bool { return e.probesH2() || e.h1.mayDial() }

// probesH2 reports whether the next probe uses HTTP/2. It returns false if both protocols
// are in use and HTTP/2 already has a connection.
func (e *Endpoint) probesH2() bool {
	return e.lastH2.Load() && (!e.used[0].Load() || !e.h2.serves())
}

// probe makes a connection in the background and keeps it for requests. It uses the
// protocol of the last request, or the one that switchProbe selected.
func (e *Endpoint) probe(mine attempt) {
	if e.probesH2() {
		e.h2.probe(mine)
	} else {
		e.h1.probe(mine)
	}
}

// switchProbe is called after connecting by p has failed. If requests use both protocols,
// the next probe uses the other one, because the failure may affect only p.
func (e *Endpoint) switchProbe(p protocol) {
	if !e.opts.protocol.isFixed() && e.used[0].Load() && e.used[1].Load() {
		e.lastH2.Store(p != http2)
	}
}
