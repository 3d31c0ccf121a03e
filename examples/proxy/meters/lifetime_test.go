package meters

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What comes and goes leaves nothing behind, though what it counts in stays.
func TestLeaseWithoutAnEndRemembersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			m.Endpoint(ctx, Outbound, nil)
			m.Balancer(ctx, "http", "web.example:80")
			m.Balancer(ctx, "tcp", "web.example:80")
			m.Authz("http", "deny")(Decision{})
			cancel()
		}
		synctest.Wait()
		require.Empty(t, m.always.drops)
		require.Len(t, m.stacks.created.series, 3)
		require.Len(t, m.stacks.dropped.series, 3)
	})
}

// Who comes as the last of what it would count by is let go has its labels for no
// time, and others find room.
func TestRoomForWhoHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{RetainIdle: 1})
		ctx, cancel := context.WithCancel(t.Context())
		l := m.seriesLease(ctx)
		cancel()
		time.Sleep(time.Second)
		for _, r := range []*room{&m.parents, &m.backends, &m.sources} {
			require.True(t, r.has(l, "web.example:80"))
			require.Empty(t, r.owners)
			require.True(t, r.has(l, "web.example:80"))
		}
	})
}

// leaseStep is something that is done to a lease, and time that goes by before.
type leaseStep struct {
	after time.Duration
	does  string
}

// A lease is there for as long as its owner or anybody who holds it, and for
// RetainIdle after the last of them; and no longer.
func TestLeaseKeepsItsModel(t *testing.T) {
	step := rapid.Custom(func(rt *rapid.T) leaseStep {
		return leaseStep{
			after: time.Duration(rapid.IntRange(0, 90).Draw(rt, "after")) * time.Second,
			does:  rapid.SampledFrom([]string{"hold", "hold", "release", "release", "gone", "nothing"}).Draw(rt, "does"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(step, 1, 40).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) { driveLease(t, steps) })
	})
}

func driveLease(t *testing.T, steps []leaseStep) {
	m := New(Config{RetainIdle: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	l := m.seriesLease(ctx)
	var dropped atomic.Bool
	l.add(func() { dropped.Store(true) })
	users, owned, over, last := 1, true, false, time.Now()
	gone := func() {
		if owned {
			cancel()
			users, owned, last = users-1, false, time.Now()
		}
	}
	check := func() {
		synctest.Wait()
		over = over || users == 0 && time.Since(last) >= time.Minute
		require.Equal(t, over, dropped.Load(), "%d users, the last %v ago: %v", users, time.Since(last), steps)
	}
	for _, s := range steps {
		time.Sleep(s.after)
		check()
		switch {
		case s.does == "hold" && !over:
			l.hold()
			users++
		case s.does == "release" && !over && (users > 1 || users == 1 && !owned):
			l.release()
			users, last = users-1, time.Now()
		case s.does == "gone" && owned:
			gone()
		}
		check()
	}
	gone()
	for ; users > 0; users-- {
		l.release()
		last = time.Now()
	}
	if over {
		return
	}
	time.Sleep(time.Minute - time.Nanosecond)
	check()
	time.Sleep(time.Nanosecond)
	check()
	l.add(func() { last = time.Time{} })
	require.True(t, last.IsZero(), "what is bound later goes at once")
}
