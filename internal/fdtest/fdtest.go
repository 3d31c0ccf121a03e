// Package fdtest checks in tests that all file descriptors are closed.
package fdtest

import (
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Check fails the test if more file descriptors are open after its last cleanup than now. The
// test must call Check before it opens any, and must not run in parallel. The garbage
// collector runs only at a heap of 1 GiB, because it closes connections that are unreachable.
// On systems without /proc, Check does nothing.
func Check(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // opens the files of the network poller
	require.NoError(t, err)
	require.NoError(t, l.Close())
	runtime.GC()
	limit := debug.SetMemoryLimit(1 << 30)
	percent := debug.SetGCPercent(-1)
	baseline := count(t)
	t.Cleanup(func() {
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.LessOrEqual(c, count(t), baseline, "open file descriptors")
		}, 30*time.Second, 10*time.Millisecond)
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	})
}

// count returns the number of open file descriptors.
func count(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(files)
}
