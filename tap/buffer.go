package tap

import "sync/atomic"

// maxText bounds the text in a buffer, and with it the memory of a watcher:
// with 400 events of its own it stays below 1 MiB.
const maxText = 768 << 10

// buffer is what a watcher has not read yet. Writers never wait.
type buffer struct {
	events chan Event
	room   atomic.Int64 // bytes of text that still fit
}

func newBuffer(events int) *buffer {
	b := &buffer{events: make(chan Event, events)}
	b.room.Store(maxText)
	return b
}

// offer reports whether e fitted.
func (b *buffer) offer(e Event) bool {
	n := e.weight()
	if b.room.Add(-n) < 0 {
		b.room.Add(n)
		return false
	}
	select {
	case b.events <- e:
		return true
	default:
		b.room.Add(n)
		return false
	}
}

// took is told of each event that was received from events.
func (b *buffer) took(e Event) { b.room.Add(e.weight()) }
