package discover

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// watch is one run of an Endpoints sequence. It gathers in next what to tell,
// and tells it when the services that an update asked for are made, or when it
// is out of patience.
type watch[Req, Rsp any] struct {
	ctx      context.Context //nolint:containedctx // the parent of every endpoint's own
	stopped  <-chan struct{} // closed when the sequence ends
	target   string
	mk       Make[Req, Rsp]
	complete layer.Completion[Rsp]

	members  map[resolve.ID]*member[Req, Rsp]
	made     chan *member[Req, Rsp]
	making   int // members that made will bring
	patience *time.Timer

	next    Change[Req, Rsp]
	untold  bool // State or Err of next is news
	leaving []*member[Req, Rsp]
}

func (w *watch[Req, Rsp]) run(updates <-chan news, yield func(Change[Req, Rsp]) bool) {
	for goOn := true; goOn; {
		select {
		case n, ok := <-updates:
			if !ok {
				updates = nil
				continue
			}
			goOn = w.hear(n, yield)
		case m := <-w.made:
			w.making--
			m.isMade = true
			if !m.dropped {
				w.next.Added = append(w.next.Added, m.now)
			}
			goOn = w.making > 0 || w.tell(yield)
		case <-w.patience.C:
			goOn = w.tell(yield)
		case <-w.ctx.Done():
			goOn = false
		}
	}
}

// hear takes one item of the resolver and tells it, if nothing has to be made
// first. It reports whether the sequence goes on.
func (w *watch[Req, Rsp]) hear(n news, yield func(Change[Req, Rsp]) bool) bool {
	// What waits for its services no longer does: two updates in one change
	// could have an ID that went and came back.
	if !w.tell(yield) {
		return false
	}
	w.take(n)
	if isFinal(n.err) {
		w.tell(yield)
		return false
	}
	if w.making > 0 {
		w.patience.Reset(patience)
		return true
	}
	return w.tell(yield)
}

// take puts one item of the resolver into next.
func (w *watch[Req, Rsp]) take(n news) {
	w.untold = w.next.Err != nil || n.err != nil || n.diff.Before != n.diff.After
	w.next.Err = n.err
	if n.err != nil {
		if isFinal(n.err) {
			for _, id := range slices.SortedFunc(maps.Keys(w.members), byAddress) {
				w.remove(w.members[id])
			}
			w.next.State = resolve.StatePending
		}
		return
	}
	w.next.State = n.diff.After
	for _, e := range n.diff.Removed {
		w.remove(w.members[e.ID])
	}
	for _, e := range n.diff.Changed {
		w.change(w.members[e.ID], e)
	}
	if len(n.diff.Added) > 0 {
		w.add(n.diff.Added)
	}
}

func (w *watch[Req, Rsp]) remove(m *member[Req, Rsp]) {
	delete(w.members, m.target.Endpoint.ID)
	if !m.isMade {
		m.dropped = true
		m.Retire()
		return
	}
	w.next.Removed = append(w.next.Removed, m.now)
	w.leaving = append(w.leaving, m)
}

func (w *watch[Req, Rsp]) change(m *member[Req, Rsp], e resolve.Endpoint) {
	m.now = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
	if m.isMade {
		w.next.Changed = append(w.next.Changed, m.now)
	}
}

// add has the services made aside, one after the other.
func (w *watch[Req, Rsp]) add(endpoints []resolve.Endpoint) {
	added := make([]*member[Req, Rsp], len(endpoints))
	for i, e := range endpoints {
		m := &member[Req, Rsp]{target: Target{Name: w.target, Endpoint: e}}
		m.ctx, m.Ended = context.WithCancel(w.ctx) //nolint:gosec // the Count calls it
		m.complete = w.complete
		m.now = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
		w.members[e.ID] = m
		added[i] = m
	}
	w.making += len(added)
	go func() {
		for _, m := range added {
			m.inner = w.mk(m.ctx, m.target)
			select {
			case w.made <- m:
			case <-w.stopped:
				return
			}
		}
	}()
}

// tell yields what there is to tell, and lets go of the endpoints that the
// consumer now knows to be gone. It reports whether the sequence goes on.
func (w *watch[Req, Rsp]) tell(yield func(Change[Req, Rsp]) bool) bool {
	if !w.untold && w.next.lists() == 0 {
		return true
	}
	told, leaving := w.next, w.leaving
	w.next = Change[Req, Rsp]{State: told.State, Err: told.Err}
	w.untold, w.leaving = false, nil
	goOn := yield(told)
	for _, m := range leaving {
		m.Retire()
	}
	return goOn
}

func byAddress(a, b resolve.ID) int { return a.Addr.Compare(b.Addr) }
