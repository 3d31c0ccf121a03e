package discover

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// deadline is when a member leaves whose successor is still not ready. It
// counts only if it is the member's own: the ID may have come back and gone
// again.
type deadline[Req, Rsp any] struct {
	of *member[Req, Rsp]
	at time.Time
}

// replace returns what takes the place of old, and has yet to be made.
func (w *watch[Req, Rsp]) replace(old *member[Req, Rsp], e resolve.Endpoint) *member[Req, Rsp] {
	m := w.newMember(e)
	if !old.isMade || w.overlap <= 0 {
		w.leave(old)
		w.members[e.Addr] = m
		return m
	}
	m.heir = true
	if old.successor == nil {
		// The time counts from when old was the truth last, however often that
		// changes after.
		old.leaveBy = time.Now().Add(w.overlap)
		if len(w.leaving) == 0 {
			w.limit.Reset(w.overlap)
		}
		w.leaving = append(w.leaving, deadline[Req, Rsp]{old, old.leaveBy})
	}
	old.dropSuccessor()
	old.successor = m
	return m
}

// stay keeps a member whose ID came back before its successor was ready.
func (w *watch[Req, Rsp]) stay(m *member[Req, Rsp], e resolve.Endpoint) {
	m.dropSuccessor()
	if !m.now.Equal(e) {
		w.change(m, e)
	}
}

func (m *member[Req, Rsp]) dropSuccessor() {
	if m.successor != nil {
		m.successor.retire() // ends a wait as well
		m.successor = nil
	}
}

// wait waits aside for a successor.
func (w *watch[Req, Rsp]) wait(m *member[Req, Rsp]) {
	var ctx context.Context
	ctx, m.stopWait = context.WithCancel(m.ctx) //nolint:gosec // succeed calls it
	go func() {
		ready := func() error { return m.inner.Ready(ctx) }
		for failures := 0; !isSettled(panics.Do("Ready", ready)); failures++ {
			// Either ctx is done, or Ready broke its contract.
			if backoff.Sleep(ctx, pause.Delay(failures)) != nil {
				return
			}
		}
		select {
		case w.ready <- m:
		case <-ctx.Done():
		}
	}()
}

// isSettled says that there is nothing to wait for after a Ready that returned
// err. Of a service that closed nothing better will come.
func isSettled(err error) bool { return err == nil || errors.Is(err, layer.ErrClosed) }

var pause = backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.1}

// settled lets m, whose wait is over, take its place if that is still its own.
func (w *watch[Req, Rsp]) settled(m *member[Req, Rsp]) {
	if old := w.members[m.now.Addr]; old != nil && old.successor == m {
		w.succeed(old)
	}
}

// succeed lets a member's successor take its place.
func (w *watch[Req, Rsp]) succeed(old *member[Req, Rsp]) {
	m := old.successor
	old.successor = nil
	if m.stopWait != nil {
		m.stopWait()
	}
	w.members[m.now.Addr] = m
	w.leave(old)
	if m.isMade {
		w.next.Added = append(w.next.Added, m.now)
	}
}

// succeedOverdue does so where the time is over, ready or not.
func (w *watch[Req, Rsp]) succeedOverdue(now time.Time) {
	for len(w.leaving) > 0 && !w.leaving[0].at.After(now) {
		d := w.leaving[0]
		w.leaving[0] = deadline[Req, Rsp]{}
		w.leaving = w.leaving[1:]
		if d.of.successor != nil && d.of.leaveBy.Equal(d.at) {
			w.succeed(d.of)
		}
	}
	if len(w.leaving) > 0 {
		w.limit.Reset(w.leaving[0].at.Sub(now))
	}
}
