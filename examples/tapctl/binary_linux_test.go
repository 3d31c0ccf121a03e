package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tapctl runs the program as a user does.
func tapctl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), program+"=run", "TERM=xterm-256color", "NO_COLOR=")
	return cmd
}

func TestBinary(t *testing.T) {
	t.Parallel()
	t.Run("exit status", func(t *testing.T) {
		t.Parallel()
		testExitStatus(t)
	})
	t.Run("on a terminal", func(t *testing.T) {
		t.Parallel()
		testOnATerminal(t)
	})
	t.Run("refused on a terminal", func(t *testing.T) {
		t.Parallel()
		testRefusedOnATerminal(t)
	})
}

func testExitStatus(t *testing.T) {
	p := newTapped(t, ours)
	exit := func(args ...string) (status int, stderr string) {
		cmd := tapctl(t.Context(), args...)
		var b bytes.Buffer
		cmd.Stderr = &b
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode(), b.String()
	}
	for d := 100 * time.Millisecond; ; d *= 2 { // until it has the time to connect
		status, stderr := exit("tap", "--for", d.String(), p.addr)
		if status == 0 || d > waits {
			require.Zero(t, status)
			require.Contains(t, stderr, "tapctl: no such request")
			break
		}
	}
	for _, tt := range []struct {
		status int
		says   string
		args   []string
	}{
		{0, "", []string{"--help"}},
		{0, "", []string{"check", "--wait", "10ms", p.addr}},
		{1, "", []string{"check", vacant(t)}},
		{1, "tapctl: ", []string{"top", "--once", vacant(t)}},
		{2, "tapctl: ", []string{"tap", "--nope"}},
		{2, "tapctl: ", nil},
	} {
		status, stderr := exit(tt.args...)
		require.Equal(t, tt.status, status, "%v: %s", tt.args, stderr)
		require.Equal(t, tt.says != "", strings.Contains(stderr, "tapctl: "), "%v: %s", tt.args, stderr)
	}
}

// pty is a pseudo terminal that keeps the output of the program.
type pty struct {
	master, slave *os.File
	seen          safe
	read          sync.WaitGroup
}

func openPTY(t *testing.T, columns, lines uint16) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		t.Skip("there are no pseudo terminals here: ", err)
	}
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &pty{master: master, slave: slave}
	p.resize(t, columns, lines)
	p.read.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.seen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		slave.Close()
		p.read.Wait()
		master.Close()
	})
	return p
}

func (p *pty) resize(t *testing.T, columns, lines uint16) {
	t.Helper()
	require.NoError(t, unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}))
}

// sees waits until the program has written all texts since the last call.
func (p *pty) sees(t *testing.T, all ...string) {
	t.Helper()
	for _, what := range all {
		require.Eventually(t, func() bool { return strings.Contains(p.seen.String(), what) }, waits, 10*time.Millisecond, what)
	}
	p.seen.mu.Lock()
	p.seen.b.Reset()
	p.seen.mu.Unlock()
}

func (p *pty) types(t *testing.T, keys string) {
	t.Helper()
	_, err := p.master.WriteString(keys)
	require.NoError(t, err)
}

// The screens of the rows, of the requests of a row and of one request, at two sizes. At
// the end, the terminal has its previous state.
func testOnATerminal(t *testing.T) {
	p := newTapped(t, ours)
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() { p.send(ctx) })
	t.Cleanup(func() {
		cancel()
		sending.Wait()
	})
	for name, end := range map[string]func(*testing.T, *pty, *os.Process){
		"q":       func(t *testing.T, p *pty, _ *os.Process) { p.types(t, "q") },
		"ctrl-c":  func(t *testing.T, p *pty, _ *os.Process) { p.types(t, "\x03") },
		"SIGTERM": func(t *testing.T, _ *pty, p *os.Process) { require.NoError(t, p.Signal(syscall.SIGTERM)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := openPTY(t, 100, 24)
			before, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
			require.NoError(t, err)
			cmd := tapctl(t.Context(), "top", p.addr)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, term.slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			require.NoError(t, cmd.Start())

			term.sees(t, "/seen/a")
			if name == "q" {
				walk(t, term)
			}
			end(t, term, cmd.Process)
			require.NoError(t, cmd.Wait())
			after, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
			require.NoError(t, err)
			require.Equal(t, before, after)
			term.sees(t, "\x1b[?1049l")
		})
	}
}

// When no process is left, the program prints the reason and ends.
func testRefusedOnATerminal(t *testing.T) {
	p := newTapped(t, ours)
	term := openPTY(t, 100, 24)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := tapctl(ctx, "top", "--header", "authorization=x", p.addr)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := cmd.Run()
	require.NoError(t, ctx.Err())
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), err)
	require.Equal(t, 1, strings.Count(stderr.String(), "The value of this header field is withheld"), stderr.String())
	term.sees(t, "\x1b[?1049l")
}

func walk(t *testing.T, term *pty) {
	t.Helper()
	term.types(t, "/seen/c\r\r")
	term.sees(t, "Took", "418")
	term.types(t, "\r")
	term.sees(t, "why there", "chosen=10.0.0.1:80")
	term.types(t, "\x1b")
	term.sees(t, "Took")
	term.types(t, "\x1b")
	term.sees(t, "Best")
	term.resize(t, 140, 40)
	term.sees(t, "P99")
}
