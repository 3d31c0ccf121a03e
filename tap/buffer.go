package tap

import "sync/atomic"

// maxText bounds the text in a buffer, and with it the memory of a watcher:
// with 400 events of its own it stays below 1 MiB.
const maxText = 768 << 10

// buffer holds the unread events of a watcher, and the requests that are kept
// until their outcome is known. Writers never wait.
type buffer struct {
	events chan Event
	room   atomic.Int64 // bytes of text that still fit
	held   atomic.Int64 // requests
}

func newBuffer(events int) *buffer {
	b := &buffer{events: make(chan Event, events)}
	b.room.Store(maxText)
	return b
}

// reserve reports whether n bytes fit, and reserves them until release.
func (b *buffer) reserve(n int64) bool {
	if b.room.Add(-n) < 0 {
		b.room.Add(n)
		return false
	}
	return true
}

func (b *buffer) release(n int64) { b.room.Add(n) }

// offer reports whether e fits, and adds it.
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

// took releases the room of an event that was received from events.
func (b *buffer) took(e Event) { b.release(e.weight()) }

// hold reports whether one more request of n bytes can be held until its end. There
// may be as many of them as events.
func (b *buffer) hold(n int64) bool {
	if b.held.Add(1) > int64(cap(b.events)) || !b.reserve(n) {
		b.held.Add(-1)
		return false
	}
	return true
}

// unhold releases a held request.
func (b *buffer) unhold(n int64) {
	b.release(n)
	b.held.Add(-1)
}
