package tap

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEventRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil, EventRate(100))
		sent := 0
		count := func(Event) error { sent++; return nil }
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		one, other := s.paced(ctx, count), s.paced(ctx, count)
		var err error
		for err == nil {
			err = errors.Join(one(Event{}), other(Event{}))
		}
		require.InDelta(t, 1000, sent, 3, "in ten seconds, by both together")
	})
}

func TestNoEventRate(t *testing.T) {
	for _, n := range []int{0, -1} {
		s := NewServer(nil, EventRate(5), EventRate(n))
		require.Nil(t, s.rate)
		want := errors.New("sent")
		require.Equal(t, want, s.paced(t.Context(), func(Event) error { return want })(Event{}))
	}
}

// A server that ends waits for no turn.
func TestEventRateEndsWithItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(nil, EventRate(1))
		send := s.paced(t.Context(), func(Event) error { return nil })
		require.NoError(t, send(Event{}))
		begun := time.Now()
		time.AfterFunc(time.Millisecond, s.Shutdown)
		require.Equal(t, errDown, send(Event{}))
		require.Equal(t, time.Millisecond, time.Since(begun))
	})
}
