package kit

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/resolve"
)

// Instancer makes a go-kit Instancer of what r says of target. It watches the
// target, however few listen, until ctx ends or Stop is called, which returns
// when all is let go.
//
// A channel that is registered gets the current set as soon as there is one,
// and each later one: "10.0.0.1:80" or "[fd00::1]:80", in the order of the
// addresses. A target that is empty or does not exist has no instances. An
// error of r is an event with that error, after which the next update is sent
// even if it changes nothing. A channel whose reader is slow delays nobody and
// gets the latest. When Deregister has returned, nothing more is sent, and the
// channel may be closed. To register a channel again, or after Stop, does
// nothing. A nil r panics. If r itself panics, that is its last error: an event
// with a [layer.PanicError].
func Instancer(ctx context.Context, r resolve.Resolver, target string) sd.Instancer {
	if r == nil {
		panic("kit: nil resolver")
	}
	ctx, cancel := context.WithCancel(ctx)
	i := &instancer{
		board: newBoard(), ended: ctx.Done(), cancel: cancel,
		listeners: make(map[chan<- sd.Event]*listener),
	}
	i.running.Go(func() { i.watch(ctx, r, target) })
	return i
}

type instancer struct {
	*board

	ended   <-chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.Mutex
	stopped   bool
	listeners map[chan<- sd.Event]*listener
}

// listener sends to one channel.
type listener struct{ quit, done chan struct{} }

// watch follows r. Its panic is its last error.
func (i *instancer) watch(ctx context.Context, r resolve.Resolver, target string) {
	if err := panics.Contain(func() { i.follow(ctx, r, target) }); err != nil {
		i.note(sd.Event{Err: fmt.Errorf("kit: resolve %q: %w", target, err)})
	}
}

func (i *instancer) follow(ctx context.Context, r resolve.Resolver, target string) {
	var set resolve.Set
	for u, err := range r.Resolve(ctx, target) {
		if err != nil {
			i.note(sd.Event{Err: err})
			continue
		}
		set.Apply(u)
		if set.State() == resolve.StatePending {
			continue
		}
		instances := make([]string, 0, set.Len())
		for _, e := range set.Endpoints() {
			instances = append(instances, e.Addr.String())
		}
		i.note(sd.Event{Instances: instances})
	}
}

// Register implements sd.Instancer.
func (i *instancer) Register(to chan<- sd.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped || i.listeners[to] != nil {
		return
	}
	l := &listener{quit: make(chan struct{}), done: make(chan struct{})}
	i.listeners[to] = l
	i.running.Go(func() { i.forward(to, l) })
}

func (i *instancer) forward(to chan<- sd.Event, l *listener) {
	defer close(l.done)
	var seen uint64
	for {
		fresh, changed := i.after(seen)
		for _, e := range fresh {
			seen = e.number
			e.Instances = slices.Clone(e.Instances) // go-kit's listeners sort what they get
			select {
			case to <- e.Event:
			case <-l.quit:
				return
			case <-i.ended:
				return
			}
		}
		select {
		case <-changed:
		case <-l.quit:
			return
		case <-i.ended:
			return
		}
	}
}

// Deregister implements sd.Instancer.
func (i *instancer) Deregister(to chan<- sd.Event) {
	i.mu.Lock()
	l := i.listeners[to]
	delete(i.listeners, to)
	i.mu.Unlock()
	if l != nil {
		close(l.quit)
		<-l.done
	}
}

// Stop implements sd.Instancer.
func (i *instancer) Stop() {
	i.mu.Lock()
	i.stopped = true
	i.mu.Unlock()
	i.cancel()
	i.running.Wait()
}

// board holds the latest events for any number of readers, none of which it
// waits for.
type board struct {
	mu      sync.Mutex
	count   uint64
	good    event // the latest with instances
	bad     event // the latest with an error
	changed chan struct{}
}

// event is what an Instancer said, numbered from 1.
type event struct {
	sd.Event
	number uint64
}

func newBoard() *board { return &board{changed: make(chan struct{})} }

// note keeps the latest event of either sort, and wakes the readers.
func (b *board) note(e sd.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	if e.Err != nil {
		b.bad = event{e, b.count}
	} else {
		b.good = event{e, b.count}
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// after returns the latest events that came after the numbered one, in their
// order, and a channel that closes when there are others. A reader that has
// seen nothing is not told of an error that is over.
func (b *board) after(seen uint64) ([]event, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []event{b.good, b.bad}
	if b.bad.number < b.good.number {
		list = []event{b.bad, b.good}
		if seen == 0 {
			list = list[1:]
		}
	}
	var fresh []event
	for _, e := range list {
		if e.number > seen {
			fresh = append(fresh, e)
		}
	}
	return fresh, b.changed
}
