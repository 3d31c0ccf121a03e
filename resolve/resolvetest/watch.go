package resolvetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/resolve"
)

// watch is a consumer that runs one stream step by step. After each item, the resolver waits in
// its call of yield until the check has decided how the consumer continues.
type watch struct {
	g         *rig
	cancel    context.CancelFunc
	items     chan item
	actions   chan action   // carries the action after the last item to the consumer
	done      chan struct{} // closed when the check ends
	ended     chan struct{} // closed when the sequence has returned
	lateItems atomic.Int32  // number of items after the consumer broke
	panicked  bool          // whether the sequence passed on the consumer's panic; read after ended

	pending  bool // whether an item was received and not answered
	closed   bool
	set      resolve.Set
	duration time.Duration // the time that the stream took to end

	seq func(func(resolve.Update, error) bool)
}

// item is what a stream yields at one time: an update or an error.
type item struct {
	update resolve.Update
	err    error
}

// action tells a consumer how to continue after an item, for example to break out of its loop.
type action int

// What a consumer can do after an item.
const (
	continues action = iota
	breaks
	panics
	exits
)

// errConsumer is the value of the consumer's panic.
var errConsumer = errors.New("resolvetest: the consumer's panic")

// errEnded is the violation of a resolver that gives up.
var errEnded = errors.New("the sequence ended before its context and before the consumer broke")

// watch returns a consumer that ranges over the updates of target in a new goroutine.
func (g *rig) watch(ctx context.Context, target string) *watch {
	w := g.prepare(ctx, target)
	g.begin(w)
	return w
}

// prepare calls Resolve for target and returns a consumer. The consumer ranges over the
// sequence after a call of begin.
func (g *rig) prepare(ctx context.Context, target string) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{
		g: g, cancel: cancel,
		// Unbuffered, so that the stream and the check take turns: an item, and then an action.
		items: make(chan item), actions: make(chan action), done: make(chan struct{}), ended: make(chan struct{}),
	}
	w.seq = g.resolver.Resolve(ctx, target)
	return w
}

// begin lets the consumer w range over its sequence, in a new goroutine. close waits for it.
func (g *rig) begin(w *watch) {
	g.watches = append(g.watches, w)
	go w.consume()
}

// start sets the first target's endpoints to the test endpoints with the given numbers. It then
// starts a stream for that target and waits for the endpoints.
func (g *rig) start(numbers ...int) *watch {
	g.set(numbers...)
	w := g.watch(context.Background(), g.target())
	w.settle(resolve.StateExists, g.endpoints(numbers...)...)
	return w
}

// consume ranges over the sequence in the manner of a loop, and counts items that are yielded
// after a break. It calls the sequence with a function, because a range statement would panic at
// such an item.
func (w *watch) consume() {
	defer close(w.ended)
	// The panic of a loop body passes through the resolver and ends up here.
	defer func() {
		switch p := recover(); p {
		case nil:
		case errConsumer:
			w.panicked = true
		default:
			panic(p) // of the resolver
		}
	}()
	broke := false // yield has returned false
	w.seq(func(u resolve.Update, err error) bool {
		// A resolver that calls yield again after false is wrong. It is counted, and the check fails later.
		if broke {
			w.lateItems.Add(1)
			return false
		}
		// The check receives the item, and then decides by an action.
		select {
		case w.items <- item{u, err}:
		case <-w.done:
			broke = true
			return false
		}
		select {
		case a := <-w.actions:
			broke = a != continues // also for panics and exits, which do not return here
			a.run()
		case <-w.done:
			broke = true
		}
		return !broke
	})
}

// run ends the goroutine if a is panics or exits: by a panic with errConsumer, or by
// runtime.Goexit. It does nothing for other actions, which the caller handles.
func (a action) run() {
	switch a {
	case panics:
		panic(errConsumer)
	case exits:
		// Deferred functions of the resolver run, but recover returns nil.
		runtime.Goexit()
	// Deliberately empty: the caller continues or breaks.
	case continues, breaks:
	}
}

