package tap

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEventRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil, WithEventRate(100))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		one, other := s.turns(ctx), s.turns(ctx)
		require.Zero(t, one.more, "no more than a hundredth of a second's at once")
		sent := 0
		for one.wait(1) == nil && other.wait(1) == nil {
			sent += 2
		}
		require.InDelta(t, 1000, sent, 3, "in ten seconds, by both together")
	})
}

func TestNoEventRate(t *testing.T) {
	for _, n := range []int{0, -1} {
		s := NewServer(nil, WithEventRate(5), WithEventRate(n))
		require.Nil(t, s.rate)
		turns := s.turns(t.Context())
		require.NoError(t, turns.wait(1<<30))
	}
}

// A server that ends waits for no turn.
func TestEventRateEndsWithItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil, WithEventRate(1))
		turns := s.turns(t.Context())
		require.NoError(t, turns.wait(1))
		begun := time.Now()
		time.AfterFunc(time.Millisecond, s.Shutdown)
		require.Equal(t, errDown, turns.wait(1))
		require.Equal(t, time.Millisecond, time.Since(begun))
	})
}
