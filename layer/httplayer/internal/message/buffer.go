package message

import (
	"math/bits"
	"sync"
)

// Buffer is memory for bytes of messages, which [GetBuffer] takes from a pool and Release gives back.
type Buffer struct {
	B    []byte
	Next *Buffer // next buffer of a list; nil in the pool
}

const leastBuffer = 2 << 10

// Pools holds the pools of buffers. Each size is twice the size before it.
var Pools = []*sync.Pool{
	newPool(leastBuffer), newPool(4 << 10), newPool(8 << 10), newPool(16 << 10), newPool(32 << 10), newPool(64 << 10),
}

func newPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any { return &Buffer{B: make([]byte, 0, size)} }}
}

// GetBuffer returns an empty buffer with room for n bytes. Up to 64 KiB it comes from a pool.
func GetBuffer(n int) *Buffer {
	countBuffers(1)
	// The class is the index of the first pool whose buffers have room for n bytes.
	class := bits.Len(uint(max(n, leastBuffer)-1) / leastBuffer)
	if class >= len(Pools) {
		return &Buffer{B: make([]byte, 0, n)}
	}
	return Pools[class].Get().(*Buffer) //nolint:errcheck,forcetypeassert // the pools have nothing else
}

// Release gives b back to the pool, after which the caller must not use it. B may have been replaced by
// a larger slice, so the pool is chosen by its capacity. A buffer much larger than 64 KiB is left to
// the garbage collector. Release does nothing if b is nil, or if B is smaller than any pooled buffer.
func (b *Buffer) Release() {
	if b == nil || cap(b.B) < leastBuffer {
		return
	}
	countBuffers(-1)
	// The class is the index of the last pool whose buffers are not larger than this one.
	if class := bits.Len(uint(cap(b.B)/leastBuffer)) - 1; class < len(Pools) {
		b.B, b.Next = b.B[:0:leastBuffer<<class], nil
		Pools[class].Put(b)
	}
}