// next lets the consumer continue after the last item and waits for the next item. ok is false if
// the sequence ended. next returns an error after the timeout, and for an item with both an
// update and an error, or neither.
func (w *watch) next() (it item, ok bool, err error) {
	w.answer(continues)
	timer := time.NewTimer(w.g.Timeout)
	defer timer.Stop()
	select {
	case it = <-w.items:
		w.pending = true
	case <-w.ended:
		return it, false, nil
	case <-timer.C:
		return it, false, fmt.Errorf("no item in %v", w.g.Timeout)
	}
	// Of update and error, exactly one must be set.
	valid := it.update.Kind >= resolve.Replace && it.update.Kind <= resolve.DoesNotExist
	if valid == (it.err != nil) {
		return it, true, fmt.Errorf("an item must be an update or an error: %v, %w", it.update, it.err)
	}
	return it, true, nil
}

// answer makes the consumer perform the action a after its last item. It does nothing if there is no such item.
func (w *watch) answer(a action) {
	if !w.pending {
		return
	}
	w.pending = false
	select {
	case w.actions <- a:
	case <-w.done:
	}
}

// step waits for the next update, applies it to the set of w, and returns the change. It skips
// errors, but returns an error if the stream yields ErrUnresolvable or ends.
func (w *watch) step() (resolve.Diff, error) {
	for {
		it, ok, err := w.next()
		switch {
		case err != nil:
			return resolve.Diff{}, err
		case !ok:
			return resolve.Diff{}, errEnded
		case it.err == nil:
			return w.set.Apply(it.update), nil
		case errors.Is(it.err, resolve.ErrUnresolvable):
			return resolve.Diff{}, fmt.Errorf("wrongly unresolvable: %w", it.err)
		}
	}
}

// stays checks that the set does not change within the duration in the constant moment.
func (w *watch) stays() {
	w.answer(continues)
	timer := time.NewTimer(moment)
	defer timer.Stop()
	for w.g.err == nil {
		select {
		case it := <-w.items:
			w.pending = true
			if it.err == nil && w.set.Apply(it.update).HasChanges() {
				w.g.failf("%v after the latest set", it.update)
			}
			w.answer(continues)
		case <-w.ended:
			w.g.fail(errEnded)
		case <-timer.C:
			return
		}
	}
}

// awaitError waits until the stream yields an error. It applies updates that precede the error.
func (w *watch) awaitError() {
	for w.g.err == nil {
		it, ok, err := w.next()
		switch {
		case err != nil:
			w.g.fail(err)
		case !ok:
			w.g.fail(errEnded)
		case it.err != nil:
			return
		}
		// Updates may precede the error, such as one that was already on its way.
		w.set.Apply(it.update)
	}
}

// settle waits until the set's state and endpoints are as given.
func (w *watch) settle(state resolve.State, endpoints ...resolve.Endpoint) {
	// Any sets in between are allowed.
	for w.g.err == nil && !w.matches(state, endpoints) {
		if _, err := w.step(); err != nil {
			w.g.failf("waiting for %v %v, at %v %v: %w", state, texts(endpoints), w.set.State(), texts(w.set.Endpoints()), err)
		}
	}
}

// jump waits until the set's state and endpoints are as given. It is a violation if the set
// changes to anything else before that.
func (w *watch) jump(state resolve.State, endpoints ...resolve.Endpoint) {
	for w.g.err == nil {
		diff, err := w.step()
		switch {
		case err != nil:
			w.g.failf("waiting for %v %v: %w", state, texts(endpoints), err)
		// Checked first: the wanted set may be reached by an update that changes several things.
		case w.matches(state, endpoints):
			return
		case diff.HasChanges():
			w.g.failf("want a change from %v straight to %v %v, not by way of %v %v",
				diff.Before, state, texts(endpoints), w.set.State(), texts(w.set.Endpoints()))
		}
	}
}

