package tap

import "sync/atomic"

// maxText is the limit of the text in one buffer, in bytes. With this limit, a watcher with
// 400 events takes less than 1 MiB.
const maxText = 768 << 10

// buffer holds the events of one watcher until they are sent. Adding an event never waits: if it does
// not fit, it is dropped. The buffer also counts and limits the held requests, whose events are kept
// back until the request's outcome is known.
type buffer struct {
	events chan Event
	room   atomic.Int64 // bytes of text that still fit
	held   atomic.Int64 // number of held requests
}

// newBuffer returns a buffer for this number of events, whose texts have at most maxText bytes together.
func newBuffer(events int) *buffer {
	b := &buffer{events: make(chan Event, events)}
	b.room.Store(maxText)
	return b
}

// reserve reserves room for n bytes of text. It returns false, and reserves nothing, if the
// bytes do not fit. The caller must later return the room with release.
func (b *buffer) reserve(n int64) bool {
	if b.room.Add(-n) < 0 {
		b.room.Add(n)
		return false
	}
	return true
}

// release returns room for n bytes that reserve has reserved.
func (b *buffer) release(n int64) { b.room.Add(n) }

// offer adds e to the buffer. It returns false, and adds nothing, if e does not fit.
func (b *buffer) offer(e Event) bool {
	n := e.weight()
	if !b.reserve(n) {
		return false
	}
	// A full channel must not delay the request, so the event is dropped.
	select {
	case b.events <- e:
		return true
	default:
		b.release(n)
		return false
	}
}

// releaseEvent releases the room that offer reserved for e. It is called after e was
// received from the channel events.
func (b *buffer) releaseEvent(e Event) { b.release(e.weight()) }

// hold counts a held request, reserves n bytes for it, and returns true. It returns false and
// changes nothing if the bytes do not fit, or if as many requests are held as fit into the
// channel events.
func (b *buffer) hold(n int64) bool {
	if b.held.Add(1) > int64(cap(b.events)) || !b.reserve(n) {
		b.held.Add(-1)
		return false
	}
	return true
}

// unhold reverses hold: the request no longer counts as held, and its n bytes are released.
func (b *buffer) unhold(n int64) {
	b.release(n)
	b.held.Add(-1)
}
