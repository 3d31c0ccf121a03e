package h2

import (
	"io"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

var (
	errShortBody error = &message.RequestError{Reason: "body shorter than its content-length"}
	errLongBody  error = &message.RequestError{Reason: "body longer than its content-length"}
)

// wakeBlocked wakes the senders that wait for the connection, with mu held.
func (c *conn) wakeBlocked() {
	for i, st := range c.blocked {
		c.blocked[i] = nil
		st.blocked = false
		st.sendable.Signal()
	}
	c.blocked = c.blocked[:0]
}

// queueData queues as much of p as the windows and the output allow, and the end
// of the stream if all was queued. It returns the number of bytes. With mu held.
func (c *conn) queueData(st *stream, p []byte, end bool) (n int) {
	c.output()
	for n < len(p) {
		k := int(min(int64(len(p)-n), c.sendWindow, st.sendWindow, int64(c.peerFrame)))
		if k <= 0 || len(c.out.b) > maxQueuedData {
			return n
		}
		c.appendData(st, p[n:n+k])
		c.sendWindow -= int64(k)
		st.sendWindow -= int64(k)
		st.stalled = 0
		n += k
	}
	if !end {
		return n
	}
	if !c.isLastData(st) {
		c.appendData(st, nil)
	}
	c.out.b[c.lastData+4] |= flagEndStream
	c.lastDataID = 0
	st.endSent()
	return n
}

// isLastData reports whether a DATA frame of st is the last frame of the output.
func (c *conn) isLastData(st *stream) bool {
	return c.lastDataID == st.id && c.lastData+frameHead+frameLength(c.out.b[c.lastData:]) == len(c.out.b)
}

// appendData appends p to the last frame if it is DATA of st and has room, else
// a frame.
func (c *conn) appendData(st *stream, p []byte) {
	c.out = c.out.grown(frameHead + len(p))
	out := c.out
	if len(p) > 0 && c.isLastData(st) {
		head := out.b[c.lastData:]
		if n := frameLength(head) + len(p); n <= c.peerFrame {
			head[0], head[1], head[2] = byte(n>>16), byte(n>>8), byte(n)
			out.b = append(out.b, p...)
			return
		}
	}
	c.lastData, c.lastDataID = len(out.b), st.id
	out.frame(len(p), frameData, 0, st.id)
	out.b = append(out.b, p...)
}

// failure returns why the stream cannot send, with the mu of the connection held.
func (st *stream) failure() error {
	if st.sendErr != nil {
		return st.sendErr
	}
	return st.c.err
}

// waitSendable waits until more can be queued, with the mu of the connection held.
func (st *stream) waitSendable() {
	c := st.c
	c.kick()
	if st.sendWindow > 0 && !st.blocked {
		st.blocked = true
		c.blocked = append(c.blocked, st)
	}
	st.waiting = true
	st.sendable.Wait()
	st.waiting = false
}

// send queues all of p, and waits for windows and for the writer. Large data is
// written soon, small data with the next flush.
func (st *stream) send(p []byte) (n int, err error) {
	const flushed = 4 << 10
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := st.failure(); err != nil {
			return n, err
		}
		n += c.queueData(st, p[n:], false)
		if n == len(p) {
			if c.isLastData(st) && frameLength(c.out.b[c.lastData:]) >= flushed {
				c.kick()
			}
			return n, nil
		}
		st.waitSendable()
	}
}

// finish queues the end of the stream.
func (st *stream) finish(trailer http.Header) error {
	c := st.c
	c.mu.Lock()
	defer c.unlock()
	if !st.sentEnd {
		if err := st.failure(); err != nil {
			return err
		}
		c.queueTrailers(st, trailer)
	}
	c.kick()
	return nil
}

// sender sends a body.
type sender struct {
	st      *stream
	body    io.Reader
	trailer *http.Header // has its values after the end of the body
	left    int64        // of the content-length, or -1
	buf     *buffer      // has what was read and not queued
	eof     bool
	full    bool // the last Read filled the buffer

	announces bool // trailers were known before the body was read
}

