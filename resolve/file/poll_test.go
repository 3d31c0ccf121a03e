package file

import (
	"context"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pollers counts the goroutines that look at a file, as package follow has them.
func pollers() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), ").poll(")
}

func TestPollGoroutine(t *testing.T) {
	path := temp(t, web("10.0.0.1:80"))
	require.Eventually(t, func() bool { return pollers() == 0 }, 20*time.Second, time.Millisecond, "of tests before")
	synctest.Test(t, func(t *testing.T) {
		r := New(path)
		var all []*follower
		for _, target := range []string{"web", "web", "a", "b", "c"} {
			all = append(all, follows(t, r, target))
			synctest.Wait()
			require.Equal(t, 1, pollers())
		}
		for _, f := range all {
			require.Equal(t, 1, pollers())
			f.cancel()
			synctest.Wait()
		}
		require.Zero(t, pollers(), "without waiting for the next tick")

		again := follows(t, r, "web")
		again.expect(t, 0, "replace 10.0.0.1:80")
		require.Equal(t, 1, pollers())
		again.cancel()
		synctest.Wait()
		require.Zero(t, pollers())
	})
}

// A change of the file without streams is read before the next stream gets an answer.
func TestPollAfterPause(t *testing.T) {
	path := temp(t, web("10.0.0.1:80"))
	synctest.Test(t, func(t *testing.T) {
		r := New(path)
		once := func(want ...string) {
			t.Helper()
			f := follows(t, r, "web")
			f.expect(t, 0, want...)
			f.cancel()
			time.Sleep(time.Hour)
		}
		once("replace 10.0.0.1:80")
		replace(t, path, web("10.0.0.2:80"))
		once("replace 10.0.0.2:80")
		// The last good content outlives the pause.
		require.NoError(t, os.Remove(path))
		once("replace 10.0.0.2:80", "file: stat "+path+": no such file or directory")
		replace(t, path, "destinations: {}")
		once("does not exist")
	})
}

func TestDoneContext(t *testing.T) {
	r := New(temp(t, web("10.0.0.1:80")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range r.Resolve(ctx, "web") {
		t.Error("an item after the context was done")
	}
}

// Streams that begin and end concurrently get an answer each and leak no poller.
func TestStreamsConcurrent(t *testing.T) {
	r := newResolver(temp(t, web("10.0.0.1:80")), time.Millisecond)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 200 {
				answers := 0
				for u, err := range r.Resolve(t.Context(), "web") {
					assert.Equal(t, "replace 10.0.0.1:80", words(u, err))
					answers++
					break
				}
				assert.Equal(t, 1, answers)
				runtime.Gosched()
			}
		})
	}
	wait.Wait()
}
