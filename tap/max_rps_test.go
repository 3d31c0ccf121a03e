package tap

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap/tappb"
)

// Requests above the rate are not shown, are not dropped, and do not count
// toward the limit.
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

// A watcher that does not read costs no event. Each request counts as dropped.
func TestMaxRPSWatcherNotReading(t *testing.T) {
	reg := NewRegistry(WithCapacity(1, 3))
	w, err := reg.watch(terms{match: &condition{op: opAll}, limit: unlimited})
	require.NoError(t, err)
	defer reg.close(w)
	svc := stand(reg, respond(""))
	send(t, svc, get("/")) // three events
	require.True(t, w.bufferFull())
	clogged := Layer[*call, *reply](reg, newAccess())(respond(""))
	for range 10 {
		send(t, clogged, get("/"))
	}
	require.Equal(t, uint64(10), w.dropped.Load())
	require.Equal(t, uint64(11), w.seen.Load())
	require.Zero(t, w.inFlight.Load())
}
