package resolvetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
)

// fake is a resolver with its source for all checks of the suite. A fault
// selects one defect.
type fake struct {
	fault   string
	release chan struct{} // closed in the end: it frees what a fault left behind

	mu     sync.Mutex
	topics map[string]*topic
}

type topic struct {
	known    resolve.Set
	first    []item // the first response
	down     bool
	altered  bool // while it was down
	rejected bool
	feeds    map[*feed]bool
}

// feed has the pending items of one stream.
type feed struct {
	queue []item
	end   bool // nothing comes after the queue
	wake  chan struct{}
}

var errBroken = errors.New("connection reset")

func subject(fault string) Subject {
	return Subject{
		New: func(t testing.TB) (resolve.Resolver, Source) {
			f := &fake{fault: fault, release: make(chan struct{}), topics: map[string]*topic{}}
			t.Cleanup(func() { close(f.release) })
			return f, Source{
				Set: func(target string, list ...resolve.Endpoint) {
					f.tell(target, resolve.Update{Kind: resolve.Replace, Endpoints: list})
				},
				Empty:        func(target string) { f.tell(target, resolve.Update{Kind: resolve.Empty}) },
				DoesNotExist: func(target string) { f.tell(target, resolve.Update{Kind: resolve.DoesNotExist}) },
				Send:         f.tell,
				Interrupt:    f.interrupt,
				Reject:       f.reject,
			}
		},
		Relabel: func(e resolve.Endpoint) resolve.Endpoint {
			e.Labels = map[string]string{"pod": "other"}
			return e
		},
		Rekey: func(e resolve.Endpoint) resolve.Endpoint {
			e.ServerName = "other"
			return e
		},
	}
}

func (f *fake) is(fault string) bool { return f.fault == fault }

// The source.

func (f *fake) topic(target string) *topic {
	if f.is("one target for all") {
		target = ""
	}
	if f.topics[target] == nil {
		f.topics[target] = &topic{feeds: map[*feed]bool{}}
	}
	return f.topics[target]
}

func (f *fake) tell(target string, u resolve.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topic(target)
	diff := t.known.Apply(u)
	t.altered = t.altered || diff.HasChanges()
	if !t.down {
		t.push(f.spoil(u, diff)...)
	}
}

func (t *topic) push(items ...item) {
	for feed := range t.feeds {
		feed.queue = append(feed.queue, items...)
		feed.signal()
	}
}

func (q *feed) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (f *fake) interrupt(target string, meanwhile func()) {
	f.mu.Lock()
	t := f.topic(target)
	t.down, t.altered = true, false
	if !f.is("quiet when interrupted") {
		t.push(item{err: errBroken})
	}
	switch f.fault {
	case "empties when interrupted":
		t.push(news(resolve.Update{Kind: resolve.Empty}))
	case "ends when interrupted":
		for feed := range t.feeds {
			feed.end = true
		}
		clear(t.feeds)
	}
	f.mu.Unlock()

	meanwhile()

	f.mu.Lock()
	defer f.mu.Unlock()
	t.down = false
	for feed := range t.feeds {
		feed.queue = append(feed.queue, f.back(t)...)
		feed.signal()
		if f.is("one stream comes back") {
			break
		}
	}
}

// back returns the items for open streams after an interruption.
func (f *fake) back(t *topic) []item {
	endpoints := t.known.Endpoints()
	switch {
	case f.is("deaf after an interruption"),
		f.is("quiet when back to the same") && !t.altered,
		f.is("keeps what it knew when back to nothing") && len(endpoints) == 0:
		return nil
	case f.is("adds when back") && len(endpoints) > 0:
		return []item{news(resolve.Update{Kind: resolve.Add, Endpoints: endpoints})}
	case f.is("one by one when back"):
		return oneByOne(endpoints)
	case f.is("empties when back"):
		return []item{news(resolve.Update{Kind: resolve.Empty}), news(whole(&t.known))}
	}
	return f.spoil(whole(&t.known), resolve.Diff{})
}

func (f *fake) reject(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topic(target).rejected = true
}

