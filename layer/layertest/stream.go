package layertest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how much a stream holds before its writer must wait, as the
// socket buffers of a connection do.
const window = 64 << 10

var errHalfClosed = os.NewSyscallError("write", syscall.EPIPE)

// stream is one direction of a connection. All waiting is done in the Cond, and
// not with the mutex, because a synctest bubble knows the Cond to be durable.
type stream struct {
	mu      sync.Mutex
	changed *sync.Cond
	data    bytes.Buffer
	busy    bool // a write is running, because the bytes of one stay together
	broken  bool

	reader, writer end
}

// end is what one side of a stream has said.
type end struct {
	stopped  error // the reason for the end of this side
	deadline time.Time
	timer    *time.Timer // wakes the waiters at the deadline
}

func (e *end) late() bool {
	return !e.deadline.IsZero() && !time.Now().Before(e.deadline)
}

func (e *end) stop(why error) {
	e.stopped = why
	if e.timer != nil {
		e.timer.Stop()
	}
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.reader.stopped != nil:
			return 0, s.reader.stopped
		case s.reader.late():
			return 0, os.ErrDeadlineExceeded
		case s.broken:
			return 0, os.NewSyscallError("read", syscall.ECONNRESET)
		case len(p) == 0:
			return 0, nil
		case s.data.Len() > 0:
			s.changed.Broadcast()
			return s.data.Read(p)
		case s.writer.stopped != nil:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy {
		if err := s.unwritable(); err != nil {
			return 0, err
		}
		s.changed.Wait()
	}
	s.busy = true
	defer func() {
		s.busy = false
		s.changed.Broadcast()
	}()
	for {
		if err := s.unwritable(); err != nil {
			return n, err
		}
		k := min(len(p)-n, window-s.data.Len())
		s.data.Write(p[n : n+k])
		n += k
		s.changed.Broadcast()
		if n == len(p) {
			return n, nil
		}
		s.changed.Wait()
	}
}

func (s *stream) unwritable() error {
	switch {
	case s.writer.stopped != nil:
		return s.writer.stopped
	case s.writer.late():
		return os.ErrDeadlineExceeded
	case s.broken:
		return os.NewSyscallError("write", syscall.ECONNRESET)
	case s.reader.stopped != nil:
		return os.NewSyscallError("write", syscall.EPIPE)
	}
	return nil
}

// stopReading drops the unread bytes. It reports whether it was the first call.
func (s *stream) stopReading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader.stopped != nil {
		return false
	}
	s.reader.stop(net.ErrClosed)
	s.data.Reset()
	s.changed.Broadcast()
	return true
}

// stopWriting leaves the written bytes to be read. It reports false if the
// whole connection was closed before.
func (s *stream) stopWriting(why error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.writer.stopped, net.ErrClosed) {
		return false
	}
	s.writer.stop(why)
	s.changed.Broadcast()
	return true
}

func (s *stream) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	s.data.Reset()
	s.changed.Broadcast()
}

// setDeadline reports false for a side that was closed.
func (s *stream) setDeadline(e *end, t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(e.stopped, net.ErrClosed) {
		return false
	}
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	e.deadline = t
	if !t.IsZero() {
		// On the clock of the timer, so that both always agree.
		left := time.Until(t)
		e.deadline = time.Now().Add(left)
		if left > 0 {
			e.timer = time.AfterFunc(left, s.look)
		}
	}
	s.changed.Broadcast()
	return true
}

// look wakes all waiters.
func (s *stream) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}
