package message_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// sizes is a reader. Each Read returns as many bytes as the next element, at most the size of p,
// which it appends to rooms.
type sizes struct{ left, rooms []int }

func (s *sizes) Read(p []byte) (int, error) {
	if s.rooms = append(s.rooms, len(p)); len(s.left) == 0 {
		return 0, io.EOF
	}
	n := min(s.left[0], len(p))
	s.left = s.left[1:]
	return n, nil
}

// A copy that waits after a small message keeps a small buffer only.
func TestCopyBuffer(t *testing.T) {
	src := &sizes{left: []int{100, 1 << 20, 1 << 20, 5000, 100}}
	n, err := message.Copy(io.Discard, src, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 100+2<<10+32<<10+5000+100, n)
	assert.Equal(t, []int{2 << 10, 2 << 10, 32 << 10, 32 << 10, 32 << 10, 2 << 10}, src.rooms)
}
