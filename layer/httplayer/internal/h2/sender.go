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

// sender sends a body. The zero value has nothing to send.
type sender struct {
	st      *stream
	body    io.Reader
	trailer *http.Header // has its values after the end of the body
	left    int64        // of the content-length, or -1
	buf     *buffer      // bytes that were read and not queued
	eof     bool
	full    bool // the last Read filled the buffer

	announces bool // trailers were known before the body was read
}

// fill reads the next part of the body. If wait is false, it reads only pending
// bytes.
func (s *sender) fill(wait bool) error {
	n, eof := message.Pending(s.body)
	if !wait && n == 0 && !eof {
		return nil
	}
	if s.full {
		n = largeBuffer
	}
	s.buf = newBuffer(n)
	for {
		room := s.buf.b[len(s.buf.b):cap(s.buf.b)]
		n, err := s.body.Read(room)
		s.buf.b = s.buf.b[:len(s.buf.b)+n]
		s.full = n == len(room)
		if err := s.count(n, err); err != nil {
			return err
		}
		if s.eof {
			break
		}
		more, eof := message.Pending(s.body)
		atEnd := eof && more == 0 || s.left == 0 && s.probes()
		if atEnd && n > 0 && n < len(room) {
			continue // for io.EOF
		}
		if more == 0 || len(s.buf.b) >= largeBuffer {
			break
		}
		s.buf = s.buf.grown(min(more, largeBuffer-len(s.buf.b)))
	}
	if s.eof && len(s.buf.b) == 0 { // END_STREAM is sent with the headers
		s.release()
	}
	return nil
}

// count checks the result of a Read of the body.
func (s *sender) count(n int, err error) error {
	if s.left >= 0 {
		if s.left -= int64(n); s.left < 0 {
			return errLongBody
		}
	}
	switch {
	case err == io.EOF: //nolint:errorlint // a Reader returns exactly this value
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

// release releases the buffer.
func (s *sender) release() {
	s.buf.release()
	s.buf = nil
}

// began reports whether the body has something to queue after the headers.
func (s *sender) began() bool { return s.buf != nil || s.eof }

// empty reports whether the body ended without bytes and trailers.
func (s *sender) empty() bool { return s.eof && s.buf == nil && !hasTrailers(*s.trailer) }

// queue queues the bytes that were read, and the end of the stream. It reports
// whether the end was queued. With the mu of the connection held.
func (s *sender) queue() (done bool) {
	end := s.eof && !hasTrailers(*s.trailer)
	if s.buf != nil || end {
		rest := s.buf.unread()
		n := s.st.c.queueData(s.st, rest, end)
		if n < len(rest) {
			s.buf.off += n
			return false
		}
		s.release()
	}
	if s.eof && !end {
		s.st.c.queueTrailers(s.st, *s.trailer)
	}
	return s.eof
}

// run sends the rest of the body. If the body fails, it resets the stream.
func (s *sender) run() error {
	c := s.st.c
	defer s.release()
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

// announced returns the trailers that a Trailer field has to announce.
func (s *sender) announced(header http.Header) http.Header {
	if !s.announces || len(header["Trailer"]) > 0 {
		return nil
	}
	return *s.trailer
}

// validTrailer reports whether a field may be a trailer. n is nil for an unknown
// name.
func validTrailer(n *fieldName, key string) bool {
	if n != nil {
		return n.kind == plainName
	}
	return message.ValidTrailer(key)
}

func hasTrailers(h http.Header) bool {
	for key, values := range h {
		if len(values) > 0 && validTrailer(byCanonical[key], key) {
			return true
		}
	}
	return false
}

func validValue(value string) bool { return message.ValidValueBytes([]byte(value)) }

// validHeader returns a reason why a header cannot be sent, or "".
func validHeader(h http.Header) string {
	for key, values := range h {
		if !message.ValidName(key) && byCanonical[key] == nil {
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

// validPart returns the header without fields that cannot be sent.
func validPart(h http.Header) http.Header {
	if validHeader(h) == "" {
		return h
	}
	valid := make(http.Header, len(h))
	for key, values := range h {
		for _, value := range values {
			if message.ValidName(key) && validValue(value) {
				valid[key] = append(valid[key], value)
			}
		}
	}
	return valid
}
