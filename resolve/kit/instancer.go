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

// Instancer returns a go-kit Instancer for the endpoints to which r resolves target. It
// runs until ctx ends or Stop is called. Stop returns when all goroutines have ended.
//
// A registered channel receives the current set and each later one, as a sorted list of
// "10.0.0.1:80" or "[fd00::1]:80". A target that is empty or does not exist has no instances.
// An error of r is sent as an event, and the next update is sent even if nothing has changed. A
// slow reader receives only the latest event. After Deregister nothing is sent, and the channel
// may be closed. Registering a channel twice, or after Stop, has no effect.
//
// Instancer panics if r is nil. A panic of r is sent as its last error.
func Instancer(ctx context.Context, r resolve.Resolver, target string) sd.Instancer {
	if r == nil {
		panic("kit: nil resolver")
	}
	ctx, cancel := context.WithCancel(ctx)
	i := &instancer{
		events: newEvents(), ended: ctx.Done(), cancel: cancel,
		listeners: make(map[chan<- sd.Event]*listener),
	}
	i.running.Go(func() { i.watch(ctx, r, target) })
	return i
}

type instancer struct {
	*events

	ended   <-chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.Mutex
	stopped   bool
	listeners map[chan<- sd.Event]*listener
}

// listener ends the sending to one channel.
type listener struct{ quit, done chan struct{} }

// watch follows r until ctx or r ends. It adds a panic of r as the last error.
func (i *instancer) watch(ctx context.Context, r resolve.Resolver, target string) {
	if err := panics.Contain(func() { i.follow(ctx, r, target) }); err != nil {
		i.add(sd.Event{Err: fmt.Errorf("kit: resolve %q: %w", target, err)})
	}
}

func (i *instancer) follow(ctx context.Context, r resolve.Resolver, target string) {
	var set resolve.Set
	for u, err := range r.Resolve(ctx, target) {
		if err != nil {
			i.add(sd.Event{Err: err})
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
		i.add(sd.Event{Instances: instances})
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
			e.Instances = slices.Clone(e.Instances) // because go-kit's listeners sort it
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

// events has the latest events. Any number of readers read them, and it does not wait for them.
type events struct {
	mu      sync.Mutex
	count   uint64
	good    event // the latest event with instances
	bad     event // the latest event with an error
	changed chan struct{}
}

// event is an event of an Instancer with its number, from 1.
type event struct {
	sd.Event
	number uint64
}

func newEvents() *events { return &events{changed: make(chan struct{})} }

// add stores e as the latest event of its kind and wakes the readers.
func (b *events) add(e sd.Event) {
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

// after returns the latest events with a number above seen, in order, and a channel
// that is closed at the next event. If seen is 0, it omits an error that is over.
func (b *events) after(seen uint64) ([]event, <-chan struct{}) {
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
