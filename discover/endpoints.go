package discover

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

// Endpoints resolves target and yields the changes of its endpoints, each with a
// service made by mk. An update that changes nothing yields nothing. There is at most
// one endpoint per address. If its [resolve.ID] changes, the old endpoint serves until
// the new one is ready, see [WithHandoverTimeout].
//
// The sequence ends when ctx ends or the consumer breaks. An error of the resolver is yielded
// as Err and leaves the endpoints unchanged. [resolve.ErrUnresolvable] removes all endpoints
// and ends the sequence. If the resolver ends without it, the last set stays.
//
// After the consumer has received the Change, Call and Ready of a removed endpoint
// return an error that matches [layer.ErrClosed]. Responses in flight continue. All
// endpoints are removed when the sequence ends.
//
// The sequence can be ranged over several times and concurrently. Each range makes its
// own services. It uses one goroutine, and another one for each handover. Endpoints
// panics if r or mk is nil.
func Endpoints[Req, Rsp any](
	ctx context.Context, r resolve.Resolver, target string, mk MakeService[Req, Rsp], opts ...Option[Rsp],
) iter.Seq[Change[Req, Rsp]] {
	switch {
	case r == nil:
		panic("discover: nil resolver")
	case mk == nil:
		panic("discover: nil MakeService")
	}
	o := newOptions(opts)
	return func(yield func(Change[Req, Rsp]) bool) {
		resolving, stop := context.WithCancel(ctx)
		updates := make(chan update)
		go read(resolving, r, target, updates)
		w := &watch[Req, Rsp]{
			ctx: ctx, target: target, mk: mk, options: o,
			members: make(map[netip.AddrPort]*member[Req, Rsp]), settled: make(chan *member[Req, Rsp]),
		}
		defer func() {
			w.release()
			stop()
			for range updates { // wait until the resolver has returned
			}
		}()
		w.run(updates, yield)
	}
}

// update is one item of the sequence of a resolver: the changes of an update, or an error.
type update struct {
	diff  resolve.Diff
	reset bool // the update had the whole set
	err   error
}

// final reports whether no further update follows.
func (u update) final() bool { return errors.Is(u.err, resolve.ErrUnresolvable) }

// read sends the updates of r to out. It applies each update to a set first, because
// the resolver may reuse its memory. A panic of the resolver is sent as the last error.
func read(ctx context.Context, r resolve.Resolver, target string, out chan<- update) {
	defer close(out)
	send := func(u update) bool {
		select {
		case out <- u:
			return true
		case <-ctx.Done():
			return false
		}
	}
	err := panics.Do("the resolver", func() error {
		var set resolve.Set
		for next, err := range r.Resolve(ctx, target) {
			u := update{err: err}
			if err == nil {
				u.diff = set.Apply(next)
				u.reset = next.Kind != resolve.Add && next.Kind != resolve.Remove
			}
			if !send(u) {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		send(update{err: fmt.Errorf("resolve %q: %w", target, err)})
	}
}

// watch is one range over the sequence of [Endpoints].
type watch[Req, Rsp any] struct {
	ctx    context.Context //nolint:containedctx // the parent of the context of each endpoint
	target string
	mk     MakeService[Req, Rsp]
	options[Rsp]

	members map[netip.AddrPort]*member[Req, Rsp]
	settled chan *member[Req, Rsp] // successors whose wait has ended

	next    Change[Req, Rsp]
	changed bool                // whether State or Err of next differ from the last Change
	removed []*member[Req, Rsp] // to be retired after the consumer has received next
}

func (w *watch[Req, Rsp]) run(updates <-chan update, yield func(Change[Req, Rsp]) bool) {
	for more := true; more; {
		select {
		case u, ok := <-updates:
			if !ok {
				updates = nil
				continue
			}
			w.apply(u)
			more = w.emit(yield) && !u.final()
		case m := <-w.settled:
			if old := w.members[m.current.Addr]; old != nil && old.successor == m {
				w.replace(old, m)
			}
			more = w.emit(yield)
		case <-w.ctx.Done():
			return
		}
	}
}

// apply adds the changes of u to next.
func (w *watch[Req, Rsp]) apply(u update) {
	w.changed = w.next.Err != nil || u.err != nil || u.diff.Before != u.diff.After
	w.next.Err, w.next.Reset = u.err, u.reset
	if u.err != nil {
		if u.final() {
			for _, addr := range slices.SortedFunc(maps.Keys(w.members), netip.AddrPort.Compare) {
				w.remove(w.members[addr])
			}
			w.next.State = resolve.StatePending
		}
		return
	}
	w.next.State = u.diff.After
	for _, e := range u.diff.Added {
		w.add(e)
	}
	for _, e := range u.diff.Removed {
		// For an address with a new ID, add has already handled the old one.
		if m := w.members[e.Addr]; m.latest().current.ID == e.ID {
			w.remove(m)
		}
	}
	for _, e := range u.diff.Changed {
		w.change(w.members[e.Addr], e)
	}
}

// add makes the service of an endpoint whose address is new, or whose ID has changed.
func (w *watch[Req, Rsp]) add(e resolve.Endpoint) {
	old := w.members[e.Addr]
	switch {
	case old == nil:
		m := w.newMember(e)
		w.members[e.Addr] = m
		w.next.Added = append(w.next.Added, m.current)
	case old.current.ID == e.ID: // the ID has changed back
		old.dropSuccessor()
		if !old.current.Equal(e) {
			w.change(old, e)
		}
	default:
		old.dropSuccessor()
		m := w.newMember(e)
		if w.handover <= 0 || isSettled(m.poll()) {
			w.replace(old, m)
			return
		}
		old.successor = m
		go w.await(m)
	}
}

// replace removes old and adds m.
func (w *watch[Req, Rsp]) replace(old, m *member[Req, Rsp]) {
	old.successor = nil
	w.remove(old)
	w.members[m.current.Addr] = m
	w.next.Added = append(w.next.Added, m.current)
}

func (w *watch[Req, Rsp]) remove(m *member[Req, Rsp]) {
	m.dropSuccessor()
	delete(w.members, m.current.Addr)
	w.next.Removed = append(w.next.Removed, m.current)
	w.removed = append(w.removed, m)
}

// change sets the labels and the weight at the address of m. If m has a successor, they
// are yielded when the successor is added.
func (w *watch[Req, Rsp]) change(m *member[Req, Rsp], e resolve.Endpoint) {
	latest := m.latest()
	latest.current = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: latest}
	if m == latest {
		w.next.Changed = append(w.next.Changed, m.current)
	}
}

// emit yields next if it has changes, and retires the removed endpoints. It returns
// false if the consumer broke.
func (w *watch[Req, Rsp]) emit(yield func(Change[Req, Rsp]) bool) bool {
	if !w.changed && w.next.len() == 0 {
		w.next.Reset = false
		return true
	}
	c := w.next
	w.next, w.changed = Change[Req, Rsp]{State: c.State, Err: c.Err}, false
	more := yield(c)
	for _, m := range w.removed {
		m.retire()
	}
	w.removed = nil
	return more
}

// release retires all endpoints.
func (w *watch[Req, Rsp]) release() {
	for _, m := range w.members {
		m.dropSuccessor()
		m.retire()
	}
	for _, m := range w.removed { // not empty if the consumer panicked
		m.retire()
	}
}
