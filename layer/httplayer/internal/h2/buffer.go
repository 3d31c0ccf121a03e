package h2

import "github.com/gotower/gotower/layer/httplayer/internal/message"

const (
	mediumBuffer = 16 << 10 // first size of the output
	largeBuffer  = 64 << 10 // largest size of a pool
)

// grown returns a buffer that has the bytes of b and room for n more bytes. If b has enough
// room, grown returns b. Otherwise it copies the bytes to a larger buffer and releases b. The
// size increases by a factor of four up to largeBuffer, because each step copies all bytes.
func grown(b *message.Buffer, n int) *message.Buffer {
	if cap(b.B)-len(b.B) >= n {
		return b
	}
	larger := message.GetBuffer(max(len(b.B)+n, min(4*cap(b.B), largeBuffer)))
	larger.B = append(larger.B, b.B...)
	b.Release()
	return larger
}

// queue is a linked list of buffers with received bytes.
type queue struct {
	first, last *message.Buffer
	off         int // bytes of first that have been read
	n           int // unread bytes
}

// write appends p to the queue.
func (q *queue) write(p []byte) {
	q.n += len(p)
	for len(p) > 0 {
		if q.last == nil || len(q.last.B) == cap(q.last.B) {
			b := message.GetBuffer(min(len(p), largeBuffer))
			if q.last == nil {
				q.first = b
			} else {
				q.last.Next = b
			}
			q.last = b
		}
		k := min(len(p), cap(q.last.B)-len(q.last.B))
		q.last.B = append(q.last.B, p[:k]...)
		p = p[k:]
	}
}

// read moves bytes from the queue to p, and returns their number.
func (q *queue) read(p []byte) (n int) {
	for q.first != nil && n < len(p) {
		k := copy(p[n:], q.first.B[q.off:])
		n += k
		if q.off += k; q.off == len(q.first.B) {
			b := q.first
			if q.first, q.off = b.Next, 0; q.first == nil {
				q.last = nil
			}
			b.Release()
		}
	}
	q.n -= n
	return n
}

// clear drops all bytes and releases the buffers.
func (q *queue) clear() {
	for b := q.first; b != nil; {
		next := b.Next
		b.Release()
		b = next
	}
	*q = queue{}
}
