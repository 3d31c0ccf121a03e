package main

import (
	"io"
	"os"
	"sync"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer/httplayer"
)

// accessLog writes the access log to a file that can be opened again.
type accessLog struct {
	format httplayer.AccessLogFormat
	stdout io.Writer

	mu   sync.Mutex
	to   io.Writer // nil: off
	file *os.File  // nil: stdout
}

func newAccessLog(c config.AccessLog, stdout io.Writer) (*accessLog, error) {
	l := &accessLog{format: httplayer.AccessLogFormat(c.Format), stdout: stdout}
	return l, l.reopen(c)
}

// reopen opens the file of c. A change of the format needs a restart.
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

// Write writes a line.
func (l *accessLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil {
		return len(line), nil
	}
	return l.to.Write(line)
}

// Close closes the file.
func (l *accessLog) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
	}
	l.to, l.file = nil, nil
}
