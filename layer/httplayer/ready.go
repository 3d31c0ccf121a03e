package httplayer

import (
	"context"
	"time"

	"github.com/gotower/gotower/layer"
)

// recheck is how often Ready looks at an Endpoint that is at capacity, beside
// being woken. net/http calls a state hook once for changes that come close
// together, and can miss one that was undone and done again meanwhile.
const recheck = 100 * time.Millisecond

// Ready waits until there is a connection with room, or room for one. It connects
// only while the address cannot be reached; see [Endpoint].
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
		e.h2.refresh()
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

// notReady is the end of a wait, with what there is to say of the address.
func (e *Endpoint) notReady(ctx context.Context) error {
	cause := context.Cause(ctx)
	if err := e.link.lastError(); err != nil {
		return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Kind: cause, Reason: noConnection, Err: err}
	}
	return cause
}

// await waits for d, for ctx, or until something has changed.
func (e *Endpoint) await(ctx context.Context, d time.Duration, seen uint64) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = e.wake.Wait(ctx, func() bool {
		return e.room() || e.life.Err() != nil || e.link.changes.Load() != seen
	})
}

// room reports whether a request would probably be admitted. If both protocols
// are in use there must be room in both: were one enough, a Queue above would
// find the Endpoint ready and be refused, again and again.
func (e *Endpoint) room() bool {
	mayConnect := !e.link.down()
	h1, h2 := e.asked[0].Load(), e.asked[1].Load()
	if !h1 && !h2 {
		return mayConnect
	}
	return (!h1 || e.h1.room(mayConnect)) && (!h2 || e.h2.room(mayConnect))
}

func (e *Endpoint) canProbe() bool { return e.probesH2() || e.h1.hasSlot() }

// probesH2 reports whether a probe goes by HTTP/2. Where that has a connection
// it would find out nothing: it is HTTP/1.1 that has none.
func (e *Endpoint) probesH2() bool {
	return e.lastH2.Load() && (!e.asked[0].Load() || !e.h2.serves())
}

// probe connects in the background, by the protocol that was last asked for, or
// by what turn says, and keeps the connection.
func (e *Endpoint) probe(mine attempt) {
	if e.probesH2() {
		e.h2.probe(mine)
	} else {
		e.h1.probe(mine)
	}
}

// turn has the next probe go by the other protocol than p, by which it failed,
// if requests come by both: of that other one the failure may say nothing.
func (e *Endpoint) turn(p protocol) {
	if !e.opts.protocol.isFixed() && e.asked[0].Load() && e.asked[1].Load() {
		e.lastH2.Store(p != http2)
	}
}
