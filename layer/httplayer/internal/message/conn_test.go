package message_test

import (
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

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

// sender is a connection on which a byte arrives after each pause, as long as more are left.
type sender struct {
	net.Conn

	pause    time.Duration
	left     int
	deadline time.Time
}

func (*sender) CloseWrite() error { return nil }

func (s *sender) SetReadDeadline(t time.Time) error {
	s.deadline = t
	return nil
}

func (s *sender) Read([]byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(min(s.pause, time.Until(s.deadline)))
	if !time.Now().Before(s.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	s.left--
	return 1, nil
}

// A peer that is still sending can send everything before it reads the last output.
func TestLinger(t *testing.T) {
	for name, tt := range map[string]struct {
		pause   time.Duration
		left    int
		longest time.Duration
		limit   int64
		want    time.Duration
	}{
		"sends for ten seconds": {100 * time.Millisecond, 100, message.UploadTime, 1 << 20, 10 * time.Second},
		"sends endlessly":       {100 * time.Millisecond, 1 << 20, message.UploadTime, 1 << 20, 30 * time.Second},
		"sends too much":        {100 * time.Millisecond, 1 << 20, message.UploadTime, 5, 500 * time.Millisecond},
		"gets a short time":     {100 * time.Millisecond, 1 << 20, message.LingerTime, 1 << 20, 500 * time.Millisecond},
		"is silent":             {time.Hour, 1, message.UploadTime, 1 << 20, 500 * time.Millisecond},
		"has ended":             {0, 0, message.UploadTime, 1 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				message.Linger(&sender{pause: tt.pause, left: tt.left}, tt.longest, tt.limit)
				assert.Equal(t, tt.want, time.Since(start))
			})
		})
	}
}