// texts returns the address of each endpoint, and all fields of an endpoint that sets others.
func texts(endpoints []resolve.Endpoint) []string {
	list := make([]string, len(endpoints))
	for i, e := range endpoints {
		list[i] = e.Addr.String()
		// An endpoint with an address only is shown as that address, to keep the text short.
		if !e.Equal(resolve.Endpoint{ID: resolve.ID{Addr: e.Addr}}) {
			list[i] = fmt.Sprintf("%+v", e)
		}
	}
	return list
}

// matches reports whether the set's state and endpoints are as given, in any order.
func (w *watch) matches(state resolve.State, endpoints []resolve.Endpoint) bool {
	want := slices.Clone(endpoints)
	slices.SortFunc(want, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return w.set.State() == state && slices.EqualFunc(w.set.Endpoints(), want, resolve.Endpoint.Equal)
}

// end waits until the sequence has returned. The caller must have ended the stream context, and
// must not change the source meanwhile.
func (w *watch) end() {
	w.finish(continues, w.afterContext)
}

// finish makes the consumer perform the action a, and waits until the sequence has returned. It
// calls check for each item that is yielded meanwhile. It stores how long it waited in w.duration.
func (w *watch) finish(a action, check func(item) error) {
	if w.g.err != nil {
		return
	}
	// The time from the action on is what the limit applies to.
	start := time.Now()
	w.answer(a)
	w.g.fail(w.waitEnded(check))
	w.duration = time.Since(start)
}

// afterContext checks an item that was yielded after the end of the context. It returns an error
// if the item is ErrUnresolvable, or an update that changes the set. The first answer may change
// the set.
func (w *watch) afterContext(it item) error {
	// Whether there was an answer before this item. If not, the item may be the first answer.
	switch answered := w.set.State() != resolve.StatePending; {
	case errors.Is(it.err, resolve.ErrUnresolvable):
		return fmt.Errorf("after its context ended: wrongly unresolvable: %w", it.err)
	case it.err == nil && w.set.Apply(it.update).HasChanges() && answered:
		return fmt.Errorf("%v after its context ended changes the set", it.update)
	}
	return nil
}

// leave makes the consumer end its loop by the action a, and waits until the sequence has
// returned. The consumer must have received an item before.
func (w *watch) leave(a action) {
	// Without an item, the consumer is not in its loop body and cannot leave it.
	if !w.pending {
		w.g.failf("no item was received to break at")
	}
	w.finish(a, ignore)
	if w.g.err == nil && a == panics && !w.panicked {
		w.g.failf("the sequence did not pass on the consumer's panic")
	}
}

// ignore is a check for finish that accepts every item.
func ignore(item) error { return nil }

// waitEnded waits until the sequence has returned. It calls check for each item that is yielded
// meanwhile.
func (w *watch) waitEnded(check func(item) error) error {
	timer := time.NewTimer(w.g.Timeout)
	defer timer.Stop()
	for {
		select {
		case it := <-w.items:
			w.pending = true
			if err := check(it); err != nil {
				return err
			}
			w.answer(continues) // the last item may have been in flight
		case <-w.ended:
			// Read only after ended is closed, when the count is final.
			if n := w.lateItems.Load(); n > 0 {
				return fmt.Errorf("%d items were yielded after the consumer broke", n)
			}
			return nil
		case <-timer.C:
			return fmt.Errorf("the sequence did not end in %v", w.g.Timeout)
		}
	}
}

// close ends the stream and waits until the sequence has returned.
func (w *watch) close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	w.cancel()
	// Closed done lets the consumer leave its loop without an action.
	close(w.done)
	if err := w.waitEnded(ignore); err != nil {
		return fmt.Errorf("at the end of the check: %w", err)
	}
	return nil
}
