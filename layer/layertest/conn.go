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

// conn is one end of a connection in memory. It reads from one stream and writes to another
// one.
type conn struct {
	network       string
	in, out       *stream
	local, remote net.Addr
}

// newConns returns both ends of a new connection: near has the address local, and far the address remote.
func newConns(network string, local, remote net.Addr) (near, far *conn) {
	forward := newStream()
	reverse := newStream()
	return &conn{network, reverse, forward, local, remote}, &conn{network, forward, reverse, remote, local}
}

// Read reads from the connection. It returns io.EOF without a wrapper, as package net does.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.fail("read", err)
	}
	return n, err
}

// Write writes p to the peer. It waits while the window is full.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	if err != nil {
		err = c.fail("write", err)
	}
	return n, err
}

// Close ends both directions. The other end can still read the bytes that were written
// before.
func (c *conn) Close() error {
	if !c.in.stopReading() {
		return c.fail("close", net.ErrClosed)
	}
	c.out.stopWriting(net.ErrClosed)
	return nil
}

// CloseWrite ends the direction to the other end. The other end can still write.
func (c *conn) CloseWrite() error {
	if !c.out.stopWriting(errHalfClosed) {
		return c.fail("close", net.ErrClosed)
	}
	return nil
}

// reset breaks the connection, so that both ends get ECONNRESET.
func (c *conn) reset() {
	c.in.reset()
	c.out.reset()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	if !c.in.setDeadline(&c.in.reader, t) {
		return c.fail("set", net.ErrClosed)
	}
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if !c.out.setDeadline(&c.out.writer, t) {
		return c.fail("set", net.ErrClosed)
	}
	return nil
}

// fail returns err as package net would return it for the operation op.
func (c *conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: c.network, Source: c.local, Addr: c.remote, Err: err}
}

// window is the size of a stream's buffer, in bytes. A Write waits while the buffer is full.
const window = 64 << 10

var errHalfClosed = os.NewSyscallError("write", syscall.EPIPE)

// stream is one direction of a connection. Readers and writers wait in a sync.Cond,
// because such a goroutine is durably blocked in a synctest bubble.
type stream struct {
	mu      sync.Mutex
	changed *sync.Cond
	data    bytes.Buffer
	busy    bool // a write is in progress; others wait, so that its bytes stay together
	broken  bool // the connection was reset

	reader, writer end
}

// end is one side of a stream, the reader or the writer. It records whether this side was closed,
// and its deadline.
type end struct {
	stopped  error // the error of calls after this side was closed; nil before
	deadline time.Time
	timer    *time.Timer // wakes the waiters at the deadline
}

// expired reports whether the deadline has passed.
func (e *end) expired() bool {
	return !e.deadline.IsZero() && !time.Now().Before(e.deadline)
}

// stop makes later calls of this side fail with cause.
func (e *end) stop(cause error) {
	e.stopped = cause
	if e.timer != nil {
		e.timer.Stop()
	}
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// read waits for bytes and moves them to p, or returns why there are none.
func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		// What this side has done itself comes first. The end of the stream comes after all bytes.
		switch {
		case s.reader.stopped != nil:
			return 0, s.reader.stopped
		case s.reader.expired():
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

// write adds p, in parts that fit into the window. One Write at a time runs.
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
		// k is the room in the window, which may be 0.
		k := min(len(p)-n, window-s.data.Len())
		s.data.Write(p[n : n+k])
		n += k
		// This wakes the reader, and after a wait below, the reader's progress wakes this loop.
		s.changed.Broadcast()
		if n == len(p) {
			return n, nil
		}
		s.changed.Wait()
	}
}

// unwritable returns why nothing can be written, or nil.
func (s *stream) unwritable() error {
	switch {
	case s.writer.stopped != nil:
		return s.writer.stopped
	case s.writer.expired():
		return os.ErrDeadlineExceeded
	case s.broken:
		return os.NewSyscallError("write", syscall.ECONNRESET)
	case s.reader.stopped != nil:
		return os.NewSyscallError("write", syscall.EPIPE)
	}
	return nil
}

// stopReading closes the reader's side and drops the unread bytes. It returns false if that
// side is closed already.
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

// stopWriting closes the writer's side and returns true. cause is the error that later writes
// return. Bytes that were written can still be read. If Close has stopped the writer before, with
// net.ErrClosed, stopWriting does nothing and returns false.
func (s *stream) stopWriting(cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.writer.stopped, net.ErrClosed) {
		return false
	}
	s.writer.stop(cause)
	s.changed.Broadcast()
	return true
}

// reset drops the bytes that were not read, and makes both ends fail, as a TCP reset does.
func (s *stream) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	s.data.Reset()
	s.changed.Broadcast()
}

// setDeadline sets the deadline of one end. It returns false if the end is closed.
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
		// The deadline and the timer use the same clock.
		remaining := time.Until(t)
		e.deadline = time.Now().Add(remaining)
		if remaining > 0 {
			e.timer = time.AfterFunc(remaining, s.wake)
		}
	}
	s.changed.Broadcast()
	return true
}

// wake wakes all goroutines that wait in read or write.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}
