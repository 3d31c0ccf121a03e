package tap

import "sync/atomic"

// maxText is the limit of the text in one buffer, in bytes. With it, a watcher with 400
// events takes less than 1 MiB.
const maxText = 768 << 10

// buffer holds the unread events of a watcher. It also counts the requests that are
// held until their outcome is known. Writers never wait.
type buffer struct {
	events chan Event
	room   atomic.Int64 // bytes of text that still fit
	held   atomic.Int64 // number of held requests
}

func newBuffer(events int) *buffer {
	b := &buffer{events: make(chan Event, events)}
	b.room.Store(maxText)
	return b
}

// reserve reserves n bytes of text until release. It returns false if they do not fit.
func (b *buffer) reserve(n int64) bool {
	if b.room.Add(-n) < 0 {
		b.room.Add(n)
		return false
	}
	return true
}

func (b *buffer) release(n int64) { b.room.Add(n) }

// offer adds e. It returns false if e does not fit.
func (b *buffer) offer(e Event) bool {
	n := e.weight()
	if !b.reserve(n) {
		return false
	}
	select {
	case b.events <- e:
		return true
	default:
		b.release(n)
		return false
	}
}

// releaseEvent releases the bytes of an event that was received from events.
func (b *buffer) releaseEvent(e Event) { b.release(e.weight()) }

// hold reserves n bytes for a request that is held until its end. It returns false if
// they do not fit, or if as many requests as events are held.
func (b *buffer) hold(n int64) bool {
	if b.held.Add(1) > int64(cap(b.events)) || !b.reserve(n) {
		b.held.Add(-1)
		return false
	}
	return true
}

// unhold undoes hold.
func (b *buffer) unhold(n int64) {
	b.release(n)
	b.held.Add(-1)
}
