package discover

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUses(t *testing.T) {
	var ended int
	u := &uses{end: func() { ended++ }}
	require.True(t, u.begin())
	require.True(t, u.begin())
	require.EqualValues(t, 2, u.open())
	u.done()
	u.retire()
	require.False(t, u.begin(), "gone")
	require.EqualValues(t, 1, u.open(), "a begin that failed leaves nothing")
	require.Zero(t, ended)
	u.done()
	require.Equal(t, 1, ended)
}

func TestRetireUnused(t *testing.T) {
	var ended int
	u := &uses{end: func() { ended++ }}
	seen := u.word.Load()
	require.True(t, u.begin())
	require.False(t, u.retireUnused(u.word.Load()), "open")
	u.done()
	require.False(t, u.retireUnused(seen), "used since")
	require.Zero(t, ended)
	require.True(t, u.retireUnused(u.word.Load()))
	require.Equal(t, 1, ended)
	require.False(t, u.begin())
}

// The count of all that ever began wraps round without touching the rest.
func TestUsesWrapsRound(t *testing.T) {
	u := &uses{end: func() {}}
	u.word.Store(0xffffffff << 32)
	require.True(t, u.begin())
	require.EqualValues(t, 1, u.open())
	require.False(t, u.isGone())
}

// Nothing is open when end is called, and it is called.
func TestUsesStorm(t *testing.T) {
	for range 200 {
		var open, late atomic.Int64
		ended := make(chan struct{})
		var once sync.Once
		u := &uses{end: func() {
			late.Add(open.Load())
			once.Do(func() { close(ended) })
		}}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for u.begin() {
					open.Add(1)
					runtime.Gosched()
					open.Add(-1)
					u.done()
				}
			})
		}
		u.retire()
		<-ended
		all.Wait()
		require.Zero(t, late.Load())
		require.Zero(t, u.open())
	}
}
