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
		p.perSecond(4, 3)
		for range 4 {
			require.False(t, p.spent(time.Now().UnixNano()))
			require.True(t, p.take())
		}
		for range 8 {
			require.True(t, p.spent(time.Now().UnixNano()))
			require.False(t, p.take())
			time.Sleep(time.Second / 4)
			require.False(t, p.spent(time.Now().UnixNano()))
			require.True(t, p.take())
		}
		time.Sleep(time.Hour)
		n := 0
		for p.take() {
			n++
		}
		require.Equal(t, 4, n, "what nobody took is not kept for later")
		var none pace
		none.perSecond(0, 1)
		require.False(t, none.spent(time.Now().UnixNano()))
		require.True(t, none.take())
	})
}

func TestPaceAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		p.perSecond(2, 0)
		p.due.Store(time.Now().Add(time.Hour).UnixNano())
		n := 0
		for p.take() {
			n++
		}
		require.InDelta(t, 2, n, 1)
	})
}

func TestPaceIsSharedByAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		p.perSecond(100, 7)
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

// Ten who want the same do not all take the same request, also after a silence.
func TestPacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all [10]pace
		for i := range all {
			all[i].perSecond(10, uint32(i+5))
		}
		for range 2 {
			time.Sleep(time.Minute)
			for i := range all { // what is shown at once
				for n := range 11 {
					require.Equal(t, n < 10, all[i].take())
				}
			}
			var taken [10]int
			for range 5000 {
				time.Sleep(time.Millisecond)
				together := 0
				for i := range all {
					if all[i].take() {
						taken[i]++
						together++
					}
				}
				require.LessOrEqual(t, together, 1)
			}
			for _, n := range taken {
				require.Equal(t, 50, n)
			}
		}
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
	reg := NewRegistry(WithCapacity(1, 3))
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
