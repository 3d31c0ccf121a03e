package h2

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// serve serves a stream by the Exchange or the Handler of the configuration. It runs on a
// worker.
func (c *ServerConn) serve(s *serverStream) {
	defer s.release()
	if s.tooLarge {
		_ = s.sendHeader(http.StatusRequestHeaderFieldsTooLarge, nil, -1, true)
	} else if _, err := message.Serve(c.cfg, s, &s.req); err != nil {
		s.abort(err)
	}
}

// abort resets the stream with the error code for err.
func (s *serverStream) abort(err error) { s.reset(message.ResetCode(err), err) }

// release ends the stream after its handler has returned. If one direction has not ended,
// it resets the stream, so that the client does not send the rest of the request.
func (s *serverStream) release() {
	c := s.c.server
	if !s.removed.Load() {
		c.mu.Lock()
		code := message.CodeInternal
		if s.sentEnd {
			code = message.CodeNo
		}
		c.mu.Unlock()
		s.reset(code, errStreamDone)
	}
	s.discard()
	if c.cfg.Exchange == nil { // a handler may have set deadlines
		_ = s.SetReadDeadline(time.Time{})
		_ = s.SetWriteDeadline(time.Time{})
	}
	s.Context.Release()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending--; c.pending == 0 {
		c.phaseLocked()
		if c.closing {
			c.kick()
		}
	}
}

// Respond is part of [message.Stream]. It sends the whole response rsp, including its
// trailers, and closes its body. A 2xx response to CONNECT with a writable body starts a
// tunnel, which ends before Respond returns. So does a 101 response to a WebSocket.
func (s *serverStream) Respond(rsp *http.Response) error {
	if s.accept != "" {
		rsp = s.upgraded(rsp)
	}
	if (s.req.Method == http.MethodConnect || s.accept != "") && rsp.StatusCode < 300 {
		if upstream, ok := rsp.Body.(io.ReadWriteCloser); ok {
			if err := s.sendHeader(rsp.StatusCode, rsp.Header, -1, false); err != nil {
				_ = upstream.Close()
				return err
			}
			return message.Tunnel(s, tunnelClient{s}, upstream)
		}
	}
	defer rsp.Body.Close()
	length := rsp.ContentLength
	if length == 0 && len(rsp.Header["Content-Length"]) == 0 {
		length = -1
	}
	if s.req.Method == http.MethodHead || !message.BodyAllowed(rsp.StatusCode) ||
		rsp.Body == http.NoBody && len(rsp.Trailer) == 0 {
		return s.sendHeader(rsp.StatusCode, rsp.Header, length, true)
	}
	out := &s.out
	*out = newSender(&s.stream, rsp.Body, length, rsp.Header, &rsp.Trailer)
	err := out.fill(false)
	if err == nil {
		err = s.WriteHeader(rsp.StatusCode, rsp.Header, length, out.empty())
	}
	if err == nil {
		_, err = out.run(true)
	}
	out.release()
	return err
}

// sendHeader queues the headers of a response and starts to send them.
func (s *serverStream) sendHeader(status int, header http.Header, length int64, end bool) error {
	if err := s.WriteHeader(status, header, length, end); err != nil {
		return err
	}
	return s.Flush()
}

// Inform is part of [message.Stream]. It queues a 1xx response, unless the final response
// has begun.
func (s *serverStream) Inform(status int, header http.Header) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.begun || s.failure() != nil {
		return s.failure()
	}
	if status == http.StatusContinue {
		s.expects.Store(false)
	}
	out, from := c.beginBlock()
	out.B = c.enc.status(out.B, status)
	out.B = c.enc.header(out.B, header)
	c.endBlock(&s.stream, from, false)
	c.kick()
	return nil
}

// WriteHeader is part of [message.Stream]. It queues the HEADERS of the final response. It adds
// content-length unless length is -1 or the status is 204, and the field Trailer of s.out.
func (s *serverStream) WriteHeader(status int, header http.Header, length int64, end bool) error {
	c := s.c
	c.mu.Lock()
	defer c.unlock()
	if err := s.failure(); err != nil {
		return err
	}
	s.begun = true
	c.answered.Add(1)
	out, from := c.beginBlock()
	out.B = c.enc.status(out.B, status)
	out.B = c.enc.header(out.B, header)
	if length >= 0 && status != http.StatusNoContent {
		out.B = c.enc.field(out.B, nameLength, "", strconv.FormatInt(length, 10))
	}
	if _, ok := header["Date"]; !ok && c.server.cfg.Exchange == nil {
		out.B = c.enc.field(out.B, nameDate, "", message.Date())
	}
	if s.out.names != "" && !end {
		out.B = c.enc.field(out.B, nameTrailer, "", s.out.names)
	}
	c.endBlock(&s.stream, from, end)
	return nil
}

// Write is part of [message.Stream]. It queues p as a part of the body, and waits for the
// flow-control window of the client.
func (s *serverStream) Write(p []byte) (int, error) { return s.send(p) }

// Finish is part of [message.Stream]. It queues the trailers and the end of the stream, and
// starts to send all queued frames.
func (s *serverStream) Finish(trailer http.Header) error {
	s.c.mu.Lock()
	defer s.c.unlock()
	if !s.sentEnd {
		if err := s.failure(); err != nil {
			return err
		}
		s.c.queueTrailers(&s.stream, trailer)
	}
	s.c.kick()
	return nil
}

// Flush is part of [message.Stream]. It starts to send all queued frames. It returns an
// error if the stream has failed.
func (s *serverStream) Flush() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.kick()
	return s.failure()
}

// Hijack is part of [message.Stream]. It always returns http.ErrNotSupported, because other
// streams share the connection.
func (*serverStream) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// tunnelClient is the stream of the client in a tunnel.
type tunnelClient struct{ *serverStream }

func (t tunnelClient) Write(p []byte) (int, error) {
	n, err := t.send(p)
	if err == nil {
		err = t.Flush()
	}
	return n, err
}

func (t tunnelClient) CloseWrite() error { return t.Finish(nil) }

func (t tunnelClient) Close() error {
	t.abort(errStreamDone)
	return nil
}
