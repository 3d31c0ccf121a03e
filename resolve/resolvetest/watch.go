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

// watch is a consumer that runs step by step: the resolver waits in its yield until the
// check has examined the item and decided how to continue.
type watch struct {
	timeout  time.Duration
	cancel   context.CancelFunc
	items    chan item
	more     chan action   // for the last item
	left     chan struct{} // closed when the check is over
	ended    chan struct{} // closed when the sequence has returned
	late     atomic.Int32  // items after the consumer broke
	panicked bool          // the sequence passed on the consumer's panic; read after ended

	held   bool // an item was received and not answered
	closed bool
	set    resolve.Set
	took   time.Duration // to end the stream

	seq func(func(resolve.Update, error) bool)
}

type item struct {
	update resolve.Update
	err    error
}

// action is what the consumer does after an item.
type action int

const (
	continues action = iota
	breaks
	panics
	exits
)

// errConsumer is the value of the consumer's panic.
var errConsumer = errors.New("resolvetest: the consumer's panic")

var errEnded = errors.New("the sequence ended before its context and before the consumer broke")

// watch resolves target until ctx ends.
func (g *rig) watch(ctx context.Context, target string) *watch {
	w := g.prepare(ctx, target)
	g.begin(w)
	return w
}

// prepare makes the sequence; begin ranges over it.
func (g *rig) prepare(ctx context.Context, target string) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{
		timeout: g.Timeout, cancel: cancel,
		items: make(chan item), more: make(chan action), left: make(chan struct{}), ended: make(chan struct{}),
	}
	w.seq = g.resolver.Resolve(ctx, target)
	return w
}

func (g *rig) begin(w *watch) {
	g.watches = append(g.watches, w)
	go w.consume()
}

// start watches the first target and waits for its endpoints.
func (g *rig) start(numbers ...int) (*watch, error) {
	g.set(numbers...)
	w := g.watch(context.Background(), g.target())
	return w, w.settle(resolve.StateExists, g.endpoints(numbers...)...)
}

// consume ranges over the sequence by a function, because a range statement would panic
// at an item after a break, which this counts.
func (w *watch) consume() {
	defer close(w.ended)
	defer func() {
		switch p := recover(); p {
		case nil:
		case errConsumer:
			w.panicked = true
		default:
			panic(p) // of the resolver
		}
	}()
	broke := false
	w.seq(func(u resolve.Update, err error) bool {
		if broke {
			w.late.Add(1)
			return false
		}
		select {
		case w.items <- item{u, err}:
		case <-w.left:
			broke = true
			return false
		}
		select {
		case a := <-w.more:
			broke = a != continues
			a.run()
		case <-w.left:
			broke = true
		}
		return !broke
	})
}

// run leaves the consumer's loop by a panic or Goexit.
func (a action) run() {
	switch a {
	case panics:
		panic(errConsumer)
	case exits:
		runtime.Goexit()
	case continues, breaks:
	}
}

// next continues after the last item and waits for another one. ok is false if the
// sequence ended.
func (w *watch) next() (it item, ok bool, err error) {
	w.answer(continues)
	timer := time.NewTimer(w.timeout)
	defer timer.Stop()
	select {
	case it = <-w.items:
		w.held = true
	case <-w.ended:
		return it, false, nil
	case <-timer.C:
		return it, false, fmt.Errorf("no item in %v", w.timeout)
	}
	known := it.update.Kind >= resolve.Replace && it.update.Kind <= resolve.DoesNotExist
	if known == (it.err != nil) {
		return it, true, fmt.Errorf("an item must be an update or an error: %v, %w", it.update, it.err)
	}
	return it, true, nil
}

func (w *watch) answer(a action) {
	if !w.held {
		return
	}
	w.held = false
	select {
	case w.more <- a:
	case <-w.left:
	}
}

// step waits for the next update, ignoring errors, and applies it.
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

