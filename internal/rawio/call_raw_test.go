//go:build linux && (amd64 || arm64) && !race && !portable

package rawio_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/rawio"
)

// The calls do not block on a blocking socket. A call that blocks would stop the scheduler.
func TestBlockingSocket(t *testing.T) {
	a, _ := pair(t)
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
