package follow

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pollers counts the goroutines that look at something.
func pollers() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), ").poll(")
}

// watch collects what a user sees.
func watch(p *Poller[int]) (seen *[]int, leave context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	seen = new([]int)
	go func() {
		for s := range p.States(ctx) {
			*seen = append(*seen, *s)
		}
	}()
	synctest.Wait()
	return seen, cancel
}

func TestStates(t *testing.T) {
	require.Eventually(t, func() bool { return pollers() == 0 }, 10*time.Second, time.Millisecond, "those of other tests")
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[int]
		now.Store(new(1))
		var looks atomic.Int32
		p := NewPoller(time.Second, func() *int {
			looks.Add(1)
			return now.Load()
		})
		require.Zero(t, looks.Load())

		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		a, leaveA := watch(p)
		defer leaveA()
		require.Equal(t, []int{1}, *a, "at once")
		now.Store(new(2))
		wait(time.Second)
		b, leaveB := watch(p)
		defer leaveB()
		require.Equal(t, []int{1, 2}, *a)
		require.Equal(t, []int{2}, *b, "a later user gets the latest value without a look")
		wait(10 * time.Second)
		require.Equal(t, []int{1, 2}, *a, "the same pointer is not yielded")
		require.Equal(t, int32(12), looks.Load())
		require.Equal(t, 1, pollers())

		leaveA()
		synctest.Wait()
		require.Equal(t, 1, pollers())
		leaveB()
		synctest.Wait()
		require.Zero(t, pollers(), "without waiting for the next tick")
		wait(time.Hour)
		require.Equal(t, int32(12), looks.Load())

		now.Store(new(3))
		c, leaveC := watch(p)
		defer leaveC()
		require.Equal(t, []int{3}, *c, "the result of an earlier poll is not yielded")
	})
}

func TestStatesDoneContext(t *testing.T) {
	p := NewPoller(time.Second, func() *int { t.Error("a look"); return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range p.States(ctx) {
		t.Error("a state")
	}
}

// However users come and go, each sees something, and none leaves a poller.
func TestPollerUsers(t *testing.T) {
	var looking atomic.Int32
	p := NewPoller(time.Millisecond, func() *int {
		assert.Equal(t, int32(1), looking.Add(1), "one look at a time")
		defer looking.Add(-1)
		return new(1)
	})
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 200 {
				seen := 0
				for range p.States(t.Context()) {
					seen++
					break
				}
				assert.Equal(t, 1, seen)
				runtime.Gosched()
			}
		})
	}
	wait.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(t, p.users)
}
