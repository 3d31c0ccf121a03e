package reliability

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Environment variables of TestIdleFloor's server, which runs in its own process.
const (
	floorWith  = "GOTOWER_TEST_FLOOR"
	goroutines = "a goroutine for each"
	netHTTP    = "net/http"
)

// Row 6: the memory that a Go program keeps after its connections have ended, although it returns
// all it can. That is the minimum for the proxy, whose connections have two sides.
func TestIdleFloor(t *testing.T) {
	if !full {
		t.Skip("it measures what Go keeps: set GOTOWER_TESTS=full")
	}
	for _, with := range []string{goroutines, netHTTP} {
		s := startFloor(t, with)
		const n = 5000
		s.openAndClose(t, n/10) // for allocations that occur only once
		before := s.rss(t)
		s.openAndClose(t, n)
		first := s.rss(t)
		s.openAndClose(t, n)
		t.Logf("%d connections to %s: RSS %.1f MiB before, %.1f after (%+.1f), and %.1f after as many again",
			n, with, before, first, first-before, s.rss(t))
		// If a later version of Go keeps less, row 6's criterion can be met.
		assert.Greater(t, first-before, 2.4, "more than a tenth of what the proxy takes by itself")
	}
}

// floor is a server that does nothing but send a response.
type floor struct {
	addr  string
	give  io.Writer
	given *bufio.Scanner
	pid   int
}

func startFloor(t *testing.T, with string) *floor {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAsFloor$", "-test.timeout=15m")
	cmd.Env = append(os.Environ(), floorWith+"="+with)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = t.Output()
	give, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, give.Close())
		assert.NoError(t, cmd.Wait())
	})
	f := &floor{give: give, given: bufio.NewScanner(out), pid: cmd.Process.Pid}
	f.addr = f.readLine(t)
	return f
}

func (f *floor) readLine(t *testing.T) string {
	t.Helper()
	require.True(t, f.given.Scan(), "the server has ended")
	return f.given.Text()
}

// openAndClose opens n connections with one request each, and closes them.
func (f *floor) openAndClose(t *testing.T, n int) {
	t.Helper()
	ends := make([]func(), 0, n)
	for range n {
		ends = append(ends, idleH1(t, f.addr))
	}
	for _, end := range ends {
		end()
	}
}

// rss returns the RSS in MiB after all connections are closed and free memory is returned.
func (f *floor) rss(t *testing.T) float64 {
	t.Helper()
	_, err := fmt.Fprintln(f.give, "give back")
	require.NoError(t, err)
	require.Equal(t, "given", f.readLine(t))
	return rss(t, f.pid)
}

// TestAsFloor is the process that startFloor starts. It tests nothing by itself.
func TestAsFloor(t *testing.T) {
	with, ok := os.LookupEnv(floorWith)
	if !ok {
		t.Skip("it is for another test")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	open, ended := sync.NewCond(new(sync.Mutex)), make(chan struct{})
	conns := 0
	count := func(n int) {
		open.L.Lock()
		defer open.L.Unlock()
		conns += n
		open.Broadcast()
	}
	go func() {
		defer close(ended)
		if with == netHTTP {
			serveHTTP(l, count)
		} else {
			serveEach(l, count)
		}
	}()
	fmt.Println(l.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		open.L.Lock()
		for conns > 0 {
			open.Wait()
		}
		open.L.Unlock()
		debug.FreeOSMemory()
		fmt.Println("given")
	}
	require.NoError(t, l.Close())
	<-ended
}

func serveHTTP(l net.Listener, count func(int)) {
	s := &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				count(1)
			case http.StateClosed, http.StateHijacked:
				count(-1)
			case http.StateActive, http.StateIdle:
			}
		},
	}
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		panic(err)
	}
}

func serveEach(l net.Listener, count func(int)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		count(1)
		go func() {
			defer count(-1)
			defer conn.Close()
			var room [256]byte
			if _, err := conn.Read(room[:]); err == nil {
				_, _ = io.Copy(conn, strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
			}
			_, _ = conn.Read(room[:]) // until it is closed
		}()
	}
}
