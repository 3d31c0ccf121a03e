package h2

import "github.com/gotower/gotower/layer/httplayer/internal/message"

const (
	mediumBuffer = 16 << 10 // first size of the output
	largeBuffer  = 64 << 10 // largest size of a pool
)

// grown returns a buffer with b's bytes and room for n more: b itself if there is enough room, and
// otherwise a larger copy, for which it releases b. The size grows by a factor of four up to
// largeBuffer, because each step copies all bytes.
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
	offset      int // bytes of first that have been read
	n           int // unread bytes
}

// write copies p to the end of the queue. It fills the last buffer before it takes another one from
// the pool.
func (q *queue) write(p []byte) {
	q.n += len(p)
	for len(p) > 0 {
		if q.last == nil || len(q.last.B) == cap(q.last.B) {
			// A buffer of the size that is needed now, since many bodies arrive in a single frame.
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

// read moves up to len(p) bytes from the queue to p, and returns their number. It never waits.
// Buffers that have been read completely go back to the pool.
func (q *queue) read(p []byte) (n int) {
	for q.first != nil && n < len(p) {
		k := copy(p[n:], q.first.B[q.offset:])
		n += k
		// This buffer is used up: go on with the next one, and give it back.
		if q.offset += k; q.offset == len(q.first.B) {
			b := q.first
			if q.first, q.offset = b.Next, 0; q.first == nil {
				q.last = nil
			}
			b.Release()
		}
	}
	q.n -= n
	return n
}

// clear drops all unread bytes and returns the buffers to the pool.
func (q *queue) clear() {
	for b := q.first; b != nil; {
		next := b.Next
		b.Release()
		b = next
	}
	*q = queue{}
}