// spoil applies a fault to an update.
func (f *fake) spoil(u resolve.Update, d resolve.Diff) []item {
	switch {
	case f.is("never removes") && u.Kind == resolve.Replace:
		u.Kind = resolve.Add
	case f.is("add replaces") && u.Kind == resolve.Add:
		u.Kind = resolve.Replace
	case f.is("empty as does not exist") && u.Kind == resolve.Empty:
		u.Kind = resolve.DoesNotExist
	case f.is("does not exist as empty") && u.Kind == resolve.DoesNotExist:
		u.Kind = resolve.Empty
	case f.is("drops removes") && u.Kind == resolve.Remove,
		f.is("drops empty") && u.Kind == resolve.Empty,
		f.is("drops does not exist") && u.Kind == resolve.DoesNotExist,
		f.is("drops changed labels") && len(d.Changed) > 0,
		f.is("drops changed IDs") && d.Before == resolve.StateExists && len(d.Added) == 1 && len(d.Removed) == 1:
		return nil
	case f.is("empties first") && d.Before == resolve.StateExists:
		return []item{news(resolve.Update{Kind: resolve.Empty}), news(u)}
	case f.is("errors with updates"):
		return []item{{u, errBroken}}
	case f.is("items of nothing"):
		return []item{{}, news(u)}
	case f.is("final error for news"):
		return []item{{err: resolve.ErrUnresolvable}, news(u)}
	}
	return []item{news(u)}
}

func news(u resolve.Update) item { return item{update: u} }

// whole returns the complete set in one update.
func whole(s *resolve.Set) resolve.Update {
	switch s.State() {
	case resolve.StateEmpty:
		return resolve.Update{Kind: resolve.Empty}
	case resolve.StateDoesNotExist:
		return resolve.Update{Kind: resolve.DoesNotExist}
	}
	return resolve.Update{Kind: resolve.Replace, Endpoints: s.Endpoints()}
}

func oneByOne(endpoints []resolve.Endpoint) (items []item) {
	for i := range endpoints {
		items = append(items, news(resolve.Update{Kind: resolve.Replace, Endpoints: endpoints[:i+1]}))
	}
	return items
}

// The resolver.

func (f *fake) subscribe(target string) (*topic, *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, own := f.topic(target), &feed{wake: make(chan struct{}, 1)}
	state := t.known.State()
	switch {
	case f.is("streams share what is new") && len(t.feeds) > 0:
		for own = range t.feeds {
			break // any
		}
		own.queue = append(own.queue, news(whole(&t.known)))
	case t.rejected:
		own.queue, own.end = f.refusal(target)
	case t.down:
		own.queue = []item{{err: errBroken}}
	case state == resolve.StatePending,
		f.is("no first answer"),
		f.is("waits for endpoints") && state != resolve.StateExists,
		f.is("does not exist is no answer") && state == resolve.StateDoesNotExist:
	case f.is("one by one"):
		own.queue = oneByOne(t.known.Endpoints())
	case f.is("repeats the first answer") && t.first != nil:
		own.queue = slices.Clone(t.first)
	default:
		own.queue = f.spoil(whole(&t.known), resolve.Diff{})
		t.first = slices.Clone(own.queue)
	}
	t.feeds[own] = true
	return t, own
}

// refusal returns the error for a target that cannot be resolved.
func (f *fake) refusal(target string) (queue []item, end bool) {
	last := item{err: fmt.Errorf("%s: %w", target, resolve.ErrUnresolvable)}
	switch f.fault {
	case "unresolvable in silence":
		return nil, true
	case "unresolvable by another name":
		return []item{{err: errBroken}}, true
	case "unresolvable as does not exist":
		return []item{news(resolve.Update{Kind: resolve.DoesNotExist})}, false
	case "unresolvable twice":
		return []item{last, last}, true
	case "goes on after unresolvable":
		return []item{last}, false
	}
	return []item{last}, true
}

