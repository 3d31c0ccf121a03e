package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// maxResponseHeader is the maximum size of the headers of a response, including its 1xx
// responses, in bytes.
const maxResponseHeader = 1 << 20

// ClientConn is a connection to a server. It serves one request at a time. It calls the
// function in the field released when the request and its response have ended.
type ClientConn struct {
	source
	head head
	out  writer
	used bool        // the connection was idle, so the server may have closed it
	busy atomic.Bool // an exchange is in progress

	released func(c *ClientConn, reusable bool)
	sock     socket

	cause  atomic.Pointer[error] // reason for which the connection was closed; nil while it is open
	watch  reqctx.Registration
	keep   bool // the current request and its response permit another request
	sender *sender
}

// NewClientConn returns a client connection on conn. The function released is called once for each
// RoundTrip, when its exchange ends. This may happen before RoundTrip returns. If its argument
// reusable is false, the ClientConn closes the connection.
func NewClientConn(conn net.Conn, released func(c *ClientConn, reusable bool)) *ClientConn {
	c := &ClientConn{released: released}
	c.conn, c.failed = conn, c.readError
	c.out.conn = conn
	c.sock.init(conn)
	return c
}

var (
	errClosed       = errors.New("connection closed")
	errServerClosed = errors.New("the server has closed the connection without a response")
	errEarlySwitch  = errors.New("switching protocols before the end of the request body")
)

// Rest records that the connection becomes idle. The next request then finds out that the server has
// closed the connection. Before the first request, Rest has no effect with TLS, because unread bytes
// may belong to the handshake.
func (c *ClientConn) Rest() {
	c.used = c.used || c.sock.canExchange() || !c.sock.exists()
	if c.used && c.idle == nil && !c.sock.exists() { // it is not possible to look at the socket
		c.idle = startIdleRead(c.conn)
	}
}

// readable reports whether bytes, the end of the stream or an error have arrived on the idle
// connection.
func (c *ClientConn) readable() bool {
	return c.idle != nil && c.idle.ended() || c.sock.readable()
}

// Close closes the connection and ends the exchange in progress with an error.
func (c *ClientConn) Close() error {
	c.fail(errClosed)
	return nil
}

// fail closes the connection because of cause. Only the first call has an effect.
func (c *ClientConn) fail(cause error) {
	if c.cause.CompareAndSwap(nil, &cause) {
		_ = c.conn.Close()
	}
}

// ContextDone is part of [reqctx.Watcher]. It closes the connection on a new goroutine,
// because closing a TLS connection may block.
func (c *ClientConn) ContextDone(cause error) {
	if c.cause.CompareAndSwap(nil, &cause) {
		go c.conn.Close()
		c.release(false)
	}
}

// release ends the request in progress by a call of c.released. It does nothing if no request is in
// progress.
func (c *ClientConn) release(reusable bool) {
	if c.busy.CompareAndSwap(true, false) {
		if reusable {
			c.Rest()
		}
		c.released(c, reusable)
	}
}

// readError returns the error to report for a read that failed with err. If this side has
// closed the connection, it returns the cause of the closing. Otherwise it returns err.
func (c *ClientConn) readError(err error) error {
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	return err
}

// RoundTrip sends a request and returns its response. It closes the request body, unless
// the error is [message.ErrNotSent]. If the response accepts an upgrade or CONNECT, its
// body is an [io.ReadWriteCloser] with CloseWrite.
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) {
	c.busy.Store(true)
	ctx, length := req.Context(), lengthOfRequest(req)
	if c.cause.Load() != nil || c.used && (length != 0 || !c.sock.canExchange()) && c.readable() { // exchange checks it, too
		return nil, c.failRoundTrip(fmt.Errorf("%w: the server has closed the idle connection", message.ErrNotSent))
	}
	c.out.begin()
	b, err := appendRequest(c.out.b, req, length)
	c.out.b = b
	if reqctx.Ended(ctx) {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.out.end()
		message.CloseBody(req)
		c.release(true)
		return nil, err
	}
	c.keep = !closesAfter(req)
	c.watch = reqctx.Watch(ctx, c)
	err = c.send(req, length)
	c.used = true
	if err != nil {
		return nil, c.failRoundTrip(err)
	}
	n, err := c.receive(req)
	if err != nil || c.cause.Load() != nil { // a server may answer because this side closes
		return nil, c.failRoundTrip(err)
	}
	return c.newResponse(req, n), nil
}

// failRoundTrip closes the connection after a RoundTrip that failed with err before its
// response. It returns the error for RoundTrip. This is err if it matches [message.ErrNotSent], because
// sent has not closed the request body. Otherwise it is the result of readError.
func (c *ClientConn) failRoundTrip(err error) error {
	if !errors.Is(err, message.ErrNotSent) {
		err = c.readError(err)
	}
	c.watch.Stop()
	c.fail(err)
	c.stopSender()
	c.drop()
	c.release(false)
	return err
}

// send sends the headers of req and the part of its body that is in memory. If the body has
// more bytes, it starts a sender, which sends them on another goroutine.
func (c *ClientConn) send(req *http.Request, length int64) error {
	out := &c.out
	out.chunked, out.left = length < 0, length
	whole := length == 0
	if !whole && !message.ExpectsContinue(req.Header) {
		var err error
		if whole, err = out.copyBody(req.Body, false); err != nil {
			return c.sent(req, err)
		}
	}
	switch {
	case whole && c.used && c.sock.canExchange(): // a new connection may have a response, for which exchange would wait
		return c.sent(req, c.exchange(req))
	case whole:
		return c.sent(req, out.finish(req.Trailer))
	}
	if err := out.flush(); err != nil {
		return c.sent(req, err)
	}
	c.startSender(req)
	return nil
}

