package tap

import (
	"context"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/match"
)

// In the bubble, time passes only when all goroutines are blocked, and no event is read. If
// a request waited for a watcher, the test would deadlock.
func TestSlowWatcherNeverDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		for i := range defaultMaxTaps {
			watch(t, reg, match.All(), 1<<32-1, i%2 == 0)
		}
		svc := stand(reg, respond("hello"))
		start := time.Now()
		for range 2000 {
			send(t, svc, get("/"))
		}
		require.Zero(t, time.Since(start))
	})
}

func TestSlowWatcherDropsRequest(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 4))
	w := watch(t, reg, match.All(), 5, false)
	svc := stand(reg, respond("x"))
	send(t, svc, get("/0")) // q r e
	rsp, err := svc.Call(t.Context(), get("/1"))
	require.NoError(t, err) // q fits, r does not
	send(t, svc, get("/2")) // q does not
	require.EqualValues(t, 1, w.inFlight.Load(), "a request that is not shown is not waited for")
	got := events(w)
	require.Equal(t, "qreq", kinds(got))

	require.NoError(t, rsp.Body.Close()) // e fits again: the rest is attempted
	send(t, svc, get("/3"))
	got = events(w)
	require.Equal(t, "eqre", kinds(got))
	require.Equal(t, uint64(1), got[0].ID.Stream)
	require.Equal(t, uint64(3), got[1].ID.Stream, "request 2 counted, and showed nothing")
	require.EqualValues(t, 2, w.dropped.Load(), "a response and an init")
	require.EqualValues(t, 4, w.seen.Load())
}

func TestSlowWatcherDropsCountTowardLimit(t *testing.T) {
	reg := NewRegistry(WithCapacity(0, 3))
	w := watch(t, reg, match.All(), 2, false)
	svc := stand(reg, respond("x"))
	send(t, svc, get("/0"))
	require.False(t, isDone(w))
	send(t, svc, get("/1"))
	require.True(t, isDone(w))
	require.Equal(t, "qre", kinds(events(w)))
}

func TestSlowWatcherOtherWatchers(t *testing.T) {
	reg := new(Registry)
	never := watch(t, reg, match.All(), 1<<32-1, true)
	reads := watch(t, reg, match.All(), 1<<32-1, true)
	svc := stand(reg, respond("x"))
	var got int
	for range 1000 {
		send(t, svc, get("/"))
		got += len(events(reads))
	}
	require.Equal(t, 3000, got)
	require.Zero(t, reads.dropped.Load())
	require.Len(t, events(never), 400, "the buffer of spec §1")
	// 133 whole requests and an init fit; then a response and an end were
	// tried, and one init for each of the others.
	require.EqualValues(t, 2+866, never.dropped.Load())
}

func TestReceiverClosed(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	svc := stand(reg, respond("hello"))
	rsp, err := svc.Call(t.Context(), get("/"))
	require.NoError(t, err)
	reg.close(w)
	require.Nil(t, w.buf.Load(), "what was buffered is free at once")
	b, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b), "the request goes on")
	require.Zero(t, w.dropped.Load())
	send(t, svc, get("/"))
	require.EqualValues(t, 1, w.seen.Load(), "no request is looked at any more")
}

// A request may find a watcher that has been closed since.
func TestReceiverClosedDuringMatch(t *testing.T) {
	reg := new(Registry)
	w := watchAll(t, reg)
	present := reg.active.Load()
	reg.close(w)
	svc := stand(reg, respond("x")).(*tapped[*call, *reply])
	_, err := svc.watched(t.Context(), get("/"), present)
	require.NoError(t, err)
	require.Zero(t, w.inFlight.Load())
}

// At most 1 MiB for one watcher, for any requests.
func TestMemoryOfSlowWatcher(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, size := range map[string]int{"small": 16, "large": 8 << 10, "huge": 300 << 10} {
		t.Run(name, func(t *testing.T) {
			reg := new(Registry)
			svc := stand(reg, serve(func(context.Context, *call) (*reply, error) {
				return &reply{header: fields{{"x-big", strings.Repeat("r", size)}}}, nil
			}))
			before := heap()
			w := watch(t, reg, match.All(), 1<<32-1, true)
			for range 500 {
				req := get(strings.Repeat("p", size))
				req.header = fields{{"x-big", strings.Repeat("q", size)}}
				_, err := svc.Call(t.Context(), req)
				require.NoError(t, err)
			}
			require.Less(t, heap()-before, int64(1<<20))
			require.Positive(t, w.dropped.Load())
			require.NotEmpty(t, events(w))
			require.EqualValues(t, maxText, w.buf.Load().room.Load(), "all room is back")
		})
	}
}
