package main

import (
	"io"
	"os"
	"sync"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer/httplayer"
)

// accessLog is the writer of the access log. It writes to a file or to stdout. open and use
// switch it to another file while the gateway serves.
type accessLog struct {
	format httplayer.AccessLogFormat
	stdout io.Writer

	mu sync.Mutex
	to io.WriteCloser // destination of the lines; nil means that the log is off
}

func newAccessLog(c config.AccessLog, stdout io.Writer) (l *accessLog, err error) {
	l = &accessLog{format: httplayer.AccessLogFormat(c.Format), stdout: stdout}
	l.to, err = l.open(c)
	return l, err
}

// open opens the file that c specifies. It does not use the format in c, because the gateway
// reads the format only at start.
func (l *accessLog) open(c config.AccessLog) (io.WriteCloser, error) {
	switch {
	case c.Format == "off":
		return nil, nil //nolint:nilnil // no log
	case c.Path == "stdout":
		return unclosed{l.stdout}, nil
	}
	return os.OpenFile(c.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}

// unclosed is a writer that stays open.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// use makes the result of open the destination of later lines, and closes the previous file.
func (l *accessLog) use(to io.WriteCloser) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		_ = l.to.Close()
	}
	l.to = to
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
func (l *accessLog) Close() { l.use(nil) }
