package tap

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/tappb"
)

func TestPaceIsABurstAndThenOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		p.perSecond(4)
		for range 4 {
			require.False(t, p.spent())
			require.True(t, p.take())
		}
		for range 8 {
			require.True(t, p.spent())
			require.False(t, p.take())
			time.Sleep(time.Second / 4)
			require.False(t, p.spent())
			require.True(t, p.take())
		}
		time.Sleep(time.Hour)
		n := 0
		for p.take() {
			n++
		}
		require.Equal(t, 4, n, "what nobody took is not kept for later")
		var none pace
		none.perSecond(0)
		require.False(t, none.spent())
		require.True(t, none.take())
	})
}

func TestPaceAfterTheClockWasSetBack(t *testing.T) {
	var p pace
	p.perSecond(2)
	p.due.Store(time.Now().Add(time.Hour).UnixNano())
	n := 0
	for p.take() {
		n++
	}
	require.InDelta(t, 2, n, 1)
}

func TestPaceIsSharedByAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		p.perSecond(100)
		var mu sync.Mutex
		taken := 0
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if p.take() {
						mu.Lock()
						taken++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, 100, taken)
	})
}

// What is above the rate is not shown, is not dropped, and does not count toward
// the limit.
func TestMaxRPS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := new(Registry)
		terms, err := reg.terms(&tappb.WatchRequest{MaxRps: 2, Limit: 5})
		require.NoError(t, err)
		w, err := reg.watch(terms)
		require.NoError(t, err)
		defer reg.close(w)
		svc := stand(reg, respond(""))
		for range 4 {
			for range 10 {
				send(t, svc, get("/"))
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, uint64(5), w.seen.Load())
		require.Zero(t, w.dropped.Load())
	})
}

// A reader that does not read costs no event, and is told of each request.
func TestCloggedWatcher(t *testing.T) {
	reg := NewRegistry(Capacity(1, 3))
	w, err := reg.watch(terms{match: &condition{op: opAll}, limit: unlimited})
	require.NoError(t, err)
	defer reg.close(w)
	svc := stand(reg, respond(""))
	send(t, svc, get("/")) // three events
	require.True(t, w.clogged())
	access := newAccess()
	clogged := Layer[*call, *reply](reg, access)(respond(""))
	for range 10 {
		send(t, clogged, get("/"))
	}
	require.Zero(t, access.request(), "nothing was read of it")
	require.Equal(t, uint64(10), w.dropped.Load())
	require.Equal(t, uint64(11), w.seen.Load())
	require.Zero(t, w.inside.Load())
}
