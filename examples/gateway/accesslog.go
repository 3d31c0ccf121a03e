package main

import (
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/examples/internal/cli"
	"github.com/gotower/gotower/internal/logwriter"
	"github.com/gotower/gotower/layer/httplayer"
)

// accessLog writes one line per request to a file or to stdout. Requests never wait for it. While
// the gateway serves, open and use switch it to another file.
type accessLog struct {
	format httplayer.AccessLogFormat
	fields []string // fields in JSON lines; empty means all
	stdout io.Writer
	lines  *httplayer.LogWriter

	mu     sync.Mutex
	output io.Writer // where lines are written
}

// newAccessLog returns the access log that c configures. Dropped lines are reported to log.
func newAccessLog(c config.AccessLog, stdout io.Writer, log *slog.Logger) (*accessLog, error) {
	l := &accessLog{format: c.LogFormat(), fields: c.Fields, stdout: stdout}
	output, err := l.open(c)
	if err != nil {
		return nil, err
	}
	l.output = output
	// Requests do not wait for the log. If it cannot keep up, lines are dropped.
	l.lines = httplayer.NewLogWriter(output, func(dropped int, err error) { logwriter.Report(log, "access", dropped, err) })
	return l, nil
}

// open opens the file that c names. It ignores c's format, which takes effect only at start.
func (l *accessLog) open(c config.AccessLog) (io.Writer, error) {
	switch {
	case c.Format == "off":
		return io.Discard, nil
	case c.Path == "stdout":
		return l.stdout, nil
	}
	access := os.O_WRONLY
	// Without this file, for example before the first start, a regular file is created.
	if info, err := os.Stat(c.Path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		access = os.O_RDWR // with O_WRONLY, opening a named pipe would wait for a reader
	}
	return os.OpenFile(c.Path, os.O_APPEND|os.O_CREATE|access, 0o600)
}

// use directs later lines to output, which open returned, and closes the previous file.
func (l *accessLog) use(output io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Switch first, so that no line is written to a closed file.
	l.lines.SetOutput(output)
	l.close(l.output)
	l.output = output
}

// close closes what open returned.
func (l *accessLog) close(output io.Writer) {
	if file, ok := output.(io.Closer); ok && output != l.stdout {
		_ = file.Close()
	}
}

// Close writes the remaining lines and closes the file. Later lines are discarded.
func (l *accessLog) Close() {
	cli.Flush(l.lines)
	l.use(io.Discard)
}

// countDropped registers a metric that counts each log's dropped lines.
func (r *registry) countDropped(logs map[string]*httplayer.LogWriter) {
	for name, lines := range logs {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "log_dropped_lines_total", ConstLabels: prometheus.Labels{"log": name},
			Help: "Lines of a log that were dropped, because its output was stuck or failed.",
		}, func() float64 { return float64(lines.Dropped()) }))
	}
}
