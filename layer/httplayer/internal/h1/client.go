package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// ClientConfig is the configuration of client connections.
type ClientConfig struct {
	MaxHeaderBytes int // of a response with its 1xx responses; 1 MiB if 0

	// Released is called once per RoundTrip, possibly before it returns. If
	// reusable is false, the connection is closed.
	Released func(c *ClientConn, reusable bool)
}

// ClientConn is a connection to a server. It serves one request at a time, from
// RoundTrip to Released.
type ClientConn struct {
	source
	cfg  *ClientConfig
	head head
	out  writer
	used bool        // a request was sent on it
	busy atomic.Bool // between RoundTrip and Released
	sock socket

	cause  atomic.Pointer[error] // why the connection was closed
	watch  reqctx.Registration
	keep   bool // the messages permit another request
	sender *sender
}

// NewClientConn returns a client connection. It starts no goroutine.
func NewClientConn(conn net.Conn, cfg *ClientConfig) *ClientConn {
	c := &ClientConn{cfg: cfg}
	c.conn, c.failed = conn, c.readError
	c.out.conn = conn
	c.sock.init(conn)
	return c
}

// Stale reports whether the server has closed an idle connection or has sent
// bytes without a request. It does not block. On systems other than Unix it
// reports only whether this side has closed the connection.
func (c *ClientConn) Stale() bool { return c.cause.Load() != nil || c.sock.readable() }

var (
	errClosed        = errors.New("connection closed")
	errStale         = errors.New("the server has closed the idle connection")
	errManyInforms   = errors.New("too many 1xx responses")
	errServerClosed  = errors.New("the server has closed the connection without a response")
	errUnasked       = errors.New("switching protocols without an upgrade")
	errNotAsked      = errors.New("the server has not asked for the request body")
	errInformedLarge = fmt.Errorf("response: %w", errTooLarge)
)

// Close closes the connection, and ends the exchange in progress.
func (c *ClientConn) Close() error {
	c.fail(errClosed)
	return nil
}

// fail closes the connection. The first cause that it is called with stays.
func (c *ClientConn) fail(cause error) {
	if c.cause.CompareAndSwap(nil, &cause) {
		_ = c.conn.Close()
	}
}

// ContextDone is part of [reqctx.Watcher]. Closing a TLS connection may block.
func (c *ClientConn) ContextDone(cause error) {
	if c.cause.CompareAndSwap(nil, &cause) {
		go c.conn.Close()
		c.release(false)
	}
}

// release reports the end of the exchange, once.
func (c *ClientConn) release(reusable bool) {
	if c.busy.CompareAndSwap(true, false) {
		c.cfg.Released(c, reusable)
	}
}

// readError returns the cause for which the connection was closed, or err if it is open.
func (c *ClientConn) readError(err error) error {
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	return err
}

// RoundTrip sends a request and returns its response. The body of a response to an
// upgrade or to CONNECT is an [io.ReadWriteCloser] with CloseWrite. It closes the
// request body, except with [message.ErrNotSent].
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) {
	c.busy.Store(true)
	ctx := req.Context()
	if reqctx.Ended(ctx) {
		closeBody(req)
		c.release(true)
		return nil, context.Cause(ctx)
	}
	length := lengthOfRequest(req)
	peeks := length == 0 && c.sock.canExchange() // exchange finds a stale connection
	if c.used && (c.cause.Load() != nil || !peeks && c.sock.readable()) {
		return nil, c.give(fmt.Errorf("%w: %w", message.ErrNotSent, errStale))
	}
	c.out.begin()
	b, err := appendRequest(c.out.b, req, length)
	c.out.b = b
	if err != nil {
		c.out.end()
		closeBody(req)
		c.release(true)
		return nil, err
	}
	c.keep = !closesAfter(req)
	c.watch = reqctx.Watch(ctx, c)
	err = c.send(req, length)
	c.used = true
	if err != nil {
		return nil, c.give(err)
	}
	n, err := c.receive(req)
	if err != nil || c.cause.Load() != nil { // a server may answer because this side closes
		return nil, c.give(err)
	}
	return c.newResponse(req, n), nil
}

