package h1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// appendHead appends the status line of a response and the valid fields of its header.
func appendHead(b []byte, status int, header http.Header) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(b, message.StatusLines[status]...)
	b, _ = appendFields(append(b, '\r', '\n'), header)
	return b
}

// start writes the headers of a response into the buffer. It decides which framing marks
// the end of the body, and whether the connection stays open. It announces the names in
// trailer if the body is chunked. If end is true, no body follows.
func (c *ServerConn) start(
	r *request, status int, header http.Header, length int64, trailer http.Header, end bool,
) {
	r.informing.Lock()
	r.started = true
	if r.expects {
		r.keep = false // whether the client will send the body is unknown
	}
	r.informing.Unlock()
	out := &c.out
	out.begin()
	b := appendHead(out.b, status, header)
	if r.old {
		copy(b, "HTTP/1.0")
	}
	tunnel := isTunnel(r, status)
	if _, ok := header["Date"]; !ok && !tunnel {
		b = appendField(b, "Date", message.Date())
	}
	if tunnel || message.Listed(header["Connection"], "close") || c.drains() || r.body != nil && r.body.lost(drainSize) {
		r.keep = false
	}
	out.b = c.appendFraming(b, r, status, header, length, trailer)
	if !out.chunked && !end {
		out.left = length
	}
	out.b = append(out.b, '\r', '\n')
}

// appendFraming appends the header fields Content-Length or Transfer-Encoding, Trailer,
// Connection and Upgrade to b, each only if the response needs it. The field Upgrade of a Handler is
// always sent, because a 426 needs it. It clears r.keep if the end of the connection marks the end
// of the body.
func (c *ServerConn) appendFraming(
	b []byte, r *request, status int, header http.Header, length int64, trailer http.Header,
) []byte {
	if status == http.StatusSwitchingProtocols || c.cfg.Exchange == nil && len(header["Upgrade"]) > 0 {
		b = append(b, "Connection: Upgrade\r\n"...)
		if upgrade := strings.Join(header["Upgrade"], ", "); message.ValidValue(upgrade) {
			b = appendField(b, "Upgrade", upgrade)
		}
	}
	switch {
	case isTunnel(r, status):
		return b
	case status == http.StatusNoContent, length < 0 && (r.head || status == http.StatusNotModified):
	case length < 0 && r.old:
		r.keep = false // the end of the connection ends the body
	default:
		b = appendLength(b, length, trailer)
		c.out.chunked = length < 0
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

var _ message.Stream = (*request)(nil)

// Respond sends rsp with its body and its trailers. A response that starts a tunnel is sent by the
// method tunnel.
func (r *request) Respond(rsp *http.Response) error {
	c, body := r.conn, rsp.Body
	defer body.Close()
	if isTunnel(r, rsp.StatusCode) {
		return c.tunnel(r, rsp)
	}
	if r.head || !message.BodyAllowed(rsp.StatusCode) {
		c.start(r, rsp.StatusCode, rsp.Header, message.ContentLength(rsp.Header["Content-Length"]), nil, true)
		return c.out.finish(nil)
	}
	length := lengthOf(rsp, body)
	c.start(r, rsp.StatusCode, rsp.Header, length, rsp.Trailer, false)
	if length > smallSize {
		c.out.enlarge()
	}
	if length != 0 {
		if _, err := c.out.copyBody(body, true); err != nil {
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

// Inform sends 100 Continue at most once, and only to a client that expects it. HTTP/1.0 clients
// receive no 1xx responses.
func (r *request) Inform(status int, header http.Header) error {
	r.informing.Lock()
	defer r.informing.Unlock()
	if r.started || r.old || status == http.StatusContinue && !r.expects {
		return nil
	}
	if status == http.StatusContinue {
		r.expects = false
	}
	b := appendHead(nil, status, header)
	r.conn.writes.Begin()
	defer r.conn.writes.End(0)
	_, err := r.conn.conn.Write(append(b, '\r', '\n'))
	return err
}

func (r *request) WriteHeader(status int, header http.Header, length int64, end bool) error {
	r.conn.start(r, status, header, length, message.Announced(header["Trailer"]), end)
	return nil
}

func (r *request) Write(p []byte) (int, error) {
	n, err := r.conn.out.Write(p)
	return n, r.wrote(err)
}

func (r *request) Finish(trailer http.Header) error { return r.conn.out.finish(trailer) }

func (r *request) Flush() error { return r.wrote(r.conn.out.flush()) }

// wrote returns err, the result of writing a part of the body. An error cancels the request, because
// the end of the client is not read while the request body is unread.
func (r *request) wrote(err error) error {
	if err != nil {
		r.Cancel(err)
	}
	return err
}

func (r *request) SetReadDeadline(t time.Time) error { return r.conn.setReadDeadline(t) }

func (r *request) SetWriteDeadline(t time.Time) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := c.stop.Load(); cause != nil {
		return *cause
	}
	c.writeBy = true
	return c.conn.SetWriteDeadline(t)
}

// Hijack returns the connection, together with the received bytes that were not read. The
// caller must close the connection.
func (r *request) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c := r.conn
	if r.body != nil {
		_ = r.body.Close()
	}
	c.stopReadAhead()
	r.informing.Lock()
	r.started = true
	r.informing.Unlock()
	h, err := c.detach()
	if err != nil {
		return nil, nil, err
	}
	return h, bufio.NewReadWriter(bufio.NewReader(h), bufio.NewWriter(h)), nil
}
