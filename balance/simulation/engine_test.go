package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunIsTheSameForTheSameSeed(t *testing.T) {
	sc := usual("", "").slower(0, 100*ms, nil)
	sc.length, sc.impatient, sc.patience = 2*sec, 0.1, 2*ms
	places := func(c contender, seed uint64) (to []int) {
		for _, r := range run(t, &sc, c, seed) {
			to = append(to, r.to)
		}
		return to
	}
	for _, c := range contenders() {
		one, again := places(c, 7), places(c, 7)
		require.Equal(t, one, again, c.name)
	}
	require.NotEqual(t, places(contenders()[0], 7), places(contenders()[0], 8))
}

// The mean wait before one worker whose work is always the same is, by the
// formula of Pollaczek and Khinchine, ρ·s / 2(1−ρ).
func TestQueueIsAsLongAsTheorySays(t *testing.T) {
	sc := usual("", "")
	sc.backends, sc.workers, sc.rate, sc.length = 1, 1, 80, 4000*sec
	sc.serve = func(*request, time.Duration) answer { return done(10 * ms) }
	var waited time.Duration
	log := run(t, &sc, contender{peer: newRandom}, 1)
	for _, r := range log {
		waited += r.head - r.sent - 10*ms
	}
	require.InEpsilon(t, 0.020, waited.Seconds()/float64(len(log)), 0.05)
}

// Whoever leaves frees its place, in the queue and at the worker.
func TestCallersWhoLeaveFreeTheirPlace(t *testing.T) {
	sc := usual("", "")
	sc.backends, sc.workers, sc.rate, sc.length = 1, 1, 1000, sec
	sc.impatient, sc.patience = 1, ms
	sc.serve = func(*request, time.Duration) answer { return done(sec) }
	for _, r := range run(t, &sc, contenders()[0], 1) {
		require.Equal(t, r.sent+ms, r.end)
		require.Error(t, r.err)
	}
}
