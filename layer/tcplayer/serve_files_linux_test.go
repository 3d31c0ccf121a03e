package tcplayer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fewFiles is set in the process with a low limit of open files.
const fewFiles = "TCPLAYER_TEST_FEW_FILES"

// After a lack of file descriptors Serve accepts again, and also the
// connections made in the meantime.
func TestServeWithoutFiles(t *testing.T) {
	if os.Getenv(fewFiles) != "" {
		serveWithFewFiles(t)
		return
	}
	const clients = 40
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServeWithoutFiles$", "-test.timeout=2m")
	child.Env = append(os.Environ(), fewFiles+"=1")
	stop, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	at := lines.Text()

	conns := make([]net.Conn, clients)
	for i := range conns {
		conns[i], err = net.Dial("tcp", at)
		require.NoError(t, err)
		require.NoError(t, conns[i].SetDeadline(time.Now().Add(time.Minute)))
	}
	for !strings.Contains(lines.Text(), "too many open files") && lines.Scan() {
		t.Log(lines.Text())
	}
	assert.Contains(t, lines.Text(), "accept failed, retrying")
	go io.Copy(io.Discard, out)
	for i, conn := range conns {
		require.NoError(t, say(conn), "client %d", i)
		conn.Close()
	}
	stop.Close()
	require.NoError(t, child.Wait())
}

func serveWithFewFiles(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	few := uint64(len(open) + 8)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: few, Max: few}))
	fmt.Println(l.Addr())
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	require.NoError(t, Serve(ctx, l, holding(), WithLogger(slog.New(slog.NewTextHandler(os.Stdout, nil)))))
}