// give ends an exchange that failed before its response. It closes the connection and
// returns the error of RoundTrip.
func (c *ClientConn) give(err error) error {
	err = c.readError(err)
	c.watch.Stop()
	c.fail(err)
	c.cut()
	c.drop()
	c.release(false)
	return err
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// send sends the headers and the bytes of the body that are in memory. A sender
// sends the rest.
func (c *ClientConn) send(req *http.Request, length int64) error {
	out := &c.out
	out.chunked, out.left = length < 0, length
	whole := length == 0
	if !whole && !expects(req) {
		var err error
		if whole, err = out.copyPending(req.Body); err != nil {
			return c.sent(req, err)
		}
	}
	switch {
	case whole && c.sock.canExchange():
		return c.sent(req, c.exchange(req, length))
	case whole:
		return c.sent(req, out.finish(req.Trailer))
	}
	if err := out.flush(); err != nil {
		return c.sent(req, err)
	}
	c.startSender(req)
	return nil
}

// exchange sends a request that is in memory and reads the first bytes of its response. An
// error of the read is returned by the next read.
func (c *ClientConn) exchange(req *http.Request, length int64) error {
	out := &c.out
	if err := out.complete(req.Trailer); err != nil {
		return err
	}
	c.reserve()
	written, n, err := c.sock.exchange(out.b, c.buf.b[c.w:], c.used && length == 0)
	c.w += n
	out.sent = written > 0
	switch {
	case written == len(out.b):
		c.err = err
	case err == nil: // a short write
		out.b = append(out.b[:0], out.b[written:]...)
		return out.flush()
	default:
		out.broken, out.err = true, err
	}
	return out.err
}

// sent is called when the request was sent by the calling goroutine, or failed.
// If nothing was sent and the body is unread, the request can be sent again.
func (c *ClientConn) sent(req *http.Request, err error) error {
	out := &c.out
	out.end()
	if err != nil && out.broken && !out.sent && !out.moved && c.cause.Load() == nil {
		return fmt.Errorf("%w: %w", message.ErrNotSent, err)
	}
	closeBody(req)
	return err
}

// receive reads up to the headers of the final response. It returns their length.
func (c *ClientConn) receive(req *http.Request) (int, error) {
	const mostInforms = 5 // without 100
	limit := headerLimit(c.cfg.MaxHeaderBytes)
	for informs := 0; ; {
		n, err := c.readHeaders(limit)
		if err != nil {
			return 0, err
		}
		if err := c.head.parseResponse(c.unread()[:n]); err != nil {
			return 0, err
		}
		status := c.head.status
		if req.Method != http.MethodConnect || status/100 != 2 { // a tunnel has no framing (RFC 9110, section 9.3.6)
			if err := c.head.checkFraming(); err != nil {
				return 0, err
			}
		}
		if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
			if status == http.StatusSwitchingProtocols && upgradeOf(req.Header) == "" {
				return 0, errUnasked
			}
			return n, nil
		}
		limit -= n
		if status == http.StatusContinue {
			if c.sender != nil {
				c.sender.decide(true)
			}
		} else if informs++; informs > mostInforms {
			return 0, errManyInforms
		}
		header := c.head.header(string(c.unread()[:n]), nil)
		c.r += n
		message.RemoveHopByHop(header)
		if err := message.Inform(req.Context(), status, header); err != nil {
			return 0, err
		}
	}
}

// readHeaders returns the length of the next headers.
func (c *ClientConn) readHeaders(limit int) (int, error) {
	for searched := 0; ; {
		n := findEnd(c.unread(), searched)
		searched = c.buffered()
		switch {
		case n > limit || n == 0 && searched >= limit:
			return 0, errInformedLarge
		case n > 0:
			return n, nil
		}
		if _, err := c.fill(limit); err != nil {
			if err == io.EOF && searched == 0 { //nolint:errorlint // a connection returns it unwrapped
				return 0, errServerClosed
			}
			return 0, noEOF(err)
		}
	}
}

