package h2

import (
	"io"
	"net/http"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// sender sends a body: it reads it in pieces and queues them as a stream's DATA frames, as far as the
// peer's windows permit. The zero value sends nothing.
type sender struct {
	st        *stream
	body      io.Reader
	trailer   *http.Header    // trailers, which may get their values at the end of the body
	remaining int64           // bytes of content-length that were not read; -1 if unknown
	buf       *message.Buffer // bytes that were read and are not queued; may be nil
	offset    int             // bytes of buf that are queued
	sent      int64           // bytes that were queued
	eof       bool            // the end of the body was read
	full      bool            // the last Read filled the buffer
	names     string          // names of the trailers to announce in a field Trailer; may be ""
}

// newSender returns the sender of a body with the given content-length, which is -1 if it is unknown. It
// announces the trailers that are known before the body is read, unless header announces them.
func newSender(st *stream, body io.Reader, length int64, header http.Header, trailer *http.Header) sender {
	s := sender{st: st, body: body, trailer: trailer, remaining: length}
	if len(header["Trailer"]) == 0 {
		s.names = message.TrailerNames(*trailer)
	}
	return s
}

// fill reads the next part of the body into s.buf, until Read would have to wait or 64 KiB are read. If
// wait is false, it does not wait for the first byte either. A body that panics causes an error.
func (s *sender) fill(wait bool) (err error) {
	defer panics.Recover(&err)
	n, eof := message.Pending(s.body)
	if !wait && n == 0 && !eof {
		return nil
	}
	// A Read that filled its buffer suggests that the body is fast. Then a large buffer saves Reads.
	if s.full {
		n = largeBuffer
	}
	s.buf = message.GetBuffer(min(n+1, largeBuffer)) // not full at the end of the body
	for {
		room := s.buf.B[len(s.buf.B):cap(s.buf.B)]
		n, err := s.body.Read(room)
		s.buf.B = s.buf.B[:len(s.buf.B)+n]
		s.full = n == len(room)
		if err := s.count(n, err); err != nil {
			return err
		}
		if s.eof {
			break
		}
		pending, eof := message.Pending(s.body)
		// If only the end of the body is missing, one more Read finds it, so that the last DATA frame
		// can carry it.
		atEnd := eof && pending == 0 || s.remaining == 0 && s.probes()
		if atEnd && n > 0 && n < len(room) {
			continue // the next Read returns io.EOF
		}
		if pending == 0 || len(s.buf.B) >= largeBuffer {
			break
		}
		s.buf = grown(s.buf, min(pending, largeBuffer-len(s.buf.B)))
	}
	if s.eof && len(s.buf.B) == 0 { // END_STREAM is sent with the headers
		s.release()
	}
	return nil
}

// count records n and err, which the body's Read returned. It subtracts n from s.remaining, and sets
// s.eof if err is io.EOF. It returns an error if the body failed or its length differs from
// content-length.
func (s *sender) count(n int, err error) error {
	if s.remaining >= 0 {
		if s.remaining -= int64(n); s.remaining < 0 {
			return message.ErrLongBody
		}
	}
	switch {
	case err == io.EOF: //nolint:errorlint // a Reader returns exactly this value
		s.eof = true
		if s.remaining > 0 {
			return message.ErrShortBody
		}
	case err != nil:
		return err
	}
	return nil
}

// probes reports whether fill calls Read once more after the last byte of content-length. If this
// additional Read returns io.EOF, the last DATA frame can carry END_STREAM. The result is false for
// a received body, because the additional Read could block, and with trailers, because then these
// carry END_STREAM.
func (s *sender) probes() bool {
	_, received := s.body.(interface{ Pending() (int, bool) })
	return !received && len(*s.trailer) == 0
}

// release returns the buffer to the pool. It drops bytes that were read but not queued.
func (s *sender) release() {
	s.buf.Release()
	s.buf, s.offset = nil, 0
}

// empty reports whether nothing is left to send: the body has ended, all its bytes are queued,
// and there are no trailers.
func (s *sender) empty() bool { return s.eof && s.buf == nil && !hasTrailers(*s.trailer) }

// queue queues the bytes that were read and, if the body has ended, the trailers and the end of
// the stream. It reports whether the end was queued. The caller holds the connection's mutex.
func (s *sender) queue() (done bool) {
	if s.buf != nil {
		rest := s.buf.B[s.offset:]
		n := s.st.c.queueData(s.st, rest)
		s.sent += int64(n)
		// The windows may permit only a part. The rest waits for the next call.
		if s.offset += n; n < len(rest) {
			return false
		}
		s.release()
	}
	if s.eof {
		s.st.c.queueTrailers(s.st, *s.trailer)
	}
	return s.eof
}

// run sends the rest of the body, and reports whether its end is queued. If wait is false, it returns
// instead of waiting for the body or the peer. The caller then calls release, and after an error it
// resets the stream.
func (s *sender) run(wait bool) (done bool, err error) {
	c := s.st.c
	for err == nil {
		waited := false // the peer's windows were exhausted
		c.mu.Lock()
		err = s.st.failure()
		for err == nil {
			offset := s.offset
			done = s.st.sentEnd || s.queue()
			moved := s.buf == nil || s.offset > offset // something was queued, or everything
			// Send what was queued before waiting again, and read more of the body without the lock.
			if done || !wait || s.buf == nil || waited && moved {
				break
			}
			s.st.waitSendable()
			waited = true
			err = s.st.failure()
		}
		c.kick()
		c.unlock() // the counterpart of c.mu.Lock, which also reports changes to ClientConfig.Changed
		// The peer's windows were exhausted. The source may now send more, too.
		if waited && err == nil {
			message.Moved(s.body)
		}
		if done || err != nil || !wait {
			break
		}
		if s.buf == nil {
			err = s.fill(true) // waits for the body
		}
	}
	return done, err
}

// validTrailer reports whether the field with the canonical name key may be a trailer. n is the
// entry of byCanonical for key, or nil without an entry.
func validTrailer(n *fieldName, key string) bool {
	if n != nil {
		return n.kind == plainName
	}
	return message.ValidTrailer(key)
}

// hasTrailers reports whether h contains a trailer that can be sent.
func hasTrailers(h http.Header) bool {
	for key, values := range h {
		if len(values) > 0 && validTrailer(byCanonical[key], key) {
			return true
		}
	}
	return false
}

// validHeader returns "" if all fields of h can be sent, and otherwise the reason why not.
func validHeader(h http.Header) string {
	for key, values := range h {
		if !message.ValidName(key) && byCanonical[key] == nil {
			return "invalid field name " + quoted(key)
		}
		for _, value := range values {
			if !message.ValidValue(value) {
				return "invalid value of the field " + key
			}
		}
	}
	return ""
}
