package tap

import (
	"context"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/tappb"
)

// Bodies of open requests and of unread events use only the memory of the buffer of the
// watcher.
func TestMemoryOfBodies(t *testing.T) {
	const size = 200 << 10
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	reg := NewRegistry(WithBodies(size, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: size})
	svc := talking(reg, func(_ context.Context, b *bodied) (*reply, error) {
		_, err := io.Copy(io.Discard, b.Body)
		return &reply{Body: io.NopCloser(io.LimitReader(zeros{}, size))}, err
	})
	before := heap()
	var open []*reply
	for range 20 {
		req := saying("")
		req.Body = io.NopCloser(io.LimitReader(zeros{}, size))
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		open = append(open, rsp)
	}
	require.Less(t, heap()-before, int64(1<<20), "in flight")
	for _, rsp := range open {
		_, err := io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
	}
	require.Less(t, heap()-before, int64(1<<20), "not read")
	whole, cut := 0, 0
	for _, e := range readAll(w) {
		if e.ResponseEnd == nil {
			continue
		}
		for _, b := range []*Body{e.ResponseEnd.RequestBody, e.ResponseEnd.ResponseBody} {
			switch {
			case len(b.Data) == size:
				whole++
			case b.Cut && b.Data == nil:
				cut++
			default:
				t.Errorf("%d bytes, cut: %v", len(b.Data), b.Cut)
			}
		}
	}
	require.Equal(t, 3, whole)
	require.Equal(t, 37, cut)
	require.EqualValues(t, maxText, w.buf.Load().room.Load())
	runtime.KeepAlive(open)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// No more of a body is kept after the watcher was closed.
func TestBodiesAfterWatcherClose(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9})
	x := newBodies(w, fields{})
	x.request.take(0, []byte("kept"))
	reg.close(w)
	x.request.take(4, []byte("not kept"))
	require.Nil(t, x.request.data)
	require.Nil(t, x.request.body())
	require.Nil(t, newBodies(w, fields{}))
}
