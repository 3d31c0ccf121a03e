package h1

import (
	"io"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// appendHead appends a response's status line and the valid fields of header, in the order arrived.
// status consists of the code and the reason, such as "404 Not Found".
func appendHead(b []byte, status string, header http.Header, arrived order) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(b, status...)
	b, _ = appendFields(append(b, '\r', '\n'), header, arrived)
	return b
}

// start writes a response's headers into the buffer, with the framing that marks the end of the body,
// and decides whether the connection stays open after it. A chunked body announces the names in
// trailer. If end is true, no body follows. line consists of the status and the reason. length is that
// of the body, or -1.
func (c *ServerConn) start(
	r *request, status int, line string, header http.Header, length int64, trailer http.Header, end bool,
) {
	r.informing.Lock()
	r.started = true
	if r.expects {
		r.keepAlive = false // whether the client will send the body is unknown
	}
	r.informing.Unlock()
	out := &c.out
	out.begin()
	b := appendHead(out.b, line, header, r.answerOrder())
	// An HTTP/1.0 client gets its own version: overwrite the one that appendHead has written.
	if r.old {
		copy(b, "HTTP/1.0")
	}
	tunnel := isTunnel(r, status)
	if _, ok := header["Date"]; !ok && !tunnel {
		b = appendField(b, "Date", message.Date())
	}
	if tunnel || message.Listed(header["Connection"], "close") || c.drains() || r.body != nil && r.body.exceeds(drainSize) {
		r.keepAlive = false
	}
	out.b = c.appendFraming(b, r, status, header, length, trailer)
	// The writer checks that the body has the announced length.
	if !out.chunked && !end {
		out.remaining = length
	}
	out.b = append(out.b, '\r', '\n')
}

// appendFraming appends the fields Content-Length or Transfer-Encoding, Trailer, Connection and
// Upgrade, each only if the response needs it. It clears r.keepAlive if the body can only end with the
// connection: that is the case for an HTTP/1.0 client and a body of unknown length.
func (c *ServerConn) appendFraming(
	b []byte, r *request, status int, header http.Header, length int64, trailer http.Header,
) []byte {
	// A 426 response must name the protocols in Upgrade (RFC 9110, section 15.5.22).
	if status == http.StatusSwitchingProtocols || status == http.StatusUpgradeRequired && len(header["Upgrade"]) > 0 {
		b = append(b, "Connection: Upgrade\r\n"...)
		if upgrade := strings.Join(header["Upgrade"], ", "); message.ValidValue(upgrade) {
			b = appendField(b, "Upgrade", upgrade)
		}
	}
	switch {
	case isTunnel(r, status):
		return b
	// No body follows, or its length is unknown.
	case status == http.StatusNoContent, length < 0 && (r.head || status == http.StatusNotModified):
	case length < 0 && r.old:
		r.keepAlive = false // the end of the connection ends the body
	default:
		b = appendLength(b, length, trailer)
		c.out.chunked = length < 0
	}
	switch {
	case !r.keepAlive:
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

// Respond implements [message.Stream]. It sends rsp with its body and its trailers, and closes the
// body. sent is the number of body bytes that were added to the output, or -1 after a tunnel. A
// response that starts a tunnel, such as a 101, makes Respond copy bytes until the tunnel ends.
func (r *request) Respond(rsp *http.Response) (sent int64, err error) {
	c := r.conn
	body := rsp.Body
	defer body.Close()
	if isTunnel(r, rsp.StatusCode) {
		return -1, c.tunnel(r, rsp)
	}
	if r.head || !message.BodyAllowed(rsp.StatusCode) {
		// No trailers, and no body follows.
		c.start(r, rsp.StatusCode, statusLine(rsp), rsp.Header, message.ContentLength(rsp.Header["Content-Length"]), nil, true)
		return 0, c.out.finish(nil)
	}
	length := lengthOf(rsp, body)
	c.start(r, rsp.StatusCode, statusLine(rsp), rsp.Header, length, rsp.Trailer, false) // a body follows
	// The body is copied with larger writes.
	if length > smallSize {
		c.out.enlarge()
	}
	if length != 0 {
		if _, err := c.out.copyBody(body, true); err != nil { // waits for the whole body
			_ = c.out.flush() // a client that receives nothing could take the request for unprocessed
			return c.out.added, err
		}
	}
	err = c.out.finish(rsp.Trailer)
	return c.out.added, err
}

// Received returns how many bytes of the request body were read. It is part of [message.Stream].
func (r *request) Received() int64 {
	if r.body == nil {
		return 0
	}
	return r.body.received.Load()
}

// statusLine returns rsp's status and reason phrase. The phrase is the endpoint's, which may be empty. It
// is the standard one if a layer has changed the status, or if the endpoint's is invalid.
func statusLine(rsp *http.Response) string {
	line := message.StatusLines[rsp.StatusCode]
	// line begins with three digits; text is the endpoint's reason, with the space before it.
	switch text, ok := strings.CutPrefix(rsp.Status, line[:3]); {
	case rsp.Status == line || !ok || !message.ValidValue(text):
		return line
	case text == "":
		return line[:3] + " " // the space is required
	case text[0] == ' ':
		return rsp.Status
	}
	return line
}

// lengthOf returns the length of rsp's body, or -1 if it is unknown. Normally this is
// rsp.ContentLength. A ContentLength of 0 counts as not set, unless rsp carries no body or a
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

// Inform implements [message.Stream]. It sends a 1xx response, unless the final response has begun. A
// 100 Continue is sent once, and only to a client that waits for it. HTTP/1.0 clients receive no 1xx
// responses.
func (r *request) Inform(status int, header http.Header) error {
	r.informing.Lock()
	defer r.informing.Unlock()
	if r.started || r.old || status == http.StatusContinue && !r.expects {
		return nil
	}
	if status == http.StatusContinue {
		r.expects = false
	}
	b := appendHead(nil, message.StatusLines[status], header, "")
	// The sweeper measures how long this write waits, as for the final response.
	r.conn.writes.Begin()
	defer r.conn.writes.End(0)
	_, err := r.conn.conn.Write(append(b, '\r', '\n'))
	return err
}

// forgoContinue records that the client does not wait for 100 Continue, because it sends the body.
func (r *request) forgoContinue() {
	r.informing.Lock()
	r.expects = false
	r.informing.Unlock()
}
