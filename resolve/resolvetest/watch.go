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

// watch is a consumer that goes step by step: the resolver waits in its yield
// until the check has looked at the item and says whether to go on.
type watch struct {
	patience time.Duration
	cancel   context.CancelFunc
	items    chan item
	more     chan verdict  // the answer to the item that was taken
	left     chan struct{} // closed when the check is over
	ended    chan struct{} // closed when the sequence has returned
	late     atomic.Int32  // items after the consumer broke
	thrown   bool          // the consumer's panic came out of the sequence; to be read when that has ended

	held   bool // an item was taken and not answered
	closed bool
	set    resolve.Set
	took   time.Duration // from when the stream was left until the sequence returned

	seq func(func(resolve.Update, error) bool)
}

type item struct {
	update resolve.Update
	err    error
}

// verdict is how a consumer takes an item.
type verdict int

const (
	goesOn verdict = iota
	breaks
	panics
	exits
)

// errThrown is what a consumer panics with.
var errThrown = errors.New("resolvetest: the consumer's panic")

var errEnded = errors.New("the sequence ended, though neither its context did nor the consumer broke")

// watch resolves target until ctx ends.
func (g *rig) watch(ctx context.Context, target string) *watch {
	w := g.prepare(ctx, target)
	g.begin(w)
	return w
}

// prepare asks for the sequence, and does not range over it before begin.
func (g *rig) prepare(ctx context.Context, target string) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{
		patience: g.Patience, cancel: cancel,
		items: make(chan item), more: make(chan verdict), left: make(chan struct{}), ended: make(chan struct{}),
	}
	w.seq = g.resolver.Resolve(ctx, target)
	return w
}

func (g *rig) begin(w *watch) {
	g.watches = append(g.watches, w)
	go w.consume()
}

// start watches the first target, and waits for the state it has.
func (g *rig) start(numbers ...int) (*watch, error) {
	g.set(numbers...)
	w := g.watch(context.Background(), g.target())
	return w, w.settle(resolve.StateExists, g.endpoints(numbers...)...)
}

// consume ranges over the sequence, by hand: a range statement would panic where this
// counts what comes after a break.
func (w *watch) consume() {
	defer close(w.ended)
	defer func() {
		switch p := recover(); p {
		case nil:
		case errThrown:
			w.thrown = true
		default:
			panic(p) // the resolver's own
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
		case v := <-w.more:
			broke = v != goesOn
			v.carryOut()
		case <-w.left:
			broke = true
		}
		return !broke
	})
}

// carryOut leaves the consumer's loop as no statement of the loop does.
func (v verdict) carryOut() {
	switch v {
	case panics:
		panic(errThrown)
	case exits:
		runtime.Goexit()
	case goesOn, breaks:
	}
}

// next answers the item before with yes and waits for another one. With none
// before the sequence ends, ok is false.
func (w *watch) next() (it item, ok bool, err error) {
	w.answer(goesOn)
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	select {
	case it = <-w.items:
		w.held = true
	case <-w.ended:
		return it, false, nil
	case <-timer.C:
		return it, false, fmt.Errorf("nothing came in %v", w.patience)
	}
	known := it.update.Kind >= resolve.Replace && it.update.Kind <= resolve.DoesNotExist
	if known == (it.err != nil) {
		return it, true, fmt.Errorf("an item must be an update or an error: %v, %w", it.update, it.err)
	}
	return it, true, nil
}

func (w *watch) answer(v verdict) {
	if !w.held {
		return
	}
	w.held = false
	select {
	case w.more <- v:
	case <-w.left:
	}
}

// step waits for the next update, passing over errors, and applies it.
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
			return resolve.Diff{}, fmt.Errorf("unresolvable, which it is not: %w", it.err)
		}
	}
}

// stays looks for a moment whether anything changes, which the source has given no
// cause for.
func (w *watch) stays() error {
	w.answer(goesOn)
	timer := time.NewTimer(moment)
	defer timer.Stop()
	for {
		select {
		case it := <-w.items:
			w.held = true
			if it.err == nil && w.set.Apply(it.update).HasChanges() {
				return fmt.Errorf("after the latest came %v, which is over", it.update)
			}
			w.answer(goesOn)
		case <-w.ended:
			return errEnded
		case <-timer.C:
			return nil
		}
	}
}

// lost waits for an error, passing over updates.
func (w *watch) lost() error {
	for {
		it, ok, err := w.next()
		switch {
		case err != nil:
			return err
		case !ok:
			return errEnded
		case it.err != nil:
			return nil //nolint:nilerr // the error is what was waited for
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

// jump waits until the set is as wanted, which must come about in one update.
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

// end waits until the sequence has returned, with no item taken. The context has
// ended, and the source has not changed since.
func (w *watch) end() error {
	return w.timed(func() error {
		w.answer(goesOn)
		return w.waitEnded(w.afterContext)
	})
}

// timed notes how long it takes a stream to end.
func (w *watch) timed(leave func() error) error {
	begun := time.Now()
	defer func() { w.took = time.Since(begun) }()
	return leave()
}

// afterContext says what is wrong with an item that came after the context had
// ended, if something is: one may have been under way.
func (w *watch) afterContext(it item) error {
	switch known := w.set.State() != resolve.StatePending; {
	case errors.Is(it.err, resolve.ErrUnresolvable):
		return fmt.Errorf("after its context ended: unresolvable, which it is not: %w", it.err)
	case it.err == nil && w.set.Apply(it.update).HasChanges() && known:
		return fmt.Errorf("after its context ended came %v, which changes what is known", it.update)
	}
	return nil
}

// leave gets out of the loop at the item that was taken, in one of the ways
// there are.
func (w *watch) leave(how verdict) error {
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
	if how == panics && !w.thrown {
		return errors.New("the consumer's panic did not come out of the sequence")
	}
	return nil
}

func ignore(item) error { return nil }

// waitEnded waits until the sequence has returned, and has judge look at what
// comes before that.
func (w *watch) waitEnded(judge func(item) error) error {
	timer := time.NewTimer(w.patience)
	defer timer.Stop()
	for {
		select {
		case it := <-w.items:
			w.held = true
			if err := judge(it); err != nil {
				return err
			}
			w.answer(goesOn) // a last item may have been under way
		case <-w.ended:
			if n := w.late.Load(); n > 0 {
				return fmt.Errorf("%d items were yielded after the consumer broke", n)
			}
			return nil
		case <-timer.C:
			return fmt.Errorf("the sequence did not end in %v", w.patience)
		}
	}
}

// close ends the stream in any way there is.
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
