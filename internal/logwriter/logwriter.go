// Package logwriter writes the lines of a log without making the caller wait.
package logwriter

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
)

// Writer is an [io.Writer] for log lines. Write never waits for the output, so that a stuck pipe
// or a full disk does not delay the caller. It copies the lines to a buffer of 1 MiB, from which
// a goroutine writes them to the output. The goroutine pauses after each write, so that a busy
// program writes many lines at once, and runs only while there are lines. Lines are dropped and
// counted if the buffer is full, and if the output returns an error.
//
// A Writer does not close its output. It is safe for concurrent use.
type Writer struct {
	report func(dropped int, err error)
	idle   notify.Broadcast

	mu      sync.Mutex
	output  *destination
	lines   []byte // lines that no goroutine writes yet
	spare   []byte // buffer for later lines
	failing int    // lines that were dropped since the first failure; 0 if there is none
	dropped uint64

	reports   []func() // calls of report that are left
	reporting bool     // a goroutine calls them
}

// destination is the output of a Writer since New or SetOutput.
type destination struct {
	io.Writer
	run  func() // writes lines
	busy bool   // a goroutine writes; guarded by the mu of the Writer
	torn bool   // the last line was written in part; only the goroutine uses it
}

const (
	maxBuffer = 1 << 20   // largest size of the lines that wait, in bytes
	maxSpare  = 128 << 10 // largest size of a buffer that is kept, in bytes

	pause = time.Millisecond // after each write of fewer than maxSpare bytes
)

// New returns a Writer that writes to output. Each line is one Write, except that several lines can
// be one Write to an [os.File].
//
// report is called when lines begin to be dropped, with 0 and the reason. When all waiting lines
// have been written, it is called again, with the number of dropped lines and nil. A blocked report
// delays no line.
func New(output io.Writer, report func(dropped int, err error)) *Writer {
	w := &Writer{report: report}
	w.SetOutput(output)
	return w
}

// Report logs to log that lines of the log with the given name are dropped, or that this has ended.
// dropped and err are what the report function of [New] receives.
func Report(log *slog.Logger, name string, dropped int, err error) {
	if err != nil {
		log.Warn("log lines are dropped", "log", name, "err", err)
		return
	}
	log.Warn("log lines were dropped", "log", name, "lines", dropped)
}

// The reason for dropped lines when the buffer is full.
var errFull = errors.New("the output is stuck or too slow")

// Write adds p, which should be one or more whole lines, to the buffer. It always returns the
// length of p and nil.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) > 0 && len(w.lines)+len(p) > maxBuffer {
		w.drop(countLines(p), errFull)
		return len(p), nil
	}
	w.lines = append(w.lines, p...)
	w.start()
	return len(p), nil
}

// start makes a goroutine write the lines, unless one does already. The caller holds mu.
func (w *Writer) start() {
	if !w.output.busy && len(w.lines) > 0 {
		w.output.busy = true
		go w.output.run()
	}
}

// write writes lines to out until none is left, or until out is no longer the output. It runs on the
// goroutine that start starts.
func (w *Writer) write(out *destination) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.output == out && len(w.lines) > 0 {
		batch := w.lines
		// Swap the buffers: Write fills one while this goroutine writes the other.
		w.lines = w.spare[:0]
		w.spare = nil
		w.mu.Unlock()
		dropped, err := out.writeLines(batch)
		w.mu.Lock()
		switch {
		case err != nil:
			w.drop(dropped, err)
		case len(w.lines) == 0:
			w.recover()
		}
		// A large buffer is only needed while the output is slow.
		if cap(batch) <= maxSpare {
			w.spare = batch
		}
		if len(batch) < maxSpare {
			w.mu.Unlock()
			time.Sleep(pause) //nolint:forbidigo // more lines arrive meanwhile, and nothing else ends the pause
			w.mu.Lock()
		}
	}
	out.busy = false
	w.idle.Wake()
}

// writeLines writes lines. It returns the number of lines that were not written completely, and
// the last error.
func (o *destination) writeLines(lines []byte) (dropped int, err error) {
	// A file takes any number of lines at once. Any other output gets one line per Write.
	_, isFile := o.Writer.(*os.File)
	for len(lines) > 0 {
		size := len(lines)
		if end := bytes.IndexByte(lines, '\n'); end >= 0 && !isFile {
			size = end + 1
		}
		n, failure := o.writeAll(lines[:size])
		if failure != nil {
			err = failure
			dropped += countLines(lines[n:size])
		}
		lines = lines[size:]
	}
	return dropped, err
}

// writeAll writes p. If an earlier call has written only the beginning of a line, writeAll ends that
// line first. It returns the number of bytes of p that were written, and an error if it is less
// than len(p).
func (o *destination) writeAll(p []byte) (n int, err error) {
	defer panics.Recover(&err)
	if o.torn {
		if _, err := o.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		o.torn = false
	}
	n, err = o.Write(p)
	// A Writer from elsewhere may return any number.
	n = min(max(n, 0), len(p))
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	o.torn = n > 0 && p[n-1] != '\n'
	return n, err
}

// countLines returns the number of lines in p, and at least 1, because p may be a part of a line.
func countLines(p []byte) int { return max(bytes.Count(p, []byte{'\n'}), 1) }

// drop counts lines that were dropped because of err. The caller holds mu.
func (w *Writer) drop(lines int, err error) {
	if w.failing == 0 {
		w.later(0, err)
	}
	w.failing += lines
	w.dropped += uint64(lines)
}

// recover is called when all waiting lines have been written. If lines were dropped before, it reports
// how many, and that this has ended. It has nothing to do with panics. The caller holds mu.
func (w *Writer) recover() {
	if w.failing > 0 {
		w.later(w.failing, nil)
		w.failing = 0
	}
}

// later calls w.report on a goroutine, after the earlier calls. The caller holds mu.
func (w *Writer) later(dropped int, err error) {
	w.reports = append(w.reports, func() { w.report(dropped, err) })
	if !w.reporting {
		w.reporting = true
		go w.callReports()
	}
}

// callReports calls the reports one after the other, without mu, because they may block.
func (w *Writer) callReports() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.reports) > 0 {
		// A report is code of the user, so it runs without mu, and the list may grow meanwhile.
		report := w.reports[0]
		w.reports = w.reports[1:]
		w.mu.Unlock()
		_ = panics.Contain(report)
		w.mu.Lock()
	}
	w.reporting = false
	w.idle.Wake()
}

// Flush waits until all lines are written or dropped. If ctx ends first, the lines stay in the
// buffer, and Flush returns the cause of ctx. You should call Flush before the program ends, with
// a time limit, because the output may be stuck.
func (w *Writer) Flush(ctx context.Context) error {
	return w.idle.Wait(ctx, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.lines) == 0 && !w.output.busy && !w.reporting
	})
}

// SetOutput writes the lines in the buffer and later lines to output, for example to a new file
// after a rotation. A Write to the former output that is in progress continues. If the former
// output is closed during that Write, the lines of the Write can be lost.
func (w *Writer) SetOutput(output io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &destination{Writer: output}
	out.run = func() { w.write(out) }
	w.output = out
	w.start()
}

// Dropped returns the number of lines that were dropped.
func (w *Writer) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}
