package h2

import (
	"io"
	"net/http"
	"strconv"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// serve answers one request: it calls the configured handler through [message.Serve], or sends the
// response to a request that was refused while it was parsed. It runs on a worker goroutine and
// returns when the response is sent or the stream is reset.
func (c *ServerConn) serve(s *serverStream) {
	defer s.release()
	if s.refusal != nil {
		s.accept = "" // not a WebSocket any more
		sent, _ := s.Respond(c.cfg.RefusalResponse(c.connCtx, s.refusal))
		c.cfg.Refuse(c.connCtx, *s.refusal, sent)
	} else if err := message.Serve(c.cfg, s, &s.req, s.reported); err != nil {
		s.abort(err)
	}
}

// abort resets the stream instead of responding. The HTTP/2 error code is the one that corresponds to
// err, and tells the client why.
func (s *serverStream) abort(err error) { s.reset(message.ResetCode(err), err) }

// release is called after the handler has returned and the response is sent. If one direction of
// the stream is still open, it resets the stream, so that the client does not send the rest of a
// request that nobody reads.
func (s *serverStream) release() {
	c := s.c.server
	if !s.removed.Load() {
		c.mu.Lock()
		// NO_ERROR after a complete response means that the rest of the request is not needed (RFC
		// 9113, 8.1).
		code := message.CodeInternal
		if s.sentEnd {
			code = message.CodeNo
		}
		c.mu.Unlock()
		s.reset(code, errStreamDone)
	}
	s.discard()
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

// Respond implements [message.Stream]. It sends the whole response rsp, including its trailers, and
// closes its body. A 2xx response to CONNECT with a writable body starts a tunnel, which ends
// before Respond returns. So does a 101 response to a WebSocket.
func (s *serverStream) Respond(rsp *http.Response) (sent int64, err error) {
	if s.accept != "" {
		rsp = s.upgraded(rsp)
	}
	if (s.req.Method == http.MethodConnect || s.accept != "") && rsp.StatusCode < 300 {
		if upstream, ok := rsp.Body.(io.ReadWriteCloser); ok {
			if err := s.sendHeader(rsp.StatusCode, rsp.Header, -1, false); err != nil { // a body follows
				_ = upstream.Close()
				return -1, err
			}
			return -1, message.Tunnel(s, tunnelClient{s}, upstream)
		}
	}
	defer rsp.Body.Close()
	length := rsp.ContentLength
	// A response that specifies no Content-Length may have a body of any length.
	if length == 0 && len(rsp.Header["Content-Length"]) == 0 {
		length = -1
	}
	if s.req.Method == http.MethodHead || !message.BodyAllowed(rsp.StatusCode) ||
		rsp.Body == http.NoBody && len(rsp.Trailer) == 0 {
		return 0, s.sendHeader(rsp.StatusCode, rsp.Header, length, true) // no body follows
	}
	out := &s.out
	*out = newSender(&s.stream, rsp.Body, length, rsp.Header, &rsp.Trailer)
	// The part of the body that is available goes out with the headers, and a short body ends with
	// them.
	err = out.fill(false) // without waiting
	if err == nil {
		err = s.writeHeader(rsp.StatusCode, rsp.Header, length, out.empty())
	}
	if err == nil {
		_, err = out.run(true) // waits for the whole body
	}
	out.release()
	return out.sent, err
}

// Received returns how many bytes of the request body were read. It is part of [message.Stream].
func (s *serverStream) Received() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// sendHeader queues the final response's headers and starts the writer. end means that there is no
// body. A length of -1 means that the body's length is unknown.
func (s *serverStream) sendHeader(status int, header http.Header, length int64, end bool) error {
	if err := s.writeHeader(status, header, length, end); err != nil {
		return err
	}
	return s.flush()
}

// Inform implements [message.Stream]. It queues a 1xx response, unless the final response has
// begun.
func (s *serverStream) Inform(status int, header http.Header) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.started || s.failure() != nil {
		return s.failure()
	}
	if status == http.StatusContinue {
		s.expects.Store(false) // the client gets its 100 Continue, so reading the body need not send another one
	}
	out, start := c.beginBlock()
	out.B = c.enc.status(out.B, status)
	out.B = c.enc.header(out.B, header)
	c.endBlock(&s.stream, start, false) // without END_STREAM
	c.kick()
	return nil
}

// writeHeader queues the final response's HEADERS. It adds content-length unless length is -1 or the
// status is 204, and s.out's Trailer field.
func (s *serverStream) writeHeader(status int, header http.Header, length int64, end bool) error {
	c := s.c
	c.mu.Lock()
	defer c.unlock()
	if err := s.failure(); err != nil {
		return err
	}
	s.started = true
	c.answered.Add(1)
	out, start := c.beginBlock()
	out.B = c.enc.status(out.B, status)
	out.B = c.enc.header(out.B, header)
	if length >= 0 && status != http.StatusNoContent {
		out.B = c.enc.field(out.B, nameLength, "", strconv.FormatInt(length, 10))
	}
	if s.out.names != "" && !end {
		out.B = c.enc.field(out.B, nameTrailer, "", s.out.names)
	}
	c.endBlock(&s.stream, start, end)
	return nil
}

// flush starts to send all queued frames. It returns an error if the stream has failed.
func (s *serverStream) flush() error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.kick()
	return s.failure()
}

// tunnelClient is the client's end of a tunnel (CONNECT): reads and writes go to the client's
// stream.
type tunnelClient struct{ *serverStream }

// Write sends p in DATA frames at once, because the other side may wait for it.
func (t tunnelClient) Write(p []byte) (int, error) {
	n, err := t.send(p)
	if err == nil {
		err = t.flush()
	}
	return n, err
}

// CloseWrite queues the end of the stream and starts to send all queued frames.
func (t tunnelClient) CloseWrite() error {
	t.c.mu.Lock()
	defer t.c.unlock()
	if !t.sentEnd {
		if err := t.failure(); err != nil {
			return err
		}
		t.c.queueTrailers(&t.stream, nil)
	}
	t.c.kick()
	return nil
}

// Close resets the stream, which ends the tunnel in both directions.
func (t tunnelClient) Close() error {
	t.abort(errStreamDone)
	return nil
}