// exchange sends req, which is completely in the buffer, and reads the first bytes of the
// response. It returns an error if sending failed. An error of the read is not returned, but
// is stored for the next read of the connection.
func (c *ClientConn) exchange(req *http.Request) error {
	out := &c.out
	if err := out.complete(req.Trailer); err != nil {
		return err
	}
	switch err := c.sock.exchange(out, &c.source); {
	case out.buf == nil: // everything was written
		c.err = err
	case err == nil: // a short write
		return out.flush()
	default:
		out.broken, out.err = true, err
	}
	return out.err
}

// sent returns the error for RoundTrip after a call of send. The argument err is the error of send,
// or nil if req was sent. If the connection failed before it sent a byte of req, and the request
// body is unread, the error matches [message.ErrNotSent]. In any other case, sent closes the
// request body and returns err.
func (c *ClientConn) sent(req *http.Request, err error) error {
	out := &c.out
	out.end()
	if err != nil && out.broken && !out.sent && !out.moved {
		return fmt.Errorf("%w: %w", message.ErrNotSent, err)
	}
	message.CloseBody(req)
	return err
}

// receive reads the headers of the final response and returns their length. It forwards the
// 1xx responses before it by [message.Inform].
func (c *ClientConn) receive(req *http.Request) (int, error) {
	const mostInforms = 5 // 1xx responses that are accepted, other than 100
	limit := maxResponseHeader
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
		switches := status == http.StatusSwitchingProtocols
		switch {
		case switches && message.Upgrade(req.Header) == "":
			return 0, errors.New("switching protocols without an upgrade")
		case switches && !c.finished():
			return 0, errEarlySwitch
		case switches || status >= http.StatusOK:
			return n, nil
		}
		limit -= n
		if status == http.StatusContinue {
			if c.sender != nil {
				c.sender.expects.Decide(true)
			}
		} else if informs++; informs > mostInforms {
			return 0, errors.New("too many 1xx responses")
		}
		header := c.head.header(string(c.unread()[:n]), nil)
		c.r += n
		message.RemoveHopByHop(header)
		if err := message.Inform(req.Context(), status, header); err != nil {
			return 0, err
		}
	}
}

// readHeaders reads until the buffer has complete headers and returns their length. It
// fails if they are longer than limit.
func (c *ClientConn) readHeaders(limit int) (int, error) {
	for searched := 0; ; {
		n := findEnd(c.unread(), searched)
		searched = c.buffered()
		switch {
		case n > limit:
			return 0, errTooLarge
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

// response has the memory for a response, its body and the values of its header. One
// allocation is sufficient for all three.
type response struct {
	http.Response
	body   body
	values [8]string
}

// newResponse builds the response from the parsed headers, which are the first n unread
// bytes.
func (c *ClientConn) newResponse(req *http.Request, n int) *http.Response {
	h := &c.head
	text := string(c.unread()[:n])
	c.r += n
	r := new(response)
	rsp := &r.Response
	rsp.Status, rsp.StatusCode = h.target.of(text), h.status
	rsp.Proto, rsp.ProtoMajor, rsp.ProtoMinor = protos[h.minor], 1, h.minor
	rsp.Request = req
	rsp.Header = h.header(text, r.values[:0])
	rsp.ContentLength = h.length
	rsp.Close = !h.persists()
	c.keep = c.keep && !rsp.Close && (h.keeps || !isOld(req))
	if c.sender != nil {
		c.sender.expects.Decide(false) // unless it is decided
	}
	if h.hop {
		defer message.RemoveHopByHop(rsp.Header)
	}
	switch {
	case h.status == http.StatusSwitchingProtocols, req.Method == http.MethodConnect && h.status/100 == 2:
		rsp.ContentLength = -1
		delete(rsp.Header, "Content-Length")
		rsp.Body = tunnelEnd{&c.source, c.endTunnel}
		c.source.release()
	case req.Method == http.MethodHead || !message.BodyAllowed(h.status) || h.length == 0:
		if h.status == http.StatusNoContent {
			rsp.ContentLength = 0
		}
		rsp.Body = http.NoBody
		c.bodyEnded(true)
	default:
		b := &r.body
		b.init(&c.source, c, h, rsp.Header)
		rsp.Body, rsp.Trailer = b, b.trailer
		if h.chunked {
			rsp.TransferEncoding = chunkedCoding
		}
		c.keep = c.keep && b.framing != byClose
	}
	return rsp
}

// interrupt closes the connection, which ends a Read in progress. It is part of bodyOwner.
func (c *ClientConn) interrupt() { c.fail(http.ErrBodyReadAfterClose) }

// bodyEnded makes the connection ready for the next request, or closes it. It is part of bodyOwner.
// The argument whole reports whether the response was read completely. The connection is reused if
// whole is true and the request was sent completely. In addition, both messages must permit reuse,
// and no further bytes may have arrived.
func (c *ClientConn) bodyEnded(whole bool) {
	reusable := whole && c.keep && c.buffered() == 0 && c.finished()
	if !c.watch.IsZero() && !c.watch.Stop() {
		reusable = false
	}
	c.watch = reqctx.Registration{}
	if !reusable {
		c.fail(errClosed)
		c.stopSender()
	}
	c.drop()
	c.release(reusable && c.cause.Load() == nil)
}

// endTunnel closes a connection that has become a tunnel.
func (c *ClientConn) endTunnel() {
	c.watch.Stop()
	c.fail(errClosed)
	c.release(false)
}
