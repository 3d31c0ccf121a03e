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
// one endpoint per address. If its [resolve.ID] changes, a new endpoint replaces the old
// one at once.
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
// own services, and uses one goroutine. Endpoints panics if r or mk is nil.
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
			members: make(map[netip.AddrPort]*member[Req, Rsp]),
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
	for _, e := range u.diff.Removed { // before Added, because an address may be in both
		w.remove(w.members[e.Addr])
	}
	for _, e := range u.diff.Added {
		m := w.newMember(e)
		w.members[e.Addr] = m
		w.next.Added = append(w.next.Added, m.current)
	}
	for _, e := range u.diff.Changed {
		m := w.members[e.Addr]
		m.current = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
		w.next.Changed = append(w.next.Changed, m.current)
	}
}

func (w *watch[Req, Rsp]) remove(m *member[Req, Rsp]) {
	delete(w.members, m.current.Addr)
	w.next.Removed = append(w.next.Removed, m.current)
	w.removed = append(w.removed, m)
}

// emit yields next if it has changes, and retires the removed endpoints. It returns
// false if the consumer broke.
func (w *watch[Req, Rsp]) emit(yield func(Change[Req, Rsp]) bool) bool {
	if !w.changed && w.next.len() == 0 {
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
		m.retire()
	}
	for _, m := range w.removed { // not empty if the consumer panicked
		m.retire()
	}
}
