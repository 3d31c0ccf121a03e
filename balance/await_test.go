package balance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The number of concurrent waits is limited, and each endpoint gets its turn.
func TestTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const most = 16
		p, ss := newPool(t), servers(1000)
		for _, s := range ss {
			s.open(false)
		}
		p.add(ss...)
		waiting := func() (n int64) {
			synctest.Wait()
			for _, s := range ss {
				n += s.waiting.Load()
			}
			return n
		}
		for range 200 {
			require.EqualValues(t, most, waiting())
			time.Sleep(time.Second / 2)
		}
		asked := 0
		for _, s := range ss {
			if s.asked.Load() > 1 { // beside the poll when it was added
				asked++
			}
		}
		require.Equal(t, len(ss), asked, "each has had its turn")

		for _, s := range ss {
			s.open(true)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, len(ss), p.Describe().State.Get("ready"))
		require.Zero(t, waiting())
	})
}

// An endpoint keeps its turn while no other one waits, because a Ready that connects may
// take longer than a turn.
func TestTurnsWithoutOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		ss[0].open(false)
		p.add(ss...)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 2, ss[0].asked.Load(), "the poll when it was added, and one turn")
		ss[0].open(true)
		synctest.Wait()
		require.NoError(t, p.send(t.Context()))
	})
}

// Capacity that a request frees is used at once, also if more endpoints are at their
// limit than have a turn.
func TestTurnsFreedCapacity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(100)
		p.add(ss...)
		var open []*response
		for range ss {
			rsp, err := p.Call(t.Context(), "")
			require.NoError(t, err)
			open = append(open, rsp)
		}
		served := make(map[*server]bool) // endpoints with a response that is open
		for _, s := range ss {
			served[s] = s.calls.Load() > 0
			s.open(false)
		}
		for p.Describe().State.Get("ready") != 0 {
			_, err := p.Call(t.Context(), "")
			require.Error(t, err)
		}
		synctest.Wait()
		var last *server
		for _, s := range ss {
			if s.waiting.Load() == 0 && served[s] {
				last = s
			}
		}
		require.NotNil(t, last)
		last.isOpen.Store(true) // without ending its Ready
		for _, rsp := range open {
			require.NoError(t, rsp.Body.Close())
		}
		require.EqualValues(t, 1, p.Describe().State.Get("ready"))
		require.NoError(t, p.send(t.Context()))
	})
}
