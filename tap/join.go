package tap

import "container/list"

// Joiner tells you which events belong to the same request or connection. The events of all requests
// arrive mixed, but most programs want one record of each request: how it began, its status, and how
// long it took. From the first event of a request to its last, a Joiner keeps a value of your choice,
// usually a pointer to such a record:
//
//	var requests tap.Joiner[*record]
//	for e := range registry.Watch(ctx, match) {
//		r, ok := requests.Join("", &e, func() (*record, bool) { return &record{}, true })
//		if ok {
//			r.add(&e)
//		}
//	}
//
// The zero value is ready to use. A Joiner is not safe for concurrent use.
type Joiner[V any] struct {
	// Limit is how many requests and connections may be open at once. 0 means 10 000. If there are
	// more, the oldest is given up, because its last event may have been dropped.
	Limit int
	// GiveUp is called with the value of the oldest one before it is given up. If it returns false,
	// the oldest one stays, and the new request is left out. nil means that each is given up.
	GiveUp func(V) bool

	open  map[joinKey]*list.Element
	order list.List // of *joined[V], the oldest first
}

// joinKey identifies a request or connection. The StreamID alone is not sufficient, because processes
// number their requests independently of each other.
type joinKey struct {
	process string
	id      StreamID
}

// joined is a request or connection that is open, with its value.
type joined[V any] struct {
	key   joinKey
	value V
}

// Join returns the value of the request or connection that e is about. process is the name of the
// process that reported e; it may be "" if there is only one. For the first event of a request, Join
// calls begin, which returns the new value, or false to leave out the request. After the last event, the
// value is forgotten. Join returns false for events of a request that was left out or given up or whose
// first event was not seen, and for a report of dropped events.
func (j *Joiner[V]) Join(process string, e *Event, begin func() (V, bool)) (value V, ok bool) {
	key := joinKey{process, e.ID}
	first := e.RequestInit != nil || e.Open != nil
	last := e.ResponseEnd != nil || e.Close != nil
	element := j.open[key]
	if element != nil && first { // the process was restarted, and begins again with the same numbers
		j.remove(element)
		element = nil
	}
	if element != nil {
		if last {
			j.remove(element)
		}
		return element.Value.(*joined[V]).value, true
	}
	if !first && e.Close == nil { // the only event of a connection that could not be opened is its Close
		return value, false
	}
	if !last && !j.makeRoom() {
		return value, false
	}
	if value, ok = begin(); ok && !last {
		if j.open == nil {
			j.open = make(map[joinKey]*list.Element)
		}
		j.open[key] = j.order.PushBack(&joined[V]{key, value})
	}
	return value, ok
}

// Len returns how many requests and connections are open.
func (j *Joiner[V]) Len() int { return len(j.open) }

// makeRoom gives up the oldest request if there are too many. It returns false if that one must stay.
func (j *Joiner[V]) makeRoom() bool {
	limit := j.Limit
	if limit == 0 {
		limit = defaultJoined
	}
	if len(j.open) < limit {
		return true
	}
	oldest := j.order.Front()
	if j.GiveUp != nil && !j.GiveUp(oldest.Value.(*joined[V]).value) {
		return false
	}
	j.remove(oldest)
	return true
}

// remove forgets an open request.
func (j *Joiner[V]) remove(element *list.Element) {
	delete(j.open, j.order.Remove(element).(*joined[V]).key)
}

const defaultJoined = 10_000 // requests; with 100 bytes each, they take about a megabyte
