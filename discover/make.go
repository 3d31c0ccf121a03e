package discover

import (
	"context"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// patience is how long what an update changed waits for the services that the
// same update asks for. A Make returns at once, so that one update is one
// change and replacing all endpoints leaves no gap; one that does not return
// must not keep endpoints in use that are gone, nor others from being made.
const patience = 10 * time.Millisecond

// makeAll makes one service after the other. If one takes too long, another
// goroutine makes the rest.
func (w *watch[Req, Rsp]) makeAll(members []*member[Req, Rsp]) {
	for i, m := range members {
		if m.ctx.Err() != nil {
			continue // it has gone, and nobody waits for it
		}
		rest := members[i+1:]
		var relay *time.Timer
		if len(rest) > 0 {
			relay = time.AfterFunc(patience, func() { w.makeAll(rest) })
		}
		w.make(m)
		relayed := relay != nil && !relay.Stop()
		select {
		case w.made <- m:
		case <-w.stopped:
			return
		}
		if relayed {
			return
		}
	}
}

// make makes one service, and asks one that succeeds another whether it is
// ready already, so that the two change places at once.
func (w *watch[Req, Rsp]) make(m *member[Req, Rsp]) {
	err := panics.Do("Make", func() error {
		m.inner = w.mk(m.ctx, m.target)
		return nil
	})
	if m.inner == nil {
		m.inner = unmade[Req, Rsp]{m.refuse(layer.ErrClosed, "no service was made for it", err)}
	}
	if m.heir {
		m.fit = isSettled(panics.Do("Ready", func() error { return layer.Poll(m.inner) }))
	}
}

// unmade is in the place of a service that MakeService did not return.
type unmade[Req, Rsp any] struct{ err error }

func (u unmade[Req, Rsp]) Ready(context.Context) error { return u.err }

func (u unmade[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, err error) { return rsp, u.err }

func (u unmade[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "no service"} }

// enter tells of a service that was made, or waits until it may succeed
// another.
func (w *watch[Req, Rsp]) enter(m *member[Req, Rsp]) {
	if m.batch == w.batch {
		w.making--
	}
	there := w.members[m.now.Addr]
	switch {
	case there == nil || there.latest() != m:
		return // it has gone meanwhile
	case there == m:
		w.next.Added = append(w.next.Added, m.now)
	case m.fit:
		m.isMade = true
		w.succeed(there)
	default:
		w.wait(m)
	}
	m.isMade = true
}
