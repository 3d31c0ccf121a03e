package layer_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// replaySource is a request body that records its reads and Close.
type replaySource struct {
	data   io.Reader
	gate   chan struct{} // if not nil, a Read waits for it
	inRead atomic.Int64
	twice  atomic.Bool // two Reads at a time
	reads  atomic.Int64
	closes atomic.Int64
}

func sourceOf(s string) *replaySource { return &replaySource{data: strings.NewReader(s)} }

func (s *replaySource) Read(p []byte) (int, error) {
	if s.inRead.Add(1) > 1 {
		s.twice.Store(true)
	}
	defer s.inRead.Add(-1)
	s.reads.Add(1)
	if s.gate != nil {
		<-s.gate
	}
	return s.data.Read(p)
}

func (s *replaySource) Close() error {
	s.closes.Add(1)
	return nil
}

func nextBody(t *testing.T, b *layer.BodyReplay) io.ReadCloser {
	t.Helper()
	body, ok := b.Next()
	require.True(t, ok)
	return body
}

func readsAs(t *testing.T, body io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(body)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func readsPiece(t *testing.T, body io.Reader, want string) {
	t.Helper()
	piece := make([]byte, len(want))
	_, err := io.ReadFull(body, piece)
	require.NoError(t, err)
	require.Equal(t, want, string(piece))
}

func TestReplayReadsSourceOnce(t *testing.T) {
	source := sourceOf("hello, world")
	b := layer.ReplayBody(source, nil, 100)
	first := nextBody(t, b)
	require.Zero(t, source.reads.Load())
	readsPiece(t, first, "hello")
	second := nextBody(t, b)
	_, err := first.Read(make([]byte, 1))
	require.ErrorContains(t, err, "earlier attempt")
	readsPiece(t, second, "hel")
	require.EqualValues(t, 1, source.reads.Load(), "kept bytes are not read again")
	require.False(t, b.Whole())
	readsAs(t, second, "lo, world")
	require.True(t, b.Whole())
	third := nextBody(t, b)
	b.End()
	for _, body := range []io.Closer{first, second} {
		require.NoError(t, body.Close())
		require.NoError(t, body.Close())
	}
	require.Zero(t, source.closes.Load(), "the third may still be read")
	readsAs(t, third, "hello, world")
	require.NoError(t, third.Close())
	require.EqualValues(t, 1, source.closes.Load())
}

func TestReplayLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		body  string
		limit int64
		again bool
	}{
		"less":           {"123", 4, true},
		"just as much":   {"1234", 4, true},
		"one byte more":  {"12345", 4, false},
		"nothing kept":   {"1", 0, false},
		"below nothing":  {"1", -1, false},
		"nothing to use": {"", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := layer.ReplayBody(sourceOf(tt.body), nil, tt.limit)
			readsAs(t, nextBody(t, b), tt.body)
			again, ok := b.Next()
			require.Equal(t, tt.again, ok)
			if ok {
				readsAs(t, again, tt.body)
			}
		})
	}
}

// A body of which no byte was read can be sent again with any limit.
func TestReplayUnreadBody(t *testing.T) {
	b := layer.ReplayBody(sourceOf("hello"), nil, 0)
	nextBody(t, b).Close()
	readsAs(t, nextBody(t, b), "hello")
}

func TestReplayFailingSource(t *testing.T) {
	broken := errors.New("broken")
	source := &replaySource{data: io.MultiReader(strings.NewReader("he"), errReader{broken})}
	b := layer.ReplayBody(source, nil, 100)
	first := nextBody(t, b)
	readsPiece(t, first, "he")
	second := nextBody(t, b)
	for range 2 {
		_, err := io.ReadAll(second)
		require.ErrorIs(t, err, broken)
	}
	_, ok := b.Next()
	require.False(t, ok)
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// linkerd/linkerd2-proxy#3216: a replay body panicked when the response came before the
// request had ended. Here the first attempt is still reading from the source when it
// gets its response and the second attempt begins. The second continues with the bytes
// of that Read, and the first gets an error.
func TestReplayResponseBeforeRequestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := sourceOf("hello, world")
		source.gate = make(chan struct{})
		b := layer.ReplayBody(source, nil, 100)
		first := nextBody(t, b)
		piece := make(chan string, 1)
		go func() {
			buf := make([]byte, 5)
			n, err := first.Read(buf)
			assert.NoError(t, err)
			piece <- string(buf[:n])
		}()
		synctest.Wait()
		second := nextBody(t, b)
		b.End()
		whole := make(chan string, 1)
		go func() {
			data, err := io.ReadAll(second)
			assert.NoError(t, err)
			whole <- string(data)
		}()
		synctest.Wait()
		require.EqualValues(t, 1, source.reads.Load(), "a Read in flight is joined, not doubled")
		close(source.gate)
		require.Equal(t, "hello", <-piece)
		require.Equal(t, "hello, world", <-whole)
		require.False(t, source.twice.Load())
		_, err := first.Read(make([]byte, 5))
		require.Error(t, err)
		require.NoError(t, first.Close())
		require.Zero(t, source.closes.Load())
		require.NoError(t, second.Close())
		require.EqualValues(t, 1, source.closes.Load())
	})
}

