package httplayer

import (
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// line is a client's body: n bytes, one piece each pause.
type line struct {
	http.ResponseWriter
	n, piece int
	pause    time.Duration

	once *sync.Once
	late chan struct{}
}

func (l *line) Read(p []byte) (int, error) {
	if l.n == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(l.pause):
	case <-l.late:
		return 0, os.ErrDeadlineExceeded
	}
	n := min(l.n, l.piece, len(p))
	l.n -= n
	return n, nil
}

func (l *line) Close() error { return nil }

func (l *line) SetReadDeadline(time.Time) error {
	l.once.Do(func() { close(l.late) })
	return nil
}

func TestBodyPace(t *testing.T) {
	for name, tt := range map[string]struct {
		line  line
		slept time.Duration // of the handler after each piece
		cut   time.Duration // 0 if the body is to come whole
	}{
		"stands":              {line{n: 1 << 20, piece: 1, pause: time.Hour}, 0, 10 * time.Second},
		"a byte each 5 s":     {line{n: 1 << 20, piece: 1, pause: 5 * time.Second}, 0, 10 * time.Second},
		"a byte each second":  {line{n: 1 << 20, piece: 1, pause: time.Second}, 0, 10 * time.Second},
		"1 KB each second":    {line{n: 1 << 20, piece: 1 << 10, pause: time.Second}, 0, 0},
		"4 KB each 9 s":       {line{n: 1 << 20, piece: 4 << 10, pause: 9 * time.Second}, 0, 0},
		"the handler is slow": {line{n: 1 << 10, piece: 100, pause: time.Millisecond}, time.Minute, 0},
		"at once":             {line{n: 1 << 20, piece: 1 << 20, pause: 0}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := tt.line
				l.late, l.once = make(chan struct{}), new(sync.Once)
				want := l.n
				b := &paced{ReadCloser: &l, writer: &l, idle: defaultBodyIdle, rate: defaultBodyRate}
				defer b.stop()
				began, got := time.Now(), 0
				buf := make([]byte, 32<<10)
				var err error
				for err == nil {
					var n int
					n, err = b.Read(buf)
					got += n
					time.Sleep(tt.slept)
				}
				if tt.cut == 0 {
					require.ErrorIs(t, err, io.EOF)
					assert.Equal(t, want, got)
					return
				}
				require.ErrorIs(t, err, layer.ErrIdleTimeout)
				assert.InDelta(t, tt.cut.Seconds(), time.Since(began).Seconds(), tt.cut.Seconds()/10)
			})
		})
	}
}

// After the handler nothing is done to the connection.
func TestBodyPaceStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{n: 10, piece: 1, pause: time.Second, late: make(chan struct{}), once: new(sync.Once)}
		b := &paced{ReadCloser: l, writer: l, idle: 10 * time.Second}
		_, err := b.Read(make([]byte, 1))
		require.NoError(t, err)
		go func() { _, _ = b.Read(make([]byte, 1)) }()
		b.stop()
		time.Sleep(time.Hour)
		select {
		case <-l.late:
			require.Fail(t, "a deadline was set")
		default:
		}
		_, err = b.Read(make([]byte, 1))
		require.NotErrorIs(t, err, layer.ErrIdleTimeout)
	})
}

func BenchmarkBodyPace(b *testing.B) {
	p := &paced{ReadCloser: io.NopCloser(zeros{}), idle: defaultBodyIdle, rate: defaultBodyRate}
	defer p.stop()
	buf := make([]byte, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = p.Read(buf)
	}
}