// stays checks that nothing changes for a moment.
func (w *watch) stays() error {
	w.answer(continues)
	timer := time.NewTimer(moment)
	defer timer.Stop()
	for {
		select {
		case it := <-w.items:
			w.held = true
			if it.err == nil && w.set.Apply(it.update).HasChanges() {
				return fmt.Errorf("%v after the latest set", it.update)
			}
			w.answer(continues)
		case <-w.ended:
			return errEnded
		case <-timer.C:
			return nil
		}
	}
}

// lost waits for an error, ignoring updates.
func (w *watch) lost() error {
	for {
		it, ok, err := w.next()
		switch {
		case err != nil:
			return err
		case !ok:
			return errEnded
		case it.err != nil:
			return nil //nolint:nilerr // it waits for the error
		}
		w.set.Apply(it.update)
	}
}

// settle waits until the set is as wanted.
func (w *watch) settle(state resolve.State, endpoints ...resolve.Endpoint) error {
	for !w.is(state, endpoints) {
		if _, err := w.step(); err != nil {
			return fmt.Errorf("waiting for %v %v, at %v %v: %w", state, endpoints, w.set.State(), w.set.Endpoints(), err)
		}
	}
	return nil
}

// jump waits until the set is as wanted, and returns an error if that takes two
// changes.
func (w *watch) jump(state resolve.State, endpoints ...resolve.Endpoint) error {
	for {
		diff, err := w.step()
		switch {
		case err != nil:
			return fmt.Errorf("waiting for %v %v: %w", state, endpoints, err)
		case w.is(state, endpoints):
			return nil
		case diff.HasChanges():
			return fmt.Errorf("from %v straight to %v %v, not by way of %v %v",
				diff.Before, state, endpoints, w.set.State(), w.set.Endpoints())
		}
	}
}

func (w *watch) is(state resolve.State, endpoints []resolve.Endpoint) bool {
	want := slices.Clone(endpoints)
	slices.SortFunc(want, func(a, b resolve.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return w.set.State() == state && slices.EqualFunc(w.set.Endpoints(), want, resolve.Endpoint.Equal)
}

// end waits until the sequence has returned, after the context ended without a change of
// the source.
func (w *watch) end() error {
	return w.timed(func() error {
		w.answer(continues)
		return w.waitEnded(w.afterContext)
	})
}

// timed measures the time to end a stream.
func (w *watch) timed(leave func() error) error {
	begun := time.Now()
	defer func() { w.took = time.Since(begun) }()
	return leave()
}

// afterContext checks an item that was yielded after the end of the context, which is
// allowed unless it changes the set.
func (w *watch) afterContext(it item) error {
	switch known := w.set.State() != resolve.StatePending; {
	case errors.Is(it.err, resolve.ErrUnresolvable):
		return fmt.Errorf("after its context ended: wrongly unresolvable: %w", it.err)
	case it.err == nil && w.set.Apply(it.update).HasChanges() && known:
		return fmt.Errorf("%v after its context ended changes the set", it.update)
	}
	return nil
}

// leave leaves the loop at the last item.
func (w *watch) leave(how action) error {
	if !w.held {
		return errors.New("there is no item to break at")
	}
	err := w.timed(func() error {
		w.answer(how)
		return w.waitEnded(ignore)
	})
	if err != nil {
		return err
	}
	if how == panics && !w.panicked {
		return errors.New("the sequence did not pass on the consumer's panic")
	}
	return nil
}

func ignore(item) error { return nil }

// waitEnded waits until the sequence has returned, and checks the items before that.
func (w *watch) waitEnded(check func(item) error) error {
	timer := time.NewTimer(w.timeout)
	defer timer.Stop()
	for {
		select {
		case it := <-w.items:
			w.held = true
			if err := check(it); err != nil {
				return err
			}
			w.answer(continues) // the last item may have been in flight
		case <-w.ended:
			if n := w.late.Load(); n > 0 {
				return fmt.Errorf("%d items were yielded after the consumer broke", n)
			}
			return nil
		case <-timer.C:
			return fmt.Errorf("the sequence did not end in %v", w.timeout)
		}
	}
}

// close ends the stream.
func (w *watch) close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	w.cancel()
	close(w.left)
	if err := w.waitEnded(ignore); err != nil {
		return fmt.Errorf("at the end of the check: %w", err)
	}
	return nil
}
