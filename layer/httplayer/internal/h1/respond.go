package h1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

func appendStatus(b []byte, status int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(b, message.StatusLines[status]...)
	return append(b, '\r', '\n')
}

// start writes the headers of a response into the buffer. It decides which framing marks
// the end of the body, and whether the connection stays open. It announces the names in
// trailer if the body is chunked.
func (c *ServerConn) start(r *request, status int, header http.Header, length int64, trailer http.Header) error {
	if status < 101 || status > 999 {
		return errors.New("invalid status " + strconv.Itoa(status))
	}
	r.informing.Lock()
	r.started = true
	if r.expects {
		r.keep = false // whether the client will send the body is unknown
	}
	r.informing.Unlock()
	out := &c.out
	out.begin()
	b := appendStatus(out.b, status)
	if r.old {
		copy(b[len(out.b):], "HTTP/1.0")
	}
	b, invalid := appendFields(b, header)
	if invalid != "" {
		return errors.New("invalid response field " + strconv.Quote(invalid))
	}
	if _, ok := header["Date"]; !ok && !isTunnel(r, status) {
		b = appendField(b, "Date", message.Date())
	}
	if message.Listed(header["Connection"], "close") || c.drains() {
		r.keep = false
	}
	b = c.appendFraming(b, r, status, header, length, trailer)
	if !out.chunked {
		out.left = length
	}
	b = append(b, '\r', '\n')
	out.b = b
	return nil
}

// appendFraming appends the header fields Content-Length or Transfer-Encoding, Trailer,
// Connection and Upgrade to b, each only if the response needs it. It clears r.keep if the
// end of the connection marks the end of the body.
func (c *ServerConn) appendFraming(
	b []byte, r *request, status int, header http.Header, length int64, trailer http.Header,
) []byte {
	switch {
	case status == http.StatusSwitchingProtocols:
		b = append(b, "Connection: Upgrade\r\n"...)
		if upgrade := message.Upgrade(header); message.ValidValue(upgrade) {
			b = appendField(b, "Upgrade", upgrade)
		}
		return b
	case isTunnel(r, status):
		return b
	case status == http.StatusNoContent:
	case length >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		b = append(b, '\r', '\n')
	case r.head || status == http.StatusNotModified:
	case r.old:
		r.keep = false // the end of the connection ends the body
	default:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		b = appendTrailerNames(b, trailer)
		c.out.chunked = true
	}
	switch {
	case !r.keep:
		b = append(b, "Connection: close\r\n"...)
	case r.old:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	return b
}

// isTunnel reports whether a response with this status turns the connection into a tunnel.
func isTunnel(r *request, status int) bool {
	return status == http.StatusSwitchingProtocols || r.connect && status/100 == 2
}

// stream is the [message.Stream] of a request.
type stream struct{ *request }

var _ message.Stream = (*stream)(nil)

// Respond is part of [message.Stream]. It sends the whole response rsp, including its
// trailers, and closes its body. A response that starts a tunnel is sent by the method
// tunnel.
func (s *stream) Respond(rsp *http.Response) error {
	r, c, body := s.request, s.conn, rsp.Body
	defer body.Close()
	if isTunnel(r, rsp.StatusCode) {
		return c.tunnel(r, rsp)
	}
	length := lengthOf(rsp, body)
	none := r.head || !message.BodyAllowed(rsp.StatusCode)
	if none {
		length = max(message.ContentLength(rsp.Header["Content-Length"]), -1)
		if length < 0 && rsp.ContentLength > 0 {
			length = rsp.ContentLength
		}
	}
	if err := c.start(r, rsp.StatusCode, rsp.Header, length, rsp.Trailer); err != nil {
		return err
	}
	if none {
		c.out.left = -1
		return c.out.finish(nil)
	}
	if length > smallSize {
		c.out.enlarge()
	}
	if length != 0 {
		if err := c.out.copyBody(body); err != nil {
			return err
		}
	}
	return c.out.finish(rsp.Trailer)
}

// lengthOf returns the length of the body of rsp, or -1 if it is unknown. Normally this is
// rsp.ContentLength. A ContentLength of 0 counts as not set, unless rsp has no body or a
// Content-Length of 0 in its header. If it is not set, the result is the number of buffered bytes,
// or -1 if the rest of the body is not completely buffered.
func lengthOf(rsp *http.Response, body io.Reader) int64 {
	if rsp.ContentLength != 0 || body == http.NoBody || message.ContentLength(rsp.Header["Content-Length"]) == 0 {
		return rsp.ContentLength
	}
	if n, eof := message.Pending(body); eof {
		return int64(n)
	}
	return -1
}

// Inform sends a 1xx response. It is part of [message.Stream]. It sends 100 Continue at most once,
// and only to a client that expects it. HTTP/1.0 clients receive no 1xx responses.
func (s *stream) Inform(status int, header http.Header) error {
	r, c := s.request, s.conn
	r.informing.Lock()
	defer r.informing.Unlock()
	if r.started || r.old || status == http.StatusContinue && !r.expects {
		return nil
	}
	if status == http.StatusContinue {
		r.expects = false
	}
	b, invalid := appendFields(appendStatus(nil, status), header)
	if invalid != "" {
		return errors.New("invalid response field " + strconv.Quote(invalid))
	}
	b = append(b, '\r', '\n')
	c.writes.Begin()
	defer c.writes.End(0)
	_, err := c.conn.Write(b)
	return err
}

// WriteHeader writes the status and the headers into the buffer. It is part of [message.Stream],
// which describes the arguments.
func (s *stream) WriteHeader(status int, header http.Header, length int64, end bool) error {
	if err := s.conn.start(s.request, status, header, length, message.Announced(header["Trailer"])); err != nil {
		return err
	}
	if end {
		s.conn.out.left = -1
		s.conn.out.chunked = false
	}
	return nil
}

// Write is part of [message.Stream]. It appends p to the body of the response.
func (s *stream) Write(p []byte) (int, error) { return s.conn.out.Write(p) }

// Finish is part of [message.Stream]. It ends the body with the trailers, and sends the
// buffer.
func (s *stream) Finish(trailer http.Header) error { return s.conn.out.finish(trailer) }

// Flush is part of [message.Stream]. It sends the buffered bytes.
func (s *stream) Flush() error { return s.conn.out.flush() }

// SetReadDeadline is part of [message.Stream]. It limits the time for reading the request
// body.
func (s *stream) SetReadDeadline(t time.Time) error { return s.conn.setReadDeadline(t) }

// SetWriteDeadline is part of [message.Stream]. It limits the time for writing the response.
func (s *stream) SetWriteDeadline(t time.Time) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := c.stop.Load(); cause != nil {
		return *cause
	}
	c.writeBy = true
	return c.conn.SetWriteDeadline(t)
}

// Hijack is part of [message.Stream]. It returns the connection, together with the received
// bytes that were not read. The caller must close the connection.
func (s *stream) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c := s.conn
	if s.body != nil {
		_ = s.body.Close()
	}
	c.stopReadAhead()
	s.informing.Lock()
	s.started = true
	s.informing.Unlock()
	h, err := c.detach()
	if err != nil {
		return nil, nil, err
	}
	return h, bufio.NewReadWriter(bufio.NewReader(h), bufio.NewWriter(h)), nil
}