func (f *fake) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	subscribe := func() (*topic, *feed) { return f.subscribe(target) }
	switch f.fault {
	case "subscribes in Resolve":
		t, own := subscribe()
		subscribe = func() (*topic, *feed) { return t, own }
	case "starts a goroutine in Resolve":
		go func() {
			select {
			case <-ctx.Done():
			case <-f.release:
			}
		}()
	}
	return func(yield func(resolve.Update, error) bool) {
		if f.is("ends late") {
			defer time.Sleep(4 * time.Second)
		}
		if ctx.Err() != nil && !f.is("misses a context that is done before") {
			return
		}
		t, own := subscribe()
		defer f.unsubscribe(t, own)
		if f.is("leaves a goroutine") {
			go func() { <-f.release }()
		}
		yield, release := f.hold(yield)
		defer release()
		for done := f.done(ctx); ; {
			it, ok := f.take(done, t, own)
			if !ok {
				f.afterContext(yield)
				return
			}
			if !yield(it.update, it.err) {
				f.afterBreak(yield)
				return
			}
			if f.is("misses a context that ends before the first answer") {
				done = ctx.Done()
			}
			switch {
			case f.is("ends after the first answer"):
				return
			case f.is("misses a context that ends in the loop") && ctx.Err() != nil,
				f.is("misses a context that ends in an outage") && it.err != nil:
				done = nil
			}
		}
	}
}

// done is the channel that ends the wait of take.
func (f *fake) done(ctx context.Context) <-chan struct{} {
	if f.is("ignores its context") || f.is("misses a context that ends before the first answer") ||
		f.is("misses a context that is done before") && ctx.Err() != nil {
		return nil
	}
	return ctx.Done()
}

// hold acquires a resource for the loop of the consumer. Some faults release it
// only if the loop ends normally.
func (f *fake) hold(yield func(resolve.Update, error) bool) (
	held func(resolve.Update, error) bool, release func(),
) {
	if f.is("swallows panics") {
		return yield, func() { _ = recover() }
	}
	if !f.is("leaves a goroutine after a panic") {
		return yield, func() {}
	}
	return func(u resolve.Update, err error) bool {
		inLoop := make(chan struct{})
		go func() {
			select {
			case <-inLoop:
			case <-f.release:
			}
		}()
		more := yield(u, err)
		close(inLoop)
		return more
	}, func() {}
}

func (f *fake) afterContext(yield func(resolve.Update, error) bool) {
	switch f.fault {
	case "empties when its context ends":
		for yield(resolve.Update{Kind: resolve.Empty}, nil) {
		}
	case "unresolvable when its context ends":
		yield(resolve.Update{}, resolve.ErrUnresolvable)
	}
}

func (f *fake) afterBreak(yield func(resolve.Update, error) bool) {
	switch f.fault {
	case "yields after a break":
		yield(resolve.Update{Kind: resolve.Empty}, nil)
	case "waits after a break":
		<-f.release
	case "leaves a goroutine after a break":
		go func() { <-f.release }()
	}
}

func (f *fake) take(done <-chan struct{}, t *topic, from *feed) (it item, ok bool) {
	for {
		f.mu.Lock()
		mayTake := !f.is("waits for the slowest") || t.isSlowest(from)
		if len(from.queue) > 0 && mayTake {
			if f.is("newest first") {
				slices.Reverse(from.queue)
			}
			it, from.queue = from.queue[0], from.queue[1:]
			if f.is("newest first") {
				slices.Reverse(from.queue)
			}
			f.mu.Unlock()
			return it, true
		}
		end := from.end
		f.mu.Unlock()
		if end {
			return item{}, false
		}
		select {
		case <-from.wake:
		case <-done:
			return item{}, false
		case <-f.release:
			return item{}, false
		}
	}
}

func (t *topic) isSlowest(f *feed) bool {
	for other := range t.feeds {
		if len(other.queue) > len(f.queue) {
			return false
		}
	}
	return true
}

func (f *fake) unsubscribe(t *topic, own *feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(t.feeds, own)
	if f.is("streams end together") {
		clear(t.feeds)
	}
}
