package kit

import (
	"errors"
	"slices"
	"sync"

	"github.com/go-kit/kit/sd"

	"github.com/gotower/gotower/resolve"
)

var errAway = errors.New("registry is away")

// registry is a scripted source of Instancers. Like those of go-kit, they send while
// they hold a lock that Register and Deregister need. A reader that stops reading
// before it deregisters blocks forever.
type registry struct {
	mu      sync.Mutex
	targets map[string]sd.Event
	live    map[*scripted]string // that were made and not stopped, with their target
	made    int
	late    map[string]bool // targets with withheld events
	reject  map[string]bool
}

type scripted struct {
	registry *registry
	mu       sync.Mutex
	queue    []sd.Event
	sending  bool
	channels []chan<- sd.Event
}

func newRegistry() *registry {
	return &registry{
		targets: make(map[string]sd.Event), live: make(map[*scripted]string),
		late: make(map[string]bool), reject: make(map[string]bool),
	}
}

func (r *registry) make(target string) (sd.Instancer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reject[target] {
		return nil, resolve.ErrUnresolvable
	}
	s := &scripted{registry: r}
	r.live[s] = target
	r.made++
	return s, nil
}

// say makes an event what a target's Instancers say, without waiting for any.
func (r *registry) say(target string, e sd.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets[target] = e
	for s, of := range r.live {
		if of == target && !r.late[target] {
			s.send(e)
		}
	}
}

func (r *registry) set(target string, endpoints ...resolve.Endpoint) {
	instances := []string{}
	for _, e := range endpoints {
		instances = append(instances, e.Addr.String())
	}
	r.say(target, sd.Event{Instances: instances})
}

// interrupt makes Instancers send an error. They send the changes of the function meanwhile after
// the error.
func (r *registry) interrupt(target string, meanwhile func()) {
	r.mu.Lock()
	before := r.targets[target]
	r.mu.Unlock()
	r.say(target, sd.Event{Err: errAway})
	r.mu.Lock()
	r.late[target], r.targets[target] = true, before
	r.mu.Unlock()
	meanwhile()
	r.mu.Lock()
	r.late[target] = false
	now := r.targets[target]
	r.mu.Unlock()
	r.say(target, now)
}

func (r *registry) count() (live, made int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.live), r.made
}

// send queues an event; a goroutine is there while there is something to send.
func (s *scripted) send(e sd.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	if !s.sending {
		s.sending = true
		go s.drain()
	}
}

func (s *scripted) drain() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.sending = false
			s.mu.Unlock()
			return
		}
		e := s.queue[0]
		s.queue = s.queue[1:]
		for _, ch := range s.channels {
			ch <- e
		}
		s.mu.Unlock()
	}
}

func (s *scripted) Register(ch chan<- sd.Event) {
	s.registry.mu.Lock()
	e, ok := s.registry.targets[s.registry.live[s]]
	s.registry.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = append(s.channels, ch)
	if ok {
		ch <- e
	}
}

func (s *scripted) Deregister(ch chan<- sd.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = slices.DeleteFunc(s.channels, func(c chan<- sd.Event) bool { return c == ch })
}

func (s *scripted) Stop() {
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	delete(s.registry.live, s)
}
