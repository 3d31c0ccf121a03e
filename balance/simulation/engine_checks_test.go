package simulation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunReproducible(t *testing.T) {
	sc := usual("", "").with(first, nil, slower(100*ms))
	sc.length, sc.impatient, sc.patience = 2*sec, 0.1, 2*ms
	places := func(c contender, seed uint64) (to []int) {
		for _, c := range run(t, &sc, c, seed).calls {
			to = append(to, c.attempts[0].to)
		}
		return to
	}
	for _, c := range contenders() {
		first := places(c, 7)
		require.Equal(t, first, places(c, 7), c.name)
	}
	require.NotEqual(t, places(contenders()[0], 7), places(contenders()[0], 8))
}

// The mean wait before one worker with constant work is, by the formula of Pollaczek and
// Khinchine, ρ·s / 2(1−ρ).
func TestRunQueueLength(t *testing.T) {
	sc := usual("", "")
	sc.backends, sc.workers, sc.rate, sc.length = 1, 1, 80, 4000*sec
	sc.serve = func(*request, time.Duration) answer { return done(10 * ms) }
	var waited time.Duration
	s := run(t, &sc, contender{kind: local, create: newRandom}, 1)
	for _, c := range s.calls {
		waited += c.head - c.sent - 10*ms
	}
	require.InEpsilon(t, 0.020, waited.Seconds()/float64(len(s.calls)), 0.05)
}

// A canceled request ends at once, also if a worker has it.
func TestRunCancellation(t *testing.T) {
	sc := usual("", "")
	sc.backends, sc.workers, sc.rate, sc.length = 1, 1, 1000, sec
	sc.impatient, sc.patience = 1, ms
	sc.serve = func(*request, time.Duration) answer { return done(sec) }
	for _, c := range run(t, &sc, contenders()[0], 1).calls {
		require.Equal(t, c.sent+ms, c.ended)
		require.Error(t, c.err)
	}
}