// An earlier attempt that reads more than the limit does not affect the current attempt.
func TestReplayLimitInEarlierAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := sourceOf(strings.Repeat("x", 50))
		source.gate = make(chan struct{})
		b := layer.ReplayBody(source, nil, 10)
		first := nextBody(t, b)
		go first.Read(make([]byte, 30))
		synctest.Wait()
		second := nextBody(t, b)
		close(source.gate)
		synctest.Wait()
		readsAs(t, second, strings.Repeat("x", 50))
		_, ok := b.Next()
		require.False(t, ok)
	})
}

// A reader that waits for the Read of another one returns when it is closed.
func TestReplayCloseWakesReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := sourceOf("hello")
		source.gate = make(chan struct{})
		b := layer.ReplayBody(source, nil, 100)
		first := nextBody(t, b)
		go io.ReadAll(first)
		synctest.Wait()
		second := nextBody(t, b)
		left := make(chan error)
		go func() {
			_, err := second.Read(make([]byte, 5))
			left <- err
		}()
		synctest.Wait()
		require.NoError(t, second.Close())
		require.Error(t, <-left)
		close(source.gate)
	})
}

// If a request is rejected, its reader was neither read nor closed, and so the source is
// neither.
func TestReplayRejectedRequest(t *testing.T) {
	source := sourceOf("hello")
	b := layer.ReplayBody(source, nil, 100)
	nextBody(t, b)
	b.End()
	require.Zero(t, source.reads.Load())
	require.Zero(t, source.closes.Load())
}

func TestReplaySourcePanic(t *testing.T) {
	b := layer.ReplayBody(io.NopCloser(panicReader{}), nil, 100)
	first := nextBody(t, b)
	require.Panics(t, func() { first.Read(make([]byte, 1)) })
	_, err := first.Read(make([]byte, 1))
	require.ErrorContains(t, err, "panicked")
	_, ok := b.Next()
	require.False(t, ok)
}

type panicReader struct{}

func (panicReader) Read([]byte) (int, error) { panic("no") }

// New attempts start while earlier ones still read from the source.
func TestReplayStorm(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 512)
	for range 20 {
		source := &replaySource{data: bytes.NewReader(want)}
		b := layer.ReplayBody(source, nil, int64(len(want)))
		var all sync.WaitGroup
		for i := range 8 {
			body := nextBody(t, b)
			all.Go(func() {
				defer body.Close()
				if i%4 == 3 { // closed early
					io.CopyN(io.Discard, body, int64(100*i))
					return
				}
				got, err := io.ReadAll(body)
				assert.True(t, bytes.HasPrefix(want, got))
				if err == nil { // an attempt that a later one replaces fails at any point, also at the end
					assert.Len(t, got, len(want))
				}
			})
		}
		last := nextBody(t, b)
		b.End()
		readsAs(t, last, string(want))
		require.NoError(t, last.Close())
		all.Wait()
		require.EqualValues(t, 1, source.closes.Load())
		require.False(t, source.twice.Load())
	}
}

// A request with GetBody has a body of its own for each attempt, of any length.
func TestReplayGetBody(t *testing.T) {
	source := sourceOf("hello")
	b := layer.ReplayBody(source, func() (io.ReadCloser, error) { return sourceOf("hello"), nil }, 0)
	require.True(t, b.Whole())
	first, second := nextBody(t, b), nextBody(t, b)
	readsAs(t, second, "hello")
	readsAs(t, first, "hello")
	b.End()
	require.Zero(t, source.closes.Load(), "the service closes it")
	require.NoError(t, first.Close())
	require.EqualValues(t, 1, source.closes.Load())
}

// A long response keeps the body of its request reachable, but not the stored bytes.
func TestReplayReleasesBytes(t *testing.T) {
	const size, n = 1 << 20, 32
	data := strings.Repeat("x", size)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	bodies := make([]io.ReadCloser, n)
	for i := range bodies {
		b := layer.ReplayBody(sourceOf(data), nil, size)
		bodies[i] = nextBody(t, b)
		_, err := io.Copy(io.Discard, bodies[i])
		require.NoError(t, err)
		require.NoError(t, bodies[i].Close())
		b.End()
	}
	require.Less(t, heap()-before, int64(n*size/2))
	runtime.KeepAlive(bodies)
}

func TestDrainBody(t *testing.T) {
	short := &closeable{Reader: strings.NewReader("short")}
	layer.DrainBody(short)
	assert.True(t, short.closed)
	_, err := short.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err, "read to its end")

	long := bytes.NewReader(make([]byte, 1<<20))
	body := &closeable{Reader: long}
	layer.DrainBody(body)
	assert.True(t, body.closed)
	assert.Greater(t, long.Len(), 1<<20-16<<10, "traefik/traefik#1495: and no more than a little of it")
}

func TestDrainBodyTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r, w := io.Pipe()
		defer w.Close()
		layer.DrainBody(r)
		assert.Equal(t, 50*time.Millisecond, time.Since(began))
	})
}
