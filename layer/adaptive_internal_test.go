package layer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// responses records n requests that are served one after the other, each in 10 ms.
func (g *adaptiveGate) responses(t *testing.T, n int, from time.Duration) time.Duration {
	t.Helper()
	for range n {
		require.True(t, g.take())
		g.sample(from, from+10*time.Millisecond)
		g.inFlight.Add(-1)
		from += 10 * time.Millisecond
	}
	return from
}

func TestAdaptiveGateGiveUpOtherProbe(t *testing.T) {
	g := newAdaptiveGate(AdaptivePolicy{Max: 1}.filled())
	now := g.responses(t, adaptiveLeast, 0) // used, for the first time
	first, after := g.probe()
	require.Equal(t, now, first)
	require.InEpsilon(t, 40*time.Millisecond, after, 0.001)
	now = g.responses(t, adaptiveLeast, now)
	_, after = g.probe()
	require.Zero(t, after, "it is over")
	ended, again := g.giveUp(first, now)
	require.False(t, ended || again)

	for range 2 * adaptiveEvery {
		if after > 0 {
			break
		}
		now = g.responses(t, adaptiveLeast, now)
		_, after = g.probe()
	}
	ended, again = g.giveUp(first, now)
	require.False(t, ended || again, "that is another one")
	second, _ := g.probe()
	_, again = g.giveUp(second, now)
	require.True(t, again, "the last response has ended since it began")
	ended, again = g.giveUp(second, now)
	require.True(t, ended)
	require.False(t, again)
}

// A probe ends after adaptiveLooks checks, even if a slot is released before each check.
func TestAdaptiveGateGiveUpAfterProgress(t *testing.T) {
	g := newAdaptiveGate(AdaptivePolicy{Initial: 40}.filled())
	for range 30 {
		require.True(t, g.take())
	}
	now := g.responses(t, 31, 0)
	began, after := g.probe()
	require.NotZero(t, after)
	for range adaptiveLooks - 1 {
		g.inFlight.Add(-1)
		now += after
		ended, again := g.giveUp(began, now)
		require.False(t, ended)
		require.True(t, again)
	}
	g.inFlight.Add(-1)
	ended, _ := g.giveUp(began, now+after)
	require.True(t, ended)
	require.EqualValues(t, 46, g.limit.Load(), "as if there had been no probe")
}