// fill reads the next part of the body. If wait is false, it reads only what is
// pending.
func (s *sender) fill(wait bool) error {
	n, eof := message.Pending(s.body)
	if !wait && n == 0 && !eof {
		return nil
	}
	if s.full {
		n = largeBuffer
	}
	s.buf = newBuffer(n)
	for !s.eof {
		room := s.buf.b[len(s.buf.b):cap(s.buf.b)]
		n, err := s.body.Read(room)
		s.buf.b = s.buf.b[:len(s.buf.b)+n]
		s.full = n == len(room)
		if err := s.count(n, err); err != nil {
			return err
		}
		more, eof := message.Pending(s.body)
		atEnd := eof && more == 0 || s.left == 0 && s.probes()
		if atEnd && n > 0 && n < len(room) {
			continue // for io.EOF
		}
		if s.eof || more == 0 || len(s.buf.b) >= largeBuffer {
			break
		}
		s.buf = s.buf.grown(min(more, largeBuffer-len(s.buf.b)))
	}
	if s.eof && len(s.buf.b) == 0 { // END_STREAM is sent with the headers
		s.buf.release()
		s.buf = nil
	}
	return nil
}

// count checks what a Read of the body returned.
func (s *sender) count(n int, err error) error {
	if s.left >= 0 {
		if s.left -= int64(n); s.left < 0 {
			return errLongBody
		}
	}
	switch {
	case err == io.EOF: //nolint:errorlint // a reader returns it as it is
		s.eof = true
		if s.left > 0 {
			return errShortBody
		}
	case err != nil:
		return err
	}
	return nil
}

// probes reports whether a body of known length is read once more for its end,
// so that the end is in the last frame. That could block a received body.
func (s *sender) probes() bool {
	_, received := s.body.(interface{ Pending() (int, bool) })
	return !received && len(*s.trailer) == 0
}

// queue queues what was read, and the end of the stream after it. It reports
// whether the end was queued. With the mu of the connection held.
func (s *sender) queue() (done bool) {
	trailers := s.eof && s.trailer != nil && hasTrailers(*s.trailer)
	if s.buf != nil || s.eof && !trailers {
		rest := s.buf.unread()
		n := s.st.c.queueData(s.st, rest, s.eof && !trailers)
		if n < len(rest) {
			s.buf.off += n
			return false
		}
		s.buf.release()
		s.buf = nil
	}
	if trailers {
		s.st.c.queueTrailers(s.st, *s.trailer)
	}
	return s.eof
}

// run sends the rest of the body. If the body fails, it resets the stream.
func (s *sender) run() error {
	c := s.st.c
	defer func() { s.buf.release(); s.buf = nil }()
	for {
		c.mu.Lock()
		for {
			if err := s.st.failure(); err != nil || s.st.sentEnd {
				c.unlock()
				return err
			}
			done := s.queue()
			c.kick()
			if done {
				c.unlock()
				return nil
			}
			if s.buf == nil {
				break
			}
			s.st.waitSendable()
		}
		c.unlock()
		if err := s.fill(true); err != nil {
			s.st.reset(message.ResetCode(err), err)
			return err
		}
	}
}

func validTrailer(key string) bool {
	if n := byCanonical[key]; n != nil {
		return n.kind == plainName
	}
	return message.ValidTrailer(key)
}

func hasTrailers(h http.Header) bool {
	for key, values := range h {
		if len(values) > 0 && validTrailer(key) {
			return true
		}
	}
	return false
}

func validValue(value string) bool { return message.ValidValueBytes([]byte(value)) }

// validHeader returns a reason why a header cannot be sent, or "".
func validHeader(h http.Header) string {
	for key, values := range h {
		if n := byCanonical[key]; n == nil && !message.ValidName(key) {
			return "invalid field name " + quoted(key)
		}
		for _, value := range values {
			if !validValue(value) {
				return "invalid value of the field " + key
			}
		}
	}
	return ""
}
