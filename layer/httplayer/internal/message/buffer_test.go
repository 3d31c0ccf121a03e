package message_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// A buffer has the least size with enough room, also after its owner has enlarged it.
func TestBufferSize(t *testing.T) {
	for n, size := range map[int]int{
		0: 2 << 10, 2 << 10: 2 << 10, 2<<10 + 1: 4 << 10, 5000: 8 << 10, 16 << 10: 16 << 10, 20_000: 32 << 10,
		64 << 10: 64 << 10, 64<<10 + 1: 64<<10 + 1, 1 << 20: 1 << 20,
	} {
		for range 3 {
			b := message.GetBuffer(n)
			assert.Empty(t, b.B)
			assert.Equal(t, size, cap(b.B), n)
			b.B = append(b.B, make([]byte, size+size/4)...)
			b.Release()
		}
	}
}
