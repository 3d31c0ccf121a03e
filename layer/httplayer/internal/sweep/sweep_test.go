package sweep_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

type conn struct {
	mu   sync.Mutex
	seen map[uint32]time.Duration

	rest   time.Duration // result of Sweep
	sweeps int           // calls of Sweep
}

func (c *conn) Sweep(phase uint32, age time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[phase] = age
	c.sweeps++
	return c.rest
}

func (c *conn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sweeps
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

// While no connection needs a check, none is made. The rest ends after its time, with a new phase, a
// new connection or a call of Wake. It counts for the age of a phase that began before.
func TestSweeperRests(t *testing.T) {
	for name, wake := range map[string]func(s *sweep.Sweeper, quiet, other *sweep.Slot){
		"time":       func(*sweep.Sweeper, *sweep.Slot, *sweep.Slot) { time.Sleep(time.Hour - time.Minute) },
		"Enter":      func(_ *sweep.Sweeper, _, other *sweep.Slot) { other.Enter(2) },
		"connection": func(s *sweep.Sweeper, _, _ *sweep.Slot) { s.Add(&conn{seen: map[uint32]time.Duration{}}, 1).Remove() },
		"Wake":       func(s *sweep.Sweeper, _, _ *sweep.Slot) { s.Wake() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s sweep.Sweeper
				c, d := &conn{seen: map[uint32]time.Duration{}, rest: time.Hour}, &conn{seen: map[uint32]time.Duration{}, rest: sweep.Forever}
				began := time.Now()
				quiet, other := s.Add(c, 1), s.Add(d, 1)
				defer quiet.Remove()
				defer other.Remove()
				time.Sleep(time.Minute)
				require.LessOrEqual(t, c.count(), 2, "checks of a quiet connection in a minute")
				wake(&s, quiet, other)
				time.Sleep(3 * sweep.Interval)
				require.InDelta(t, time.Since(began), c.age(1), float64(3*sweep.Interval))
				require.Less(t, d.age(2), 4*sweep.Interval)
				before := c.count()
				time.Sleep(time.Minute)
				require.LessOrEqual(t, c.count()-before, 2)
			})
		})
	}
}

// A phase that begins during the sweep before a rest is checked.
func TestSweeperPhaseBeforeRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sweep.Sweeper
		c := &changing{conn: conn{seen: map[uint32]time.Duration{}, rest: sweep.Forever}}
		slot := s.Add(c, 1)
		defer slot.Remove()
		c.slot.Store(slot)
		time.Sleep(time.Minute)
		require.NotZero(t, c.age(2))
	})
}

// changing is a connection that enters phase 2 after the check of phase 1.
type changing struct {
	conn
	slot atomic.Pointer[sweep.Slot]
}

func (c *changing) Sweep(phase uint32, age time.Duration) time.Duration {
	if phase == 1 && age > 0 {
		c.slot.Load().Enter(2)
	}
	return c.conn.Sweep(phase, age)
}

func BenchmarkEnter(b *testing.B) {
	var s sweep.Sweeper
	slot := s.Add(&conn{seen: map[uint32]time.Duration{}}, 1)
	defer slot.Remove()
	for b.Loop() {
		slot.Enter(2)
	}
}
