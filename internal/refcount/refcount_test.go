package refcount

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCount(t *testing.T) {
	var ended int
	c := &Count{Ended: func() { ended++ }}
	require.True(t, c.Begin())
	require.True(t, c.Begin())
	require.EqualValues(t, 2, c.Open())
	c.Done()
	require.False(t, c.IsRetired())
	c.Retire()
	require.True(t, c.IsRetired())
	require.False(t, c.Begin(), "retired")
	require.EqualValues(t, 1, c.Open(), "a failed Begin counts as no use")
	require.Zero(t, ended)
	c.Done()
	require.Equal(t, 1, ended)
}

func TestRetireUnused(t *testing.T) {
	var ended int
	c := &Count{Ended: func() { ended++ }}
	seen := c.Word()
	require.True(t, c.Begin())
	require.False(t, c.RetireUnused(c.Word()), "open")
	c.Done()
	require.False(t, c.RetireUnused(seen), "used since")
	require.Zero(t, ended)
	require.True(t, c.RetireUnused(c.Word()))
	require.Equal(t, 1, ended)
	require.False(t, c.Begin())
}

func TestCountWrapsAround(t *testing.T) {
	c := &Count{Ended: func() {}}
	c.word.Store(0xffffffff << 32)
	require.True(t, c.Begin())
	require.EqualValues(t, 1, c.Open())
	require.False(t, c.IsRetired())
}

func TestCountConcurrent(t *testing.T) {
	for range 200 {
		var open, late atomic.Int64
		ended := make(chan struct{})
		var once sync.Once
		c := &Count{Ended: func() {
			late.Add(open.Load())
			once.Do(func() { close(ended) })
		}}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for c.Begin() {
					open.Add(1)
					runtime.Gosched()
					open.Add(-1)
					c.Done()
				}
			})
		}
		c.Retire()
		<-ended
		all.Wait()
		require.Zero(t, late.Load())
		require.Zero(t, c.Open())
	}
}
