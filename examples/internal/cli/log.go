package cli

import (
	"context"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/gotower/gotower/internal/logwriter"
)

// Log returns a logger for a program that serves, and the writer behind it. handler should return
// a handler that writes to w. The logger never waits for stderr, so a stuck terminal cannot stall
// requests. Call [Flush] with the writer before the program ends.
//
// From then on, the process ignores SIGPIPE, so that it keeps running if nobody reads its
// standard output or standard error any more.
func Log(stderr io.Writer, handler func(w io.Writer) slog.Handler) (*slog.Logger, *logwriter.Writer) {
	signal.Ignore(syscall.SIGPIPE)
	// log is used by the function below, which runs later.
	var log *slog.Logger
	lines := logwriter.New(stderr, func(dropped int, err error) { logwriter.Report(log, "program", dropped, err) })
	log = slog.New(handler(lines))
	return log, lines
}

// TextLog makes [Log] write slog's text format, from level info.
func TextLog(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }

// Flush writes the lines that are still waiting. It gives up after a second.
func Flush(lines *logwriter.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = lines.Flush(ctx) // a stuck output cannot be reported
}
