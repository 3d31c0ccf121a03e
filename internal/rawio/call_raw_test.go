//go:build linux && (amd64 || arm64) && !race && !portable

package rawio_test

import (
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
	"github.com/gotower/gotower/internal/rawio"
)

// The calls do not block on a blocking socket. A call that blocks would stop the scheduler.
func TestBlockingSocket(t *testing.T) {
	a, _ := conntest.Pair(t)
	raw, err := a.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { assert.NoError(t, syscall.SetNonblock(int(fd), false)) }))
	require.NoError(t, a.SetDeadline(time.Now().Add(100*time.Millisecond)))
	s := rawio.New(a)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = s.Write(make([]byte, 64<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// The runtime schedules other goroutines while one makes raw calls without a pause, on one processor:
// a busy goroutine is preempted, a timer fires, and the garbage collector completes.
func TestScheduling(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, b := conntest.Pair(t)
	var calls atomic.Int64
	var stop atomic.Bool
	done := make(chan struct{}, 2)
	go func() { // raw calls
		defer func() { done <- struct{}{} }()
		from, to, p := rawio.New(a), rawio.New(b), make([]byte, 1)
		for !stop.Load() {
			_, err := from.Write(p)
			assert.NoError(t, err)
			_, err = to.Read(p)
			assert.NoError(t, err)
			calls.Add(1)
		}
	}()
	go func() { // a loop without calls
		defer func() { done <- struct{}{} }()
		for spins := 0; !stop.Load(); {
			spins++
		}
	}()
	for range 5 {
		before := calls.Load()
		<-time.After(time.Millisecond)
		runtime.GC()
		for calls.Load() == before {
			runtime.Gosched()
		}
	}
	stop.Store(true)
	<-done
	<-done
}
