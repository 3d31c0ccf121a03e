package sweep_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

type conn struct {
	mu   sync.Mutex
	seen map[uint32]time.Duration
}

func (c *conn) Sweep(phase uint32, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[phase] = age
}

func (c *conn) age(phase uint32) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[phase]
}

func TestSweeperReportsTheAgeOfAPhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sweep.Sweeper
		c := &conn{seen: map[uint32]time.Duration{}}
		slot := s.Add(c, 1)
		time.Sleep(time.Second + time.Millisecond)
		require.Equal(t, time.Second, c.age(1))
		slot.Enter(2)
		require.EqualValues(t, 2, slot.Phase())
		time.Sleep(time.Minute)
		require.Equal(t, time.Minute, c.age(2))
		require.Equal(t, time.Second, c.age(1))
		slot.Remove()
		slot.Remove()
		time.Sleep(time.Hour)
		require.LessOrEqual(t, c.age(2), time.Minute)

		again := s.Add(c, 3) // the goroutine starts again
		time.Sleep(time.Second)
		require.NotZero(t, c.age(3))
		again.Remove()
	})
}

func BenchmarkEnter(b *testing.B) {
	var s sweep.Sweeper
	slot := s.Add(&conn{seen: map[uint32]time.Duration{}}, 1)
	defer slot.Remove()
	for b.Loop() {
		slot.Enter(2)
	}
}
