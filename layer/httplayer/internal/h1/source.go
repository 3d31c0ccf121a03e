package h1

import (
	"errors"
	"io"
	"net"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

const (
	smallSize = 8 << 10
	bigSize   = 32 << 10 // 1 MiB through 64 KiB costs a third more, because the copies leave the cache
)

// errInterrupted reports that a read was interrupted by another goroutine, by means of a deadline. It
// is no failure: the reading goroutine checks whether it should stop, and otherwise reads again.
var errInterrupted = errors.New("read interrupted")

// source is the receiving half of a connection. One goroutine at a time uses it. It holds a
// buffer only while bytes are unread or a read is in progress.
type source struct {
	conn   net.Conn
	failed func(error) error // converts the error of a read, possibly to errInterrupted

	buf  *message.Buffer
	r, w int // buf.B[r:w] is unread

	err  error     // error of an exchange, which the next read returns
	idle *idleRead // Read that the next read completes; may be nil
}

// buffered returns the number of unread bytes in the buffer.
func (s *source) buffered() int { return s.w - s.r }

// unread returns the unread bytes. They are valid until the next read.
func (s *source) unread() []byte {
	if s.buf == nil {
		return nil
	}
	return s.buf.B[s.r:s.w]
}

// reserve makes sure that the source holds a buffer, which it takes from the pool if needed. An empty
// buffer is used from its start.
func (s *source) reserve() {
	if s.buf == nil {
		s.buf = message.GetBuffer(smallSize)
	}
	if s.r == s.w {
		s.r, s.w = 0, 0
	}
}

// fill reads once from the connection into the buffer and returns the number of bytes. If the buffer is
// full, fill first makes room: it moves unread bytes to the start, or takes a larger buffer. limit is
// the size in bytes from which a full buffer is not enlarged, but an error.
func (s *source) fill(limit int) (int, error) {
	s.reserve()
	switch {
	case s.w < cap(s.buf.B): // there is room
	case s.r > 0: // move the unread bytes over those that were read
		s.w = copy(s.buf.B[:s.w], s.buf.B[s.r:s.w])
		s.r = 0
	case s.w >= limit:
		return 0, errTooLarge
	default:
		larger := message.GetBuffer(max(smallSize, min(2*s.w, limit)))
		copy(larger.B[:s.w], s.buf.B[:s.w])
		s.buf.Release()
		s.buf = larger
	}
	n, err := s.read(s.space())
	s.w += n
	return n, err
}

// space returns the free part of the buffer.
func (s *source) space() []byte { return s.buf.B[s.w:cap(s.buf.B)] }

// read returns the error that an exchange has stored in s.err, if there is one. Otherwise
// it reads once from the connection. It returns either bytes or an error, not both.
func (s *source) read(p []byte) (int, error) {
	n := 0
	err := s.err
	switch {
	case err != nil:
	case s.idle != nil:
		n, err = s.idle.result(p)
	default:
		n, err = s.conn.Read(p)
	}
	s.err, s.idle = nil, nil
	switch {
	case n > 0:
		return n, nil // the next read returns the error again
	case err == nil:
		return 0, io.ErrNoProgress
	}
	return 0, s.failed(err)
}

// release returns the buffer to the pool if it holds no unread bytes. It is called before long waits,
// so that idle connections need no buffer.
func (s *source) release() {
	if s.buf != nil && s.r == s.w {
		s.buf.Release()
		s.buf, s.r, s.w = nil, 0, 0
	}
}

// drop discards the unread bytes and returns the buffer to the pool.
func (s *source) drop() {
	s.r = s.w
	s.release()
}

// noEOF converts io.EOF to io.ErrUnexpectedEOF, for a connection that ends inside a
// message.
func noEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // a connection returns it unwrapped
		return io.ErrUnexpectedEOF
	}
	return err
}
