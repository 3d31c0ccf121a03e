package discover

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// watch is one run of an Endpoints sequence. It gathers in next what to tell,
// and tells it when the services that the update asked for are made, or when
// it is out of patience. It never waits for a service.
type watch[Req, Rsp any] struct {
	ctx      context.Context //nolint:containedctx // the parent of every endpoint's own
	stopped  <-chan struct{} // closed when the sequence ends
	target   string
	mk       MakeService[Req, Rsp]
	complete layer.Completion[Rsp]

	members map[netip.AddrPort]*member[Req, Rsp]
	made    chan *member[Req, Rsp]
	batch   int // of services that one change waits for
	making  int // how many of them are not made yet
	// Something to tell waits for them, until patience is over.
	isHolding bool
	patience  *time.Timer

	overlap time.Duration
	ready   chan *member[Req, Rsp] // successors that were waited for
	leaving []deadline[Req, Rsp]   // the earliest first
	limit   *time.Timer            // of the first of them

	next   Change[Req, Rsp]
	untold bool // State or Err of next is news
	gone   []*member[Req, Rsp]
}

func newWatch[Req, Rsp any](ctx context.Context, target string, mk MakeService[Req, Rsp], o options[Rsp]) *watch[Req, Rsp] {
	w := &watch[Req, Rsp]{
		ctx: ctx, target: target, mk: mk, complete: o.complete, overlap: o.overlap,
		members: make(map[netip.AddrPort]*member[Req, Rsp]),
		made:    make(chan *member[Req, Rsp]), ready: make(chan *member[Req, Rsp]),
		patience: time.NewTimer(patience), limit: time.NewTimer(o.overlap),
	}
	w.patience.Stop()
	w.limit.Stop()
	return w
}

// release lets go of everything.
func (w *watch[Req, Rsp]) release() {
	w.patience.Stop()
	w.limit.Stop()
	for _, m := range w.members {
		m.dropSuccessor()
		m.retire()
	}
	for _, m := range w.gone { // ctx ended before that was told, or the consumer panicked at it
		m.retire()
	}
}

func (w *watch[Req, Rsp]) run(updates <-chan news, yield func(Change[Req, Rsp]) bool) {
	for goOn := true; goOn; goOn = goOn && (w.holds() || w.tell(yield)) {
		select {
		case n, ok := <-updates:
			if !ok {
				updates = nil
				continue
			}
			goOn = w.hear(n, yield)
		case m := <-w.made:
			w.enter(m)
		case m := <-w.ready:
			w.settled(m)
		case <-w.limit.C:
			w.succeedOverdue(time.Now())
		case <-w.patience.C:
			w.isHolding = false
			goOn = w.tell(yield)
		case <-w.ctx.Done():
			goOn = false
		}
	}
}

// hear takes one item of the resolver. It reports whether the sequence goes on.
func (w *watch[Req, Rsp]) hear(n news, yield func(Change[Req, Rsp]) bool) bool {
	// What waits for its services no longer does: two updates in one change
	// could have an ID that went and came back.
	if !w.tell(yield) {
		return false
	}
	w.begin()
	w.take(n)
	if isFinal(n.err) {
		w.tell(yield)
		return false
	}
	return true
}

// begin begins a batch. What the one before still makes is not waited for any
// more, and told when it is there.
func (w *watch[Req, Rsp]) begin() {
	w.batch++
	w.making = 0
	w.isHolding = false
	w.patience.Stop()
}

// holds reports whether what there is to tell waits for the rest of the batch.
func (w *watch[Req, Rsp]) holds() bool {
	if w.making > 0 && !w.isHolding && w.hasNews() {
		w.isHolding = true
		w.patience.Reset(patience)
	}
	return w.making > 0
}

func (w *watch[Req, Rsp]) hasNews() bool { return w.untold || w.next.lists() > 0 }

// take puts one item of the resolver into next.
func (w *watch[Req, Rsp]) take(n news) {
	w.untold = w.next.Err != nil || n.err != nil || n.diff.Before != n.diff.After
	w.next.Err = n.err
	w.next.Reset = n.all && (w.untold || n.diff.HasChanges()) // what is no news says nothing of the next Change
	if n.err != nil {
		if isFinal(n.err) {
			for _, addr := range slices.SortedFunc(maps.Keys(w.members), netip.AddrPort.Compare) {
				w.remove(w.members[addr])
			}
			w.next.State = resolve.StatePending
		}
		return
	}
	w.next.State = n.diff.After
	w.add(n.diff.Added)
	for _, e := range n.diff.Removed {
		// If it has another ID by now, that was added, and has seen to it.
		if m := w.members[e.Addr]; m.latest().now.ID == e.ID {
			w.remove(m)
		}
	}
	for _, e := range n.diff.Changed {
		w.change(w.members[e.Addr], e)
	}
}

// add sees to it that the services are made of what is new.
func (w *watch[Req, Rsp]) add(endpoints []resolve.Endpoint) {
	var wanted []*member[Req, Rsp]
	for _, e := range endpoints {
		old := w.members[e.Addr]
		switch {
		case old == nil:
			m := w.newMember(e)
			w.members[e.Addr] = m
			wanted = append(wanted, m)
		case old.target.Endpoint.ID == e.ID:
			w.stay(old, e)
		default:
			wanted = append(wanted, w.replace(old, e))
		}
	}
	if len(wanted) > 0 {
		w.making = len(wanted)
		go w.makeAll(wanted)
	}
}

func (w *watch[Req, Rsp]) newMember(e resolve.Endpoint) *member[Req, Rsp] {
	m := &member[Req, Rsp]{target: Target{Name: w.target, Endpoint: e}, batch: w.batch}
	m.ctx, m.Ended = context.WithCancel(w.ctx)    //nolint:gosec // the Count calls it
	m.wanted, m.forgo = context.WithCancel(w.ctx) //nolint:gosec // retire calls it
	m.complete = w.complete
	m.now = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
	return m
}

func (w *watch[Req, Rsp]) remove(m *member[Req, Rsp]) {
	delete(w.members, m.now.Addr)
	w.leave(m)
}

// leave lets go of m once the consumer knows.
func (w *watch[Req, Rsp]) leave(m *member[Req, Rsp]) {
	m.dropSuccessor()
	if !m.isMade {
		m.retire()
		return
	}
	w.next.Removed = append(w.next.Removed, m.now)
	w.gone = append(w.gone, m)
}

// change takes other labels and another weight for what is known at m's
// address. They are told of what the consumer has, not of a successor.
func (w *watch[Req, Rsp]) change(m *member[Req, Rsp], e resolve.Endpoint) {
	latest := m.latest()
	latest.now = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: latest}
	if m == latest && m.isMade {
		w.next.Changed = append(w.next.Changed, m.now)
	}
}

// tell yields what there is to tell, and lets go of the endpoints that the
// consumer now knows to be gone. It reports whether the sequence goes on.
func (w *watch[Req, Rsp]) tell(yield func(Change[Req, Rsp]) bool) bool {
	if !w.hasNews() {
		return true
	}
	told := w.next
	w.next = Change[Req, Rsp]{State: told.State, Err: told.Err}
	w.untold = false
	goOn := yield(told)
	for _, m := range w.gone {
		m.retire()
	}
	w.gone = nil
	return goOn
}
