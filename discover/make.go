package discover

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
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

// member is one endpoint for as long as its ID stays. It is the endpoint's
// Service.
type member[Req, Rsp any] struct {
	counted[Req, Rsp]
	ctx    context.Context //nolint:containedctx // the life of the service, handed to Make
	wanted context.Context //nolint:containedctx // ends with the first retire, even if ctx does not yet
	forgo  context.CancelFunc
	target Target

	batch int  // in which it is made
	heir  bool // it is to take the place of another
	fit   bool // an heir that did not have to be waited for when it was made

	// The rest is the watch's alone.

	now       *Endpoint[Req, Rsp] // what is known of it
	isMade    bool
	stopWait  context.CancelFunc // of the wait for its Ready; nil if there is none
	successor *member[Req, Rsp]  // what takes its place once that is ready; nil if its ID is current
	leaveBy   time.Time          // when the successor takes its place anyway
}

// latest is what the resolver knows at the address of m.
func (m *member[Req, Rsp]) latest() *member[Req, Rsp] {
	if m.successor != nil {
		return m.successor
	}
	return m
}

// retire lets m go: nothing begins any more, nobody waits for it, and its life ends
// with the last response.
func (m *member[Req, Rsp]) retire() {
	m.Retire()
	m.forgo()
}

// Ready is that of the service inside, and ends when the endpoint is gone. The
// service does not know that as long as a response is open.
func (m *member[Req, Rsp]) Ready(ctx context.Context) error {
	if m.wanted.Err() != nil {
		return m.gone()
	}
	err := m.ready(ctx)
	if m.wanted.Err() != nil {
		return m.gone()
	}
	return err
}

// ready waits for the service inside while the endpoint is wanted.
func (m *member[Req, Rsp]) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return m.inner.Ready(ctx)
	}
	if err := layer.Poll(m.inner); err == nil || errors.Is(err, layer.ErrClosed) {
		return err
	}
	until, leave := context.WithCancel(ctx)
	defer leave()
	defer context.AfterFunc(m.wanted, leave)()
	return m.inner.Ready(until)
}

func (m *member[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if ctx.Err() != nil {
		return none, m.refuse(layer.ErrNotReady, ctxreason.Text(ctx), context.Cause(ctx))
	}
	if !m.Begin() {
		return none, m.gone()
	}
	return m.call(ctx, req)
}

func (m *member[Req, Rsp]) gone() error {
	return m.refuse(layer.ErrClosed, "the endpoint is gone", nil)
}

func (m *member[Req, Rsp]) refuse(kind error, reason string, cause error) error {
	return &layer.Error{
		Layer: "discover", Target: m.target.Name, Endpoint: m.target.Endpoint.Addr.String(),
		Kind: kind, Reason: reason, Err: cause,
	}
}

// Classifier is that of the service inside.
func (m *member[Req, Rsp]) Classifier() layer.Classifier[Rsp] { return layer.ClassifierOf(m.inner) }

// Describe is that of the service inside: the counting is not worth a line.
func (m *member[Req, Rsp]) Describe() layer.Node { return layer.Describe(m.inner) }
