package logwriter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/internal/logwriter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is the output of a log. Its function decides about each Write.
type script struct {
	mu    sync.Mutex
	next  func(p []byte) (int, error) // nil accepts everything
	wrote []string
}

func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	next := s.next
	s.mu.Unlock()
	n, err := len(p), error(nil)
	if next != nil {
		n, err = next(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrote = append(s.wrote, string(p[:n]))
	return n, err
}

func (s *script) set(next func(p []byte) (int, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = next
}

func (s *script) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

// reports collects the calls of the report function of a LogWriter.
type reports struct {
	mu  sync.Mutex
	all []string
}

func (r *reports) add(dropped int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprint(dropped, " ", err))
}

func (r *reports) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

func ignore(int, error) {}

func flush(t *testing.T, w *logwriter.Writer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, w.Flush(ctx))
}

// A full disk drops lines. When it has room again, the log says so and continues with a new
// line.
func TestFullDisk(t *testing.T) {
	var disk script
	var seen reports
	w := logwriter.New(&disk, seen.add)
	say := func(line string) {
		n, err := io.WriteString(w, line)
		require.NoError(t, err)
		require.Len(t, line, n)
		flush(t, w)
	}
	say("one\n")
	disk.set(func([]byte) (int, error) { return 2, syscall.ENOSPC })
	say("two\n")
	disk.set(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	say("three\n")
	say("four\nfive\n")
	disk.set(nil)
	say("six\n")
	disk.set(func(p []byte) (int, error) { return len(p) - 1, nil }) // a writer that breaks its contract
	say("seven\n")
	disk.set(func([]byte) (int, error) { panic("broken writer") })
	say("eight\n")
	disk.set(nil)
	say("nine")
	assert.Equal(t, "one\ntw\nsix\nseven\nnine", strings.Join(disk.lines(), ""))
	assert.EqualValues(t, 6, w.Dropped())
	texts := seen.texts()
	require.Len(t, texts, 4)
	assert.Equal(t, []string{"0 no space left on device", "4 <nil>", "0 short write", "2 <nil>"}, texts)
}

// A writer other than a file gets one line with each Write.
func TestLines(t *testing.T) {
	begun, held := make(chan struct{}, 1), make(chan struct{})
	out := &script{next: func(p []byte) (int, error) { begun <- struct{}{}; <-held; return len(p), nil }}
	w := logwriter.New(out, ignore)
	_, _ = io.WriteString(w, "one\n")
	<-begun
	out.set(nil)
	_, _ = io.WriteString(w, "two\nthree\n")
	_, _ = io.WriteString(w, "four\n")
	close(held)
	flush(t, w)
	assert.Equal(t, []string{"one\n", "two\n", "three\n", "four\n"}, out.lines())
}

// A line that is larger than the buffer is written, but not while other lines wait.
func TestLargeLine(t *testing.T) {
	var out script
	w := logwriter.New(&out, ignore)
	large := strings.Repeat("x", 2<<20) + "\n"
	_, _ = io.WriteString(w, large)
	flush(t, w)
	assert.Equal(t, []string{large}, out.lines())
	assert.Zero(t, w.Dropped())
}

// Another output works at once, although the former one is stuck.
func TestSetOutput(t *testing.T) {
	begun, held := make(chan struct{}), make(chan struct{})
	old := &script{next: func(p []byte) (int, error) { close(begun); <-held; return len(p), nil }}
	w := logwriter.New(old, ignore)
	_, _ = io.WriteString(w, "old\n")
	<-begun
	_, _ = io.WriteString(w, "waits\n")
	var now script
	w.SetOutput(&now)
	_, _ = io.WriteString(w, "new\n")
	flush(t, w)
	assert.Equal(t, []string{"waits\n", "new\n"}, now.lines())
	close(held)
	require.Eventually(t, func() bool { return len(old.lines()) == 1 }, time.Minute, time.Millisecond)
	assert.Equal(t, []string{"old\n"}, old.lines())
}

// A report is a message. A blocked report delays no line.
func TestReports(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	logwriter.Report(log, "access", 0, errors.New("full"))
	logwriter.Report(log, "access", 3, nil)
	assert.Regexp(t, `level=WARN msg="log lines are dropped" log=access err=full\n.*level=WARN msg="log lines were dropped" log=access lines=3\n`, text.String())

	held := make(chan struct{})
	out := &script{next: func([]byte) (int, error) { return 0, io.ErrClosedPipe }}
	w := logwriter.New(out, func(int, error) { <-held })
	_, _ = io.WriteString(w, "one\n")
	require.Eventually(t, func() bool { return w.Dropped() == 1 }, time.Minute, time.Millisecond)
	out.set(nil)
	_, _ = io.WriteString(w, "two\n")
	require.Eventually(t, func() bool { return len(out.lines()) == 2 }, time.Minute, time.Millisecond)
	close(held)
	flush(t, w)
}

// Many goroutines write while the output changes.
func TestConcurrent(t *testing.T) {
	outs := []*script{{}, {}, {}}
	w := logwriter.New(outs[0], ignore)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				_, _ = io.WriteString(w, "line\n")
			}
		})
	}
	for i := range 300 {
		w.SetOutput(outs[i%3])
	}
	all.Wait()
	flush(t, w)
	require.Eventually(t, func() bool {
		return len(outs[0].lines())+len(outs[1].lines())+len(outs[2].lines()) == 8000
	}, time.Minute, time.Millisecond)
	assert.Zero(t, w.Dropped())
}
