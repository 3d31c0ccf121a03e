package main

import (
	"io"
	"os"
	"sync"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer/httplayer"
)

// accessLog is the writer of the access log. It writes to a file or to stdout. reopen
// switches it to another file while the gateway serves.
type accessLog struct {
	format httplayer.AccessLogFormat
	stdout io.Writer

	mu   sync.Mutex
	to   io.Writer // destination of the lines; nil means that the log is off
	file *os.File  // open file; nil if the lines go to stdout
}

func newAccessLog(c config.AccessLog, stdout io.Writer) (*accessLog, error) {
	l := &accessLog{format: httplayer.AccessLogFormat(c.Format), stdout: stdout}
	return l, l.reopen(c)
}

// reopen opens the file that c specifies, and closes the previous file. It does not change
// the format of the lines, because the gateway reads the format only at start.
func (l *accessLog) reopen(c config.AccessLog) error {
	var to io.Writer
	var file *os.File
	switch {
	case c.Format == "off":
	case c.Path == "stdout":
		to = l.stdout
	default:
		var err error
		if file, err = os.OpenFile(c.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return err
		}
		to = file
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
	}
	l.to, l.file = to, file
	return nil
}

// Write writes one line of the log. It does nothing if the log is off.
func (l *accessLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil {
		return len(line), nil
	}
	return l.to.Write(line)
}

// Close closes the file, if there is one. Later lines are discarded.
func (l *accessLog) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
	}
	l.to, l.file = nil, nil
}
