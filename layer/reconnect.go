package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/wake"
)

// Reconnect is a service that is made when it is needed, and made again when it
// has closed: a connection, a stream, a client behind a login. connect makes
// it, and may wait; it is given ctx, and bounds itself by a timeout if it needs
// one. What it made has to let go of what it holds when it closes.
//
// Admission: the first Ready or Call connects. One attempt is made at a time,
// however many ask; after one that failed the next waits, longer each time,
// and is made only if somebody asks for it. Without a connection Call refuses
// at once, and sees to it that an attempt is under way; Ready waits for the
// connection, then for inner. When inner refuses with [ErrClosed] it is dropped.
// An attempt counts as failed, too, if its connection closes without having
// answered a request, unless it stood for as long as b.Max.
//
// Cancellation: a request whose context is done is refused. An attempt does not
// end with those who asked for it. When ctx ends, so does the attempt, and
// Ready and Call return an error of kind ErrClosed from then on.
//
// Body: not touched. What is in flight on a connection that was dropped goes
// on.
//
// Errors: a refusal is an [Error] of kind [ErrNotReady]. It says what went
// wrong last, and when the next attempt is made, also as After. A connect that
// panics has failed.
//
// Cost: two atomic loads for a request, no allocation. There is a goroutine
// while an attempt is under way, the wait before it included.
//
// The zero Backoff is [DefaultBackoff]; see [Backoff] for what becomes of one
// that is not valid.
func Reconnect[Req, Rsp any](
	ctx context.Context, connect func(ctx context.Context) (Service[Req, Rsp], error), b Backoff, opts ...Option[Rsp],
) Service[Req, Rsp] {
	check(connect != nil, "Reconnect: nil function")
	o := newOptions(opts)
	return &reconnect[Req, Rsp]{
		ctx:     ctx,
		connect: connect,
		backoff: b.OrDefault(),
		target:  o.target,
		made:    tally{to: o.to.ConnectAttempts.With("outcome", "success")},
		failed:  tally{to: o.to.ConnectAttempts.With("outcome", "failure")},
		refused: tally{to: o.to.LayerRejections.With("layer", "reconnect")},
	}
}

type reconnect[Req, Rsp any] struct {
	ctx     context.Context //nolint:containedctx // the constructor's: the life of this service
	connect func(context.Context) (Service[Req, Rsp], error)
	backoff Backoff
	target  string

	link     atomic.Pointer[reconnectLink[Req, Rsp]] // nil while there is no connection; written with mu
	attempts atomic.Int64                            // that are over; written with mu
	changed  wake.Broadcast                          // of link, attempts and ctx

	mu    sync.Mutex
	busy  bool      // an attempt is under way, or the wait before it
	row   int       // failures in a row
	next  time.Time // no attempt before this
	cause error     // what went wrong last

	made, failed, refused tally
}

// reconnectLink is one connection.
type reconnectLink[Req, Rsp any] struct {
	Service[Req, Rsp]
	since  time.Time
	proved atomic.Bool // has answered a request
}

func (r *reconnect[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if r.ctx.Err() != nil {
			return r.closed()
		}
		link := r.link.Load()
		if link == nil {
			if err := r.wait(ctx); err != nil {
				return err
			}
			continue
		}
		err := readyWhile(ctx, r.ctx, link.Service)
		switch {
		case r.ctx.Err() != nil: // whatever the connection says
			return r.closed()
		case err == nil || !errors.Is(err, ErrClosed):
			return err
		}
		r.drop(link, err)
	}
}

// wait returns nil when there is a connection, or something else to be done
// than to wait.
func (r *reconnect[Req, Rsp]) wait(ctx context.Context) error {
	before := r.ensure()
	// The attempt may not listen to r.ctx.
	stop := context.AfterFunc(r.ctx, r.changed.Wake)
	defer stop()
	err := r.changed.Wait(ctx, func() bool {
		return r.link.Load() != nil || r.attempts.Load() != before || r.ctx.Err() != nil
	})
	if err != nil {
		return r.refuse(err)
	}
	return nil
}

func (r *reconnect[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if gone(ctx) {
		return none, refuseDone(ctx, "reconnect", r.target)
	}
	for {
		link := r.link.Load()
		switch {
		case r.ctx.Err() != nil:
			return none, r.closed()
		case link == nil:
			r.ensure()
			r.refused.inc()
			return none, r.refuse(nil)
		}
		rsp, err := link.Call(ctx, req)
		switch {
		case err == nil:
			if !link.proved.Load() {
				link.proved.Store(true)
			}
			return rsp, nil
		case !errors.Is(err, ErrClosed):
			return rsp, err
		}
		// A refusal: there may be another connection by now.
		r.drop(link, err)
	}
}

func (r *reconnect[Req, Rsp]) Describe() Node {
	link := r.link.Load()
	r.mu.Lock()
	state := State{{"state", r.state(link != nil)}}
	if link == nil && r.cause != nil {
		state = append(state, Attr{"failures", r.row}, Attr{"last_error", r.cause.Error()})
		if wait := time.Until(r.next); wait > 0 {
			state = append(state, Attr{"next_attempt", wait.Round(time.Millisecond)})
		}
	}
	r.mu.Unlock()
	n := Node{Name: "reconnect", State: append(state,
		Attr{"connects", r.made.n.Load()}, Attr{"failed", r.failed.n.Load()}, Attr{"refused", r.refused.n.Load()})}
	if link != nil {
		n.Children = []Node{Describe(link.Service)}
	}
	return n
}

// state is called with mu.
func (r *reconnect[Req, Rsp]) state(connected bool) string {
	switch {
	case r.ctx.Err() != nil:
		return "closed"
	case connected:
		return "connected"
	case r.busy && time.Until(r.next) > 0:
		return "waiting"
	case r.busy:
		return "connecting"
	}
	return "idle"
}
