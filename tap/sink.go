package tap

import "slices"

// sink is a watcher of another kind: it has no buffer of events, but counts
// requests on their way. It must not wait, and is called from many goroutines
// at once.
type sink interface {
	// begin is told of a request that is about to be forwarded: about has what
	// is common to its events. Neither is to be changed. What begin returns is
	// told of the end; nil is told nothing.
	begin(about *Event, init *RequestInit) counted
}

// counted is one request in a sink.
type counted interface {
	// end is called once, with the end as a watcher without wishes sees it.
	// Status is that of the response, 0 when there was none.
	end(end *ResponseEnd, status int)
}

// counter is a sink in its registry, and what it wants to be told of.
type counter struct {
	match *condition
	sink  sink
}

// attach tells s of every request that meets match, until detach is called.
// A sink counts as one of those who watch, see [WithCapacity]. Requests in flight
// are told of after detach, too. What (*Registry).filter returns is a match.
func (r *Registry) attach(match *condition, s sink) (detach func(), err error) {
	c := &counter{match: match, sink: s}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(); err != nil {
		return nil, err
	}
	r.counters = append(r.counters, c)
	r.publish()
	return func() { r.detach(c) }, nil
}

func (r *Registry) detach(c *counter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = slices.DeleteFunc(r.counters, func(other *counter) bool { return other == c })
	r.publish()
}
