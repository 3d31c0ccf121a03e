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

// Endpoints resolves target with r and returns a sequence of changes to its endpoints. It calls mk
// to make each endpoint's service. An update that changes nothing yields no Change. There is at
// most one endpoint per address. If the [resolve.ID] at an address changes, one Change removes the
// old endpoint and adds a new one.
//
// The sequence ends when ctx ends or the consumer breaks. An error from r is yielded in a Change's
// Err and leaves the endpoints unchanged. [resolve.ErrUnresolvable] removes all endpoints and ends
// the sequence. If r's sequence ends without this error, the endpoints stay until ctx ends.
//
// Once the consumer has received the Change that removes an endpoint, its Call and Ready return an
// error that matches [layer.ErrClosed]. Responses in flight continue. All endpoints are removed
// when the sequence ends.
//
// The sequence can be ranged over several times and concurrently. Each range makes its own
// services, and calls the resolver on the consumer's goroutine. Endpoints panics if r or mk is nil.
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
		w := &watch[Req, Rsp]{
			ctx: ctx, target: target, mk: mk, options: o,
			members: make(map[netip.AddrPort]*member[Req, Rsp]),
		}
		// Also after a panic of the consumer: no member stays in use.
		defer w.release()
		w.run(r, yield)
	}
}

// watch is the state of one loop over the sequence that [Endpoints] returns: the current endpoints
// and the next change.
type watch[Req, Rsp any] struct {
	ctx    context.Context //nolint:containedctx // the parent of the context of each endpoint
	target string
	mk     MakeService[Req, Rsp]
	options[Rsp]

	members map[netip.AddrPort]*member[Req, Rsp] // the current endpoints

	next    Change[Req, Rsp]    // the change that emit yields next
	changed bool                // whether emit must yield next even without endpoints, because of its State or Err
	removed []*member[Req, Rsp] // to be retired after the consumer has received next
}

// run applies r's updates and yields the changes. It returns when the consumer's loop has ended, the
// target is unresolvable, or ctx has ended. If r panics, run yields the panic as an error and waits
// until ctx ends, so that the endpoints stay. If the consumer panics, the panic continues after r has
// returned.
func (w *watch[Req, Rsp]) run(r resolve.Resolver, yield func(Change[Req, Rsp]) bool) {
	// finished: the sequence must end now, rather than wait for ctx.
	finished := false
	var consumerErr error
	// Do turns a panic of the resolver into err.
	err := panics.Do("the resolver", func() error {
		var set resolve.Set
		for u, err := range r.Resolve(w.ctx, w.target) {
			if w.ctx.Err() != nil {
				return nil
			}
			if err != nil {
				w.fail(err)
			} else {
				// All kinds but Add and Remove list the whole set.
				w.apply(set.Apply(u), u.Kind != resolve.Add && u.Kind != resolve.Remove)
			}
			// A panic of the consumer must not be taken for one of the resolver.
			// So it is caught here, kept in consumerErr and raised again after the resolver has returned.
			consumerErr = panics.Contain(func() { finished = !w.emit(yield) })
			if finished = finished || errors.Is(err, resolve.ErrUnresolvable); finished || consumerErr != nil {
				return nil
			}
		}
		return nil
	})
	switch {
	// Raised again outside of Do, so that it reaches the consumer's code.
	case consumerErr != nil:
		panic(consumerErr)
	// The resolver has panicked. The consumer learns that by a last Change.
	case err != nil:
		w.fail(fmt.Errorf("resolve %q: %w", w.target, err))
		finished = !w.emit(yield)
	}
	// The resolver has ended, but the endpoints stay in use.
	if !finished {
		<-w.ctx.Done()
	}
}

// fail stores err, an error of the resolver, in w.next. If err matches ErrUnresolvable, fail also
// removes all endpoints.
func (w *watch[Req, Rsp]) fail(err error) {
	w.changed, w.next.Err, w.next.Reset = true, err, false
	if errors.Is(err, resolve.ErrUnresolvable) {
		for _, addr := range slices.SortedFunc(maps.Keys(w.members), netip.AddrPort.Compare) {
			w.remove(w.members[addr])
		}
		// The set is unknown, as before the first answer.
		w.next.State = resolve.StatePending
	}
}

// apply applies the differences in diff to w.members, the current endpoints. It also collects them
// as changes in w.next, for the method emit to yield. reset reports whether the update listed all
// endpoints of the target.
func (w *watch[Req, Rsp]) apply(diff resolve.Diff, reset bool) {
	// The end of an error is a change too, even if the endpoints are the same.
	w.changed = w.next.Err != nil || diff.Before != diff.After
	w.next.Err, w.next.Reset, w.next.State = nil, reset, diff.After
	for _, e := range diff.Removed { // before Added, because an address may be in both
		w.remove(w.members[e.Addr])
	}
	for _, e := range diff.Added {
		// MakeService is called here, in the order of the addresses.
		m := w.newMember(e)
		w.members[e.Addr] = m
		w.next.Added = append(w.next.Added, m.current)
	}
	// The member stays, with its connections and statistics. Only what describes it is replaced.
	for _, e := range diff.Changed {
		m := w.members[e.Addr]
		m.current = &Endpoint[Req, Rsp]{Endpoint: e, Target: w.target, Service: m}
		w.next.Changed = append(w.next.Changed, m.current)
	}
}

// remove removes m from the current endpoints and adds that to w.next.
func (w *watch[Req, Rsp]) remove(m *member[Req, Rsp]) {
	delete(w.members, m.current.Addr)
	w.next.Removed = append(w.next.Removed, m.current)
	// Retired by emit, after the consumer has received the change.
	w.removed = append(w.removed, m)
}

// emit yields the collected changes, if there are any. After that, it makes the members for
// removed endpoints reject requests. It returns false if the consumer has ended its loop.
func (w *watch[Req, Rsp]) emit(yield func(Change[Req, Rsp]) bool) bool {
	if !w.changed && w.next.len() == 0 {
		return true
	}
	c := w.next
	// State and Err stay for the next Change. The lists are the consumer's now.
	w.next, w.changed = Change[Req, Rsp]{State: c.State, Err: c.Err}, false
	// Only after that may removed endpoints reject requests: before, the consumer may still choose
	// them.
	ok := yield(c)
	for _, m := range w.removed {
		m.retire()
	}
	w.removed = nil
	return ok
}

// release makes all members reject requests. It is called when the sequence has ended.
func (w *watch[Req, Rsp]) release() {
	for _, m := range w.members {
		m.retire()
	}
	for _, m := range w.removed { // not empty if the consumer panicked
		m.retire()
	}
}
