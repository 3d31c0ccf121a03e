package h2

import (
	"encoding/binary"
	"sync"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// buffer is a pooled byte slice. The first off bytes have been read.
type buffer struct {
	b    []byte
	off  int
	next *buffer // next buffer of a queue
}

const (
	smallBuffer  = 2 << 10
	mediumBuffer = 16 << 10
	largeBuffer  = 64 << 10
)

var (
	smallBuffers  = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, smallBuffer)} }}
	mediumBuffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, mediumBuffer)} }}
	largeBuffers  = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, largeBuffer)} }}
)

// newBuffer returns an empty buffer from a pool. It has room for n bytes or more. If n is
// above 64 KiB, it has room for 64 KiB.
func newBuffer(n int) *buffer {
	message.CountBuffers(1)
	pool := &largeBuffers
	switch {
	case n <= smallBuffer:
		pool = &smallBuffers
	case n <= mediumBuffer:
		pool = &mediumBuffers
	}
	return pool.Get().(*buffer) //nolint:errcheck,forcetypeassert // the pools have nothing else
}

// release returns the buffer to its pool. It does nothing for a nil buffer.
func (b *buffer) release() {
	if b == nil {
		return
	}
	message.CountBuffers(-1)
	b.b, b.off, b.next = b.b[:0], 0, nil
	switch c := cap(b.b); {
	case c > 2*largeBuffer || c < smallBuffer:
	case c >= largeBuffer:
		largeBuffers.Put(b)
	case c >= mediumBuffer:
		mediumBuffers.Put(b)
	default:
		smallBuffers.Put(b)
	}
}

// unread returns the bytes that have not been read. It returns nil for a nil buffer.
func (b *buffer) unread() []byte {
	if b == nil {
		return nil
	}
	return b.b[b.off:]
}

// grown returns a buffer that has the unread bytes of b and room for n more bytes. If b has
// enough room, grown returns b. Otherwise it copies the unread bytes to a new buffer and
// releases b.
func (b *buffer) grown(n int) *buffer {
	if cap(b.b)-len(b.b) >= n {
		return b
	}
	rest := b.unread()
	larger := newBuffer(len(rest) + n)
	larger.b = append(larger.b, rest...)
	b.release()
	return larger
}

// queue is a linked list of buffers with received bytes.
type queue struct {
	first, last *buffer
	n           int // unread bytes
}

// write appends p to the queue.
func (q *queue) write(p []byte) {
	q.n += len(p)
	for len(p) > 0 {
		if q.last == nil || len(q.last.b) == cap(q.last.b) {
			b := newBuffer(len(p))
			if q.last == nil {
				q.first = b
			} else {
				q.last.next = b
			}
			q.last = b
		}
		k := min(len(p), cap(q.last.b)-len(q.last.b))
		q.last.b = append(q.last.b, p[:k]...)
		p = p[k:]
	}
}

// read moves bytes from the queue to p, and returns their number.
func (q *queue) read(p []byte) (n int) {
	for q.first != nil && n < len(p) {
		k := copy(p[n:], q.first.unread())
		n += k
		if q.first.off += k; q.first.off == len(q.first.b) {
			b := q.first
			if q.first = b.next; q.first == nil {
				q.last = nil
			}
			b.release()
		}
	}
	q.n -= n
	return n
}

// clear drops all bytes and releases the buffers.
func (q *queue) clear() {
	for b := q.first; b != nil; {
		next := b.next
		b.release()
		b = next
	}
	*q = queue{}
}

// The following methods append frames.

func (b *buffer) frame(n int, typ, flags byte, id uint32) {
	b.b = appendFrame(b.b, n, typ, flags, id)
}

func appendFrame(p []byte, n int, typ, flags byte, id uint32) []byte {
	return append(p, byte(n>>16), byte(n>>8), byte(n), typ, flags,
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// control appends a frame with a payload of 32-bit numbers.
func (b *buffer) control(typ, flags byte, id uint32, payload ...uint32) {
	b.frame(4*len(payload), typ, flags, id)
	for _, v := range payload {
		b.b = binary.BigEndian.AppendUint32(b.b, v)
	}
}

func (b *buffer) windowUpdate(id uint32, n int64) { b.control(frameWindowUpdate, 0, id, uint32(n)) }

func (b *buffer) ping(flags byte, data uint64) {
	b.control(framePing, flags, 0, uint32(data>>32), uint32(data))
}

func (b *buffer) goAway(last, code uint32, reason string) {
	b.frame(8+len(reason), frameGoAway, 0, 0)
	b.b = binary.BigEndian.AppendUint64(b.b, uint64(last)<<32|uint64(code))
	b.b = append(b.b, reason...)
}

type setting struct {
	id    uint16
	value uint32
}

func (b *buffer) settings(list ...setting) {
	b.frame(6*len(list), frameSettings, 0, 0)
	for _, s := range list {
		b.b = binary.BigEndian.AppendUint16(b.b, s.id)
		b.b = binary.BigEndian.AppendUint32(b.b, s.value)
	}
}