// response is a response and its body.
type response struct {
	http.Response
	body   body
	values [8]string
}

// newResponse builds the response of the parsed headers of n bytes.
func (c *ClientConn) newResponse(req *http.Request, n int) *http.Response {
	h := &c.head
	text := string(c.unread()[:n])
	c.r += n
	r := new(response)
	rsp := &r.Response
	rsp.Status, rsp.StatusCode = h.target.of(text), h.status
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = "HTTP/1.1", 1, 1
	if h.minor == 0 {
		rsp.Proto, rsp.ProtoMinor = "HTTP/1.0", 0
	}
	rsp.Request = req
	rsp.Header = h.header(text, r.values[:0])
	rsp.ContentLength = h.length
	rsp.Close = !h.persists()
	c.keep = c.keep && !rsp.Close && (h.keeps || !isOld(req))
	if c.sender != nil && c.sender.proceed != nil {
		c.sender.decide(false) // unless it is decided
	}
	b := &r.body
	b.src, b.owner = &c.source, c
	rsp.Body = b
	if h.hop {
		defer message.RemoveHopByHop(rsp.Header)
		defer delete(rsp.Header, "Trailer")
	}
	switch {
	case h.status == http.StatusSwitchingProtocols, req.Method == http.MethodConnect && h.status/100 == 2:
		rsp.ContentLength = -1
		delete(rsp.Header, "Content-Length")
		rsp.Body = &tunnelBody{conn: c}
	case req.Method == http.MethodHead || !message.BodyAllowed(h.status):
		if h.status == http.StatusNoContent {
			rsp.ContentLength = 0
		}
		rsp.Body = http.NoBody
		c.bodyEnded(true)
	case h.chunked:
		b.framing = byChunks
		rsp.TransferEncoding = chunkedCoding
		b.trailer = make(http.Header)
		announce(b.trailer, rsp.Header["Trailer"])
		rsp.Trailer = b.trailer
	case h.length == 0:
		rsp.Body = http.NoBody
		c.bodyEnded(true)
	case h.length > 0:
		b.left = h.length
	default:
		b.framing = byClose
		c.keep = false
	}
	return rsp
}

// proceed is part of bodyOwner.
func (*ClientConn) proceed() error { return nil }

// interrupt is part of bodyOwner.
func (c *ClientConn) interrupt() { c.fail(http.ErrBodyReadAfterClose) }

// bodyEnded is part of bodyOwner. The connection is reused if the exchange is
// complete and nothing else has arrived.
func (c *ClientConn) bodyEnded(whole bool) {
	reusable := whole && c.keep && c.buffered() == 0 && c.finished()
	if !c.watch.IsZero() && !c.watch.Stop() {
		reusable = false
	}
	c.watch = reqctx.Registration{}
	if !reusable {
		c.fail(errClosed)
		c.cut()
	}
	c.drop()
	c.release(reusable && c.cause.Load() == nil)
}

// tunnelBody is the body of a response that made a tunnel of the connection.
type tunnelBody struct {
	conn *ClientConn
	once sync.Once
}

func (t *tunnelBody) Read(p []byte) (int, error) { return tunnelSource{&t.conn.source}.Read(p) }

func (t *tunnelBody) Write(p []byte) (int, error) {
	n, err := t.conn.conn.Write(p)
	if err != nil {
		err = t.conn.readError(err)
	}
	return n, err
}

// CloseWrite closes the direction to the server.
func (t *tunnelBody) CloseWrite() error { return closeWrite(t.conn.conn) }

// Close closes the connection. A Read in progress may still use its buffer.
func (t *tunnelBody) Close() error {
	t.once.Do(func() {
		c := t.conn
		c.watch.Stop()
		c.fail(errClosed)
		c.cut()
		c.release(false)
	})
	return nil
}
